"""Read the vocabularies of a published model from the files of its tokenizer."""

from pathlib import Path

from numformer.data.tokenizers import MarianVocabulary, Tokenizer, library
from numformer.errors import InputError
from numformer.published.files import UNCHANGED, read_json, require_readable

TOKENIZER, TARGET_IDS = "tokenizer.json", "target_vocab.json"


def load_tokenizer(folder: Path, size: int, marked: bool) -> Tokenizer:
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
            "Download it, or create it in transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        )
    implementations = library("tokenizers").implementations
    lower = _settings(folder).get("do_lower_case", True)
    try:
        if merges.is_file():
            files = str(folder / "vocab.json"), str(merges)
            tokenizer = implementations.ByteLevelBPETokenizer(*files)
        else:
            tokenizer = implementations.BertWordPieceTokenizer(str(words), lowercase=lower)
    except Exception as problem:  # the library has no more specific exception
        raise InputError(UNCHANGED, f"{folder} ({problem})", "Download them again.") from None
    return Tokenizer(tokenizer.to_str(), size, marked)


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
    symbol = _settings(folder).get(name)
    if isinstance(symbol, dict):  # a symbol with settings of its own
        symbol = symbol.get("content")
    return symbol if isinstance(symbol, str) else default


def _settings(folder: Path) -> dict:
    """The content of tokenizer_config.json, if there is one."""
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}
