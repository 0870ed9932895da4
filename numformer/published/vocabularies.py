"""Read the vocabularies of a published model from the files of its tokenizer."""

from pathlib import Path
from typing import Any

from numformer.data.tokenizers import MarianVocabulary, Tokenizer, library
from numformer.errors import InputError
from numformer.published.files import UNCHANGED, read_json, require_readable

TOKENIZER, TARGET_IDS = "tokenizer.json", "target_vocab.json"
M2M100 = "sentencepiece.bpe.model", "vocab.json"
"""The files that only M2M100's own tokenizer reads; the first alone becomes a tokenizer.json."""


def load_tokenizer(folder: Path, size: int, marked: bool | str) -> Tokenizer:
    """The tokenizer of a folder, from tokenizer.json or from the older files of GPT-2 and BERT."""
    path = folder / TOKENIZER
    if path.is_file():
        require_readable(path)
        return Tokenizer(path.read_text(encoding="utf-8"), size, marked)
    merges, words = folder / "merges.txt", folder / "vocab.txt"
    if not (merges.is_file() or words.is_file()):
        raise InputError(
            f"a published text model has its tokenizer, {TOKENIZER}, in its folder",
            f"{folder}, which has none",
            "M2M100 is published without it: choose an NLLB."
            if all((folder / name).is_file() for name in M2M100)
            else "Download it, or create it in transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        )
    tokenizers, settings = library("tokenizers"), _settings(folder)
    try:
        if merges.is_file():
            files = str(folder / "vocab.json"), str(merges)
            spaced = settings.get("add_prefix_space", False)
            tokenizer = tokenizers.implementations.ByteLevelBPETokenizer(
                *files, add_prefix_space=spaced
            )
            around = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
            if all(number is not None for _, number in around):  # RoBERTa's marks, not GPT-2's
                processor = tokenizers.processors.RobertaProcessing
                tokenizer._tokenizer.post_processor = processor(*around)
        else:
            tokenizer = tokenizers.implementations.BertWordPieceTokenizer(
                str(words),
                lowercase=settings.get("do_lower_case", True),
                strip_accents=settings.get("strip_accents"),
                handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
            )
        _add_symbols(folder, tokenizer)
    except InputError:
        raise
    except Exception as problem:  # the library has no more specific exception
        raise InputError(UNCHANGED, f"{folder} ({problem})", "Download them again.") from None
    return Tokenizer(tokenizer.to_str(), size, marked)


USUAL = "<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<mask>"
"""The marks of GPT-2 and RoBERTa, whatever their files say."""
MARKS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]


def _add_symbols(folder: Path, tokenizer: Any) -> None:
    """Add the symbols of the other files, which are never cut into pieces.

    Raises InputError if the ids in added_tokens.json do not follow those of the vocabulary.
    """
    path = folder / "added_tokens.json"
    added = read_json(path) if path.is_file() else {}
    for name in sorted(added, key=added.__getitem__):
        tokenizer.add_tokens([name])
        if tokenizer.token_to_id(name) != added[name]:
            rule = "the ids in added_tokens.json follow those of the vocabulary"
            raise InputError(rule, f"{added[name]} for {name}", "Download the folder again.")
    marks = [*USUAL, *(mark(folder, name, "") for name in MARKS)]
    further = _settings(folder).get("additional_special_tokens") or []
    marks += [symbol_name(symbol, "") for symbol in further]
    known = [name for name in dict.fromkeys(marks) if tokenizer.token_to_id(name) is not None]
    tokenizer.add_special_tokens(known)


def load_vocabularies(folder: Path, *sizes: int) -> list[MarianVocabulary]:
    """Marian's vocabularies of source and target, with their ids in one file or in two.

    Raises InputError for missing or invalid files.
    """
    separate = _settings(folder).get("separate_vocabs", False)
    unknown = mark(folder, "unk_token", "<unk>")
    files = ("source.spm", "vocab.json"), ("target.spm", TARGET_IDS if separate else "vocab.json")
    vocabularies = []
    for (model, ids_file), size in zip(files, sizes, strict=True):
        if not (folder / model).is_file():
            rule = "Marian models split texts by source.spm and target.spm"
            raise InputError(rule, f"{folder} without {model}", "Download the whole folder.")
        pieces, ids = (folder / model).read_bytes(), read_json(folder / ids_file)
        vocabularies.append(MarianVocabulary(pieces, ids, size, unknown))
    return vocabularies


def mark(folder: Path, name: str, default: str) -> str:
    """A special symbol in tokenizer_config.json, such as "mask_token"."""
    return symbol_name(_settings(folder).get(name), default)


def symbol_name(symbol: Any, default: str) -> str:
    """A symbol in a JSON file, where it may have settings of its own."""
    if isinstance(symbol, dict):
        symbol = symbol.get("content")
    return symbol if isinstance(symbol, str) else default


def _settings(folder: Path) -> dict:
    """The content of special_tokens_map.json and of tokenizer_config.json, if they are there."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        settings |= read_json(path) if path.is_file() else {}
    return settings
