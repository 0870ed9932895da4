"""What transformers computes for the cases: logits, gradients by our names, generated ids.

Its own roundings to float32 are lifted, and its rule that an embedding of padding is not trained.
"""

import contextlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import transformers
from published_cases import CASES, ROPES, RandomModel, WritingModel
from safetensors.numpy import load_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from numformer.published.configs import ForeignConfig, end_ids
from numformer.published.kinds import KINDS

MODELS = {
    "marian": "MarianMTModel",
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gptj": "GPTJForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
    "falcon": "FalconForCausalLM",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "xlm-roberta": "XLMRobertaForMaskedLM",
    "camembert": "CamembertForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "albert": "AlbertForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "whisper": "WhisperForConditionalGeneration",
    "vit": "ViTForImageClassification",
    "deit": "DeiTForImageClassificationWithTeacher",
    "dinov2": "Dinov2ForImageClassification",
    "dinov2_with_registers": "Dinov2WithRegistersForImageClassification",
    "clip": "CLIPModel",
}


def bare(values: dict):
    """A random model of the class without a head."""
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**values)).eval()


def classes(kind: str) -> list[str]:
    """The classes of this kind that the tests open."""
    config = transformers.AutoConfig.for_model(kind, **NOT_DEFAULT.get(kind, {}))
    names = [MODELS[kind], transformers.AutoModel._model_mapping[type(config)].__name__]
    for values in CASES.values():
        if values["model_type"] == kind:
            names += values.get("architectures", [])
    return [*dict.fromkeys(names)]


