"""The files of a published model's tokenizer."""

from pathlib import Path

from numformer.data.tokenizers import Pieces, Tokenizer, library
from numformer.errors import InputError
from numformer.published.files import LARGEST_JSON, read_json

TOKENIZER, TARGET_IDS = "tokenizer.json", "target_vocab.json"


def tokenizer_of(folder: Path, size: int, whole: bool) -> Tokenizer:
    """The tokenizer of a folder; GPT-2's may be in two older files, BERT's in one."""
    path = folder / TOKENIZER
    if path.is_file():
        if path.stat().st_size > LARGEST_JSON:
            rule = "a tokenizer.json describes a tokenizer"
            raise InputError(rule, f"{path}, which is too large", "Download it again.")
        return Tokenizer(path.read_text(encoding="utf-8", errors="replace"), size, whole)
    implementations = library("tokenizers").implementations
    try:
        if (folder / "merges.txt").is_file():
            files = [str(folder / name) for name in ("vocab.json", "merges.txt")]
            made = implementations.ByteLevelBPETokenizer(*files)
        elif (folder / "vocab.txt").is_file():
            lower, file = _settings(folder).get("do_lower_case", True), str(folder / "vocab.txt")
            made = implementations.BertWordPieceTokenizer(file, lowercase=lower)
        else:
            raise InputError(
                f"a published model of texts has its tokenizer, {TOKENIZER}, beside it",
                f"{folder} without",
                "Download it; or make it: in transformers, AutoTokenizer.from_pretrained(FOLDER)"
                ".save_pretrained(FOLDER).",
            )
    except InputError:
        raise
    except Exception as problem:
        rule = "the tokenizer's files are as they were published"
        raise InputError(rule, f"{folder} ({problem})", "Download them again.") from None
    return Tokenizer(made.to_str(), size, whole)


def pieces_of(folder: Path, *sizes: int) -> tuple[Pieces, ...]:
    """Marian's vocabularies of source and target, of these sizes: one file of ids for both or two.

    Raises InputError for files that are not there or say something else.
    """
    separate = _settings(folder).get("separate_vocabs", False)
    unknown = mark_of(folder, "unk_token", "<unk>")
    files = ("source.spm", "vocab.json"), ("target.spm", TARGET_IDS if separate else "vocab.json")
    return tuple(_pieces(folder, *of, size, unknown) for of, size in zip(files, sizes, strict=True))


def _pieces(folder: Path, cut_by: str, ids_by: str, size: int, unknown: str) -> Pieces:
    if not (folder / cut_by).is_file():
        rule = "Marian's texts are cut by source.spm and target.spm"
        raise InputError(rule, f"{folder} without {cut_by}", "Download the whole folder.")
    ids = read_json(folder / ids_by)
    if not isinstance(ids, dict):
        rule = f"{ids_by} has an id of the model for each piece"
        raise InputError(rule, type(ids).__name__, "Download it again.")
    return Pieces((folder / cut_by).read_bytes(), ids, size, unknown)


def mark_of(folder: Path, name: str, usual: str) -> str:
    """A symbol with a meaning, such as "mask_token", from tokenizer_config.json."""
    mark = _settings(folder).get(name)
    if isinstance(mark, dict):  # with how it is cut
        mark = mark.get("content")
    return mark if isinstance(mark, str) else usual


def _settings(folder: Path) -> dict:
    """What tokenizer_config.json says, where there is one."""
    path = folder / "tokenizer_config.json"
    told = read_json(path) if path.is_file() else {}
    return told if isinstance(told, dict) else {}
