"""Run folders: where a run goes, which one is resumed, and its config.json."""

import json
import os
import zlib
from pathlib import Path

import safetensors

from numformer.errors import InputError
from numformer.runs.files import PARTIAL, write_atomically
from numformer.runs.migrations import FORMAT, settings_from_4

UNREADABLE = (
    OSError,
    safetensors.SafetensorError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
"""What reading the metadata of a file raises that is none of ours."""


def new_folder(name: str, out: Path | None) -> Path:
    """Make `out`, or else the next free folder of this name under runs/."""
    number = 1
    while True:
        folder = out or Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except OSError as problem:
            if out and out.is_dir():
                return out
            if out and os.path.lexists(out):
                raise _occupied(out) from None
            if not os.path.lexists(folder):
                raise InputError(
                    "a run folder can be made and written",
                    f"{folder} ({problem.strerror})",
                    "Choose another folder with --out.",
                ) from None
            number += 1


def _occupied(out: Path) -> InputError:
    return InputError(
        "--out names a folder that is new or empty",
        out,
        "Choose another folder, or continue the run in it with --resume.",
    )


def runs_of(task: str) -> dict[Path, dict]:
    """The folders under runs/ of a task's runs with their flags, the one begun last first.

    A run says in its config.json of which task it is, whatever its folder is called.
    """
    begun = {}
    for path in Path("runs").glob("*/config.json"):
        try:
            settings = read_config(path.parent)
            told = settings.get("task") or settings.get("study", {}).get("name")
            # Older runs say it in their last.safetensors alone.
            if (told or stands(path.parent)["task"]["name"]) == task:
                begun[path.parent] = path.stat().st_mtime_ns, dict(settings["options"])
        except (*UNREADABLE, AttributeError):
            continue  # whose it is, nobody knows
    latest = sorted(begun, key=lambda folder: begun[folder][0], reverse=True)
    return {folder: begun[folder][1] for folder in latest}


def stands(folder: Path) -> dict:
    """What a run's last.safetensors says of it, with its `step` and `steps`; {} without one."""
    path = folder / "last.safetensors"
    try:
        if not path.is_file():  # a pipe would keep its reader waiting
            return {}
        with safetensors.safe_open(path, framework="np") as file:
            metadata = json.loads(file.metadata()["numformer"])
        counts = {type(metadata["step"]), type(metadata["steps"])}
        return metadata if counts == {int} else {}
    except UNREADABLE:
        return {}  # whether that is a fault, training will say


def write_config(folder: Path, settings: dict, name: str = "config.json") -> None:
    """Write config.json, or a file of another name, with a checksum."""
    settings = {"format": FORMAT} | settings
    settings["crc32"] = checksum(settings)
    write_atomically(folder / name, json.dumps(settings, indent=1).encode())


def begin(folder: Path, settings: dict) -> None:
    """Write config.json into a folder that is empty, but for a killed beginning of the same."""
    if any(path.name != "config.json" + PARTIAL for path in folder.iterdir()):
        raise _occupied(folder)
    write_config(folder, settings)


def read_config(folder: Path, name: str = "config.json") -> dict:
    """The content of a run's config.json, or of another such file.

    Raises InputError unless it is as it was written.
    """
    path = folder / name
    try:
        if not path.is_file():
            raise ValueError("it holds no such file")
        settings = json.loads(path.read_text(encoding="utf-8"))
        if settings.pop("crc32") != checksum(settings):
            raise ValueError(f"its checksum says that {name} was changed")
        return settings if settings.pop("format", 4) > 4 else _from_4(settings)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise no_run(folder, problem, name) from None


def _from_4(settings: dict) -> dict:
    """What a config.json says, in today's names: its flags, and a model's config and recipe."""
    parts = {"options", "config", "recipe"} & settings.keys()
    return settings | {part: settings_from_4(settings[part]) for part in parts}


def no_run(folder: Path, problem, name: str = "config.json") -> InputError:
    """The complaint about a folder whose config.json is not as it was written."""
    return InputError(
        f"the folder of a run has its {name} as it was written",
        f"{folder} ({problem})",
        "Name the folder with --out, or start a new run without --resume.",
    )


def checksum(settings: dict) -> int:
    """What tells whether a config.json is as it was written."""
    return zlib.crc32(json.dumps(settings).encode())