def states(model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The stack's output, in float32."""
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    tensors = {n: x.float() if x.is_floating_point() else x for n, x in tensors.items()}
    with torch.no_grad():
        return without_registers(model, model(**tensors).last_hidden_state).numpy()


def without_registers(model, x):
    """The stack's output at the class token and at the patches."""
    count = getattr(model.config, "num_register_tokens", 0)
    return torch.cat([x[:, :1], x[:, 1 + count :]], dim=1)


def load(folder: Path, values: dict, dtype=torch.float64):
    """The model of a folder. Fails if an array is missing or unexpected."""
    (name,) = values.get("architectures", [MODELS[values["model_type"]]])
    kind: Any = getattr(transformers, name)
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    # Positions are computed; the others have no effect.
    known = re.compile(r"embed_positions|pooler\.|mask_token|^(cls\.predictions|lm_head)\.bias$")
    assert all(known.search(name) for name in report["missing_keys"]), report
    assert not any(report[key] for key in ("unexpected_keys", "mismatched_keys", "error_msgs"))
    model = model.to(dtype).eval()
    model.config._experts_implementation = "eager"  # the default multiplies float32 alone
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    if dtype == torch.float64:
        for module in model.modules():
            if "RotaryEmbedding" in type(module).__name__:
                with lifted():
                    module.__init__(model.config)
            if type(module).__name__ == "BloomGelu":  # which rounds its factor to eight digits
                module.forward = torch.nn.GELU("tanh").forward
            if hasattr(module, "make_weights"):
                with lifted():
                    module.make_weights(*module.weights.shape, module.padding_idx)
            elif "Sinusoidal" in type(module).__name__:
                module.weight.data = _sinusoids(*module.weight.shape)
    return model


@contextlib.contextmanager
def lifted():
    """Within the block, transformers rounds nothing to float32."""
    double = dict(float=torch.float64, float32=torch.float64)
    to_double = mock.patch.object(torch.Tensor, "float", torch.Tensor.double)
    single = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.multiple(torch, **double), to_double:
            yield
    finally:
        torch.set_default_dtype(single)


def _sinusoids(length: int, width: int):
    angles = torch.arange(length).double()[:, None]
    angles = angles / 10000 ** (torch.arange(0, width, 2).double() / width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def results(example: RandomModel, folder: Path, dtype=np.float64) -> dict[str, np.ndarray]:
    """Logits and gradients as RandomModel.results has them."""
    dtype = torch.float32 if dtype == np.float32 else torch.float64
    model = load(folder, example.values, dtype)
    inputs = {
        name: torch.from_numpy(array.copy()) for name, array in example.foreign_inputs.items()
    }
    inputs = {n: x.to(dtype) if x.is_floating_point() else x for n, x in inputs.items()}
    for parameter in model.parameters():
        parameter.requires_grad_()  # some positions have none otherwise
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias.requires_grad_()
    with lifted() if dtype == torch.float64 else contextlib.nullcontext():
        outputs = model(**inputs)
    names = {"relations": "seq_relationship_logits", "logits": "logits"}
    if "logits_per_image" in outputs:
        names["logits"] = "logits_per_image"
    if example.is_bare:
        names["logits"] = "last_hidden_state"
        outputs.last_hidden_state = without_registers(model, outputs.last_hidden_state)
    if example.has_relations:
        names["logits"] = "prediction_logits"
    if "start_logits" in outputs:
        outputs["logits"] = torch.stack([outputs["start_logits"], outputs["end_logits"]], -1)
    tensors = {name: outputs[names[name]] for name in example.upstream}
    upstream = [torch.from_numpy(array).to(dtype) for array in example.upstream.values()]
    torch.autograd.backward([*tensors.values()], upstream)
    arrays = {name: example.counted(x.detach().numpy()) for name, x in tensors.items()}
    return arrays | by_our_names(example, _gradients(model))


def _gradients(model) -> dict[str, np.ndarray]:
    """Gradients by the names and in the layouts of a file; the model loses its values."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def by_our_names(example: RandomModel, gradients: dict) -> dict[str, np.ndarray]:
    """Gradients by our names and in our layouts; a scaled parameter has the inverse factor."""
    parameters = example.model.named_parameters()
    ours: dict[str, np.ndarray] = {}
    table = example.kind.table_for(example.model.config, example.values)
    for entry in table.entries(parameters, table.bare):
        if entry.ours[0] in ours or not all(name in gradients for name in entry.foreign):
            continue
        shapes = [parameters[name].shape for name in entry.ours]
        arrays = [gradients[name] for name in entry.foreign]

        def read(arrays, entry=entry, shapes=shapes):
            return entry.read(arrays, shapes, example.model.config)

        zeros, ones = (read([np.full_like(array, n) for array in arrays]) for n in (0, 1))
        pairs = zip(entry.ours, read(arrays), zeros, ones, strict=True)
        ours |= {name: (g - zero) / (one - zero) ** 2 for name, g, zero, one in pairs}
    return ours


def written(example: WritingModel, folder: Path, beam: int, **settings) -> list[list[int]]:
    """The ids that are generated for the inputs with these settings, without start and end."""
    special, model = example.model.config.special, load(folder, example.values)
    inputs = {
        n: torch.from_numpy(x) for n, x in example.foreign_inputs.items() if "decoder" not in n
    }
    if "input_ids" in inputs:
        inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
    inputs = {n: x.to(model.dtype) if x.is_floating_point() else x for n, x in inputs.items()}
    usual = dict(
        num_beams=beam,
        do_sample=False,
        max_new_tokens=example.length,
        length_penalty=0.7,
        bad_words_ids=[[n] for n in special.unwritten] or None,
        pad_token_id=special.padding if special.padding is not None else special.end,
        eos_token_id=end_ids(ForeignConfig(example.values)),
        forced_eos_token_id=None,
    )
    # Whisper has a generate of its own, which adds prompts.
    rows = transformers.GenerationMixin.generate(model, **inputs, **usual | settings)
    before = 1 if model.config.is_encoder_decoder else example.inputs[0].shape[1]
    return [special.before_end(row[before:].tolist()) for row in rows]


class _Settings(dict):
    """A config.json that notes the names of the settings that are read."""

    def __init__(self, values: dict):
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)


NOT_DEFAULT = {"qwen3_moe": dict(norm_topk_prob=True)}
"""Settings in place of defaults that numformer refuses."""


def defaults(kind: str) -> dict[str, Any]:
    """The settings of a model of this kind that numformer reads, with transformers' defaults."""
    config = transformers.AutoConfig.for_model(kind, **NOT_DEFAULT.get(kind, {}))
    settings = _Settings(json.loads(config.to_json_string(use_diff=False)))
    for read in KINDS[kind][1::3]:
        read(ForeignConfig(settings))
    return {name: settings[name] for name in sorted(settings.names) if name in settings}


def ropes() -> list[list]:
    """Of ROPES, the angles of rotary positions from one position to the next, and their scale."""
    return [rope(*settings) for settings in ROPES]


def rope(settings: dict, scaling: dict) -> list:
    if scaling["rope_type"] == "default":
        scaling = scaling | dict(rope_type="linear", factor=1.0)
    config = transformers.LlamaConfig(**settings, rope_parameters=scaling)
    angles, scale = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    return [angles.tolist(), scale]
