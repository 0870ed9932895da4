"""What sentence-transformers adds to a folder: how the symbols' vectors become a text's vector.

It lists the modules in order: the model, a pooling and, in some folders, a normalization.
"""

from pathlib import Path
from typing import Any

from numformer.errors import InputError
from numformer.published.files import read_json
from numformer.settings import is_size

MODULES, POOLING, LIMIT = "modules.json", "1_Pooling", "sentence_bert_config.json"
MODES = {
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
    "max": "pooling_mode_max_tokens",
}
"""The name that sentence-transformers gives each of our poolings."""


def read_pooling(folder: Path) -> tuple[list[int], dict[str, Any]]:
    """Return the folder's limits on the length of a text, and its defaults for `embed`.

    Raises InputError for modules and poolings that numformer lacks, ValueError for a wrong limit.
    """
    values = read_json(folder / LIMIT) if (folder / LIMIT).is_file() else {}
    limits = [n for n in [values.get("max_seq_length")] if n is not None]
    if not all(map(is_size, limits)):
        raise ValueError(f"max_seq_length {limits[0]!r}")
    settings: dict[str, Any] = {}
    modules = read_json(folder / MODULES, list) if (folder / MODULES).is_file() else []
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        if kind == "Pooling":
            values = read_json(folder / Path(module["path"]).name / "config.json")
            modes = [n for n, on in values.items() if n.startswith("pooling_mode") and on]
            pooling = [ours for ours, mode in MODES.items() if modes == [mode]]
            if not pooling:
                _refuse(f"{' and '.join(modes) or 'none of them'} in {folder}")
            settings["pooling"] = pooling[0]
        elif kind == "Normalize":
            settings["normalized"] = True
        elif kind != "Transformer":
            _refuse(f"the module {module['type']} in {folder}")
    return limits, settings


def _refuse(received: str) -> None:
    rule = f"a text's vector is pooled by {', '.join(MODES.values())}, and perhaps normalized"
    raise InputError(rule, received, "Choose another model.")


def pooling_files(text: Any, width: int) -> dict[str, Any]:
    """Return the files for a Reading of a model of this width, by their paths in the folder."""
    names = [("Transformer", ""), ("Pooling", POOLING), ("Normalize", "2_Normalize")]
    modes = {mode: ours == text.pooling for ours, mode in MODES.items()}
    return {
        MODULES: [
            dict(idx=n, name=str(n), path=path, type=f"sentence_transformers.models.{kind}")
            for n, (kind, path) in enumerate(names[: 2 + text.normalized])
        ],
        f"{POOLING}/config.json": dict(word_embedding_dimension=width) | modes,
        LIMIT: dict(max_seq_length=text.context, do_lower_case=False),
    }
