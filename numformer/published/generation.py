"""The settings of generation of a published folder: each is followed, or a warning names it."""

import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numformer.errors import InputError
from numformer.generation.rules import RENORMALIZE, RULES, are_valid
from numformer.published.configs import ForeignConfig
from numformer.published.files import GENERATION

FOLLOWED = {*RULES, RENORMALIZE, "early_stopping", "suppress_tokens"}
FOLLOWED |= {"max_length", "max_new_tokens", "num_beams", "length_penalty"}
FOLLOWED |= {"do_sample", "temperature", "top_k", "top_p"}
FOLLOWED |= {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}
"""Settings that numformer follows, in every model or as `notes` says."""

WITHOUT_EFFECT = {"use_cache", "cache_implementation", "cache_config", "max_cache_len", "use_mtp"}
WITHOUT_EFFECT |= {"output_attentions", "output_hidden_states", "output_scores", "output_logits"}
WITHOUT_EFFECT |= {"return_dict_in_generate", "compile_config", "disable_compile", "low_memory"}
WITHOUT_EFFECT |= {"is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"}
WITHOUT_EFFECT |= {"assistant_confidence_threshold", "assistant_early_exit", "speculation_type"}
WITHOUT_EFFECT |= {"assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"}
WITHOUT_EFFECT |= {"prompt_lookup_num_tokens", "max_matching_ngram_size", "prefill_chunk_size"}
WITHOUT_EFFECT |= {"continuous_batching_config", "transformers_version", "_from_model_config"}
WITHOUT_EFFECT |= {"_commit_hash"}
"""Settings of speed, memory and further outputs, which leave the text as it is."""

WHISPER = {"max_initial_timestamp_index", "is_multilingual", "no_timestamps_token_id"}
WHISPER |= {"lang_to_id", "task_to_id", "return_timestamps", "forced_decoder_ids"}
WHISPER |= {"alignment_heads", "median_filter_width", "prev_sot_token_id"}
"""Settings of Whisper alone, which Listening follows, sets itself, or needs for no text."""

LACKING: dict[str, Any] = dict(max_time=None, stop_strings=None, guidance_scale=1, constraints=None)
LACKING |= dict(watermarking_config=None, token_healing=False, remove_invalid_values=False)
LACKING |= dict(num_return_sequences=1, penalty_alpha=0, dola_layers=None, diversity_penalty=0.0)
LACKING |= dict(num_beam_groups=1, force_words_ids=None)
"""Settings that numformer lacks, with the values that have no effect."""

CUTS: dict[str, Any] = dict(min_p=0, top_h=1, typical_p=1.0, epsilon_cutoff=0.0, eta_cutoff=0.0)
"""Settings of sampling that numformer lacks, with the values that have no effect."""

WITH_TEXT = dict(top_k=(50, 0), top_p=(1.0, 1.0))
"""Settings of sampling that are passed with a text: the default, the value without effect."""

NEUTRAL: dict[str, Any] = dict.fromkeys(("min_length", "min_new_tokens"), 0)
NEUTRAL |= dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0)
NEUTRAL |= dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), 1)
NEUTRAL |= dict(sequence_bias=[], bad_words_ids=[], begin_suppress_tokens=[])
NEUTRAL |= {RENORMALIZE: False}
"""The values of rules that have no effect."""


def read_rules(foreign: ForeignConfig, size: int) -> list[list]:
    """The rules (see generation/rules.py) that the settings of a folder give for `size` symbols.

    Words of a single symbol that are banned are in the model's config already. Raises InputError
    for a rule with an invalid value.
    """
    words = [word for word in foreign.get("bad_words_ids", []) if len(word) != 1]
    values = {**foreign.values, "bad_words_ids": words}
    names = [name for name in (*RULES, RENORMALIZE) if values.get(name) is not None]
    rules = [[name, values[name]] for name in names if values[name] != NEUTRAL.get(name)]
    for name, value in rules:
        if not are_valid([(name, value)], size):
            rule = f"{name} is a rule of generation for {size} symbols"
            raise InputError(rule, reprlib.repr(value), f"Change {GENERATION}.")
    return rules


def notes(folder: Path, foreign: ForeignConfig, generation: dict, continues: bool) -> Iterator[str]:
    """Yield a line for settings to pass with a text, and one for those that numformer lacks.

    `generation` is the content of generation_config.json, `foreign` has the settings of config.json
    besides; `continues` says whether the model continues texts.
    """
    samples = continues and foreign.get("do_sample", False)
    limits = dict(num_beams=1, max_length=None) if continues else dict(do_sample=False)
    lacking = LACKING | (CUTS if samples else {}) | limits
    settings = [
        f"{name} {reprlib.repr(value)}"
        for name, neutral in lacking.items()
        if (value := foreign.get(name, neutral)) != neutral
    ]
    known = FOLLOWED | WITHOUT_EFFECT | WHISPER | LACKING.keys() | CUTS.keys()
    unknown = [(n, value) for n, value in generation.items() if n not in known]
    settings += [f"{name} {reprlib.repr(value)}" for name, value in unknown if value is not None]
    arguments = [
        f"{name}={value}"
        for name, (default, none) in (WITH_TEXT.items() if samples else ())
        if (value := foreign.get(name, default)) != none
    ]
    if continues and (length := foreign.get("max_new_tokens", None)):
        arguments.append(f"length={length}")
    if arguments:
        yield (
            f"{folder} writes with {', '.join(arguments)}, which numformer ignores: pass "
            f"them with each text, as in trained(text, {', '.join(arguments)})"
        )
    if settings:
        yield (
            f"{folder} sets {', '.join(settings)}, which numformer lacks: texts will differ "
            "from those that the library transformers generates"
        )
