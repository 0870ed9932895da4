"""Run folders: choosing one for a run, listing the runs of a task, and their config.json."""

import json
import os
import zlib
from pathlib import Path

import safetensors

from numformer.errors import InputError
from numformer.runs.files import PARTIAL, write_atomically
from numformer.runs.migrations import FORMAT, settings_from_4

RESULT = "result.json"
"""The file with the measures of a run on its test set."""
UNREADABLE = OSError, LookupError, TypeError, ValueError, RecursionError
UNREADABLE += (safetensors.SafetensorError,)
"""The errors that reading the metadata of a foreign or damaged file can raise."""


def new_folder(name: str, out: Path | None) -> Path:
    """Make the folder `out`, or without it the next free folder of this name under runs/.

    Raises InputError if `out` is there and not an empty folder, or if it cannot be made.
    """
    number = 1
    while True:
        folder = out or Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except OSError as problem:
            if out and out.is_dir():
                require_empty(out)
                return out
            if out and os.path.lexists(out):
                fix = "Choose another name."
                raise InputError("--out names a folder", f"{out}, which is not one", fix) from None
            if not os.path.lexists(folder):
                raise InputError(
                    "a run folder can be made and written",
                    f"{folder} ({problem.strerror})",
                    "Choose another folder with --out.",
                ) from None
            number += 1


def runs_of(task: str) -> dict[Path, dict]:
    """Each folder under runs/ with a run of this task, and the run's options; the latest first.

    The config.json of a run names its task, whatever the folder is called.
    """
    runs = []
    for path in Path("runs").glob("*/config.json"):
        try:
            settings = read_config(path.parent)
            name = task_of(settings)
            # An older run names its task only in last.safetensors, not in config.json.
            if (name or last_state(path.parent)["task"]["name"]) == task:
                runs.append((path.stat().st_mtime_ns, path.parent, dict(settings["options"])))
        except (*UNREADABLE, AttributeError):
            continue  # not a run, or a damaged run
    runs.sort(key=lambda run: run[0], reverse=True)
    return {folder: options for _, folder, options in runs}


def task_of(config: dict) -> str | None:
    """The task or the study that a run's config.json names; None for an older run."""
    return config.get("task") or config.get("study", {}).get("name")


def last_state(folder: Path) -> dict:
    """The metadata of a run's last.safetensors, with `step` and `steps`; {} if unreadable."""
    path = folder / "last.safetensors"
    try:
        if not path.is_file():  # reading a pipe would wait for ever
            return {}
        with safetensors.safe_open(path, framework="np") as file:
            metadata = json.loads(file.metadata()["numformer"])
        counts = {type(metadata["step"]), type(metadata["steps"])}
        return metadata if counts == {int} else {}
    except UNREADABLE:
        return {}  # training will report a damaged file


def write_config(folder: Path, settings: dict, name: str = "config.json") -> None:
    """Write config.json, or a file of another name, with a checksum."""
    settings = {"format": FORMAT} | settings
    settings["crc32"] = checksum(settings)
    write_atomically(folder / name, json.dumps(settings, indent=1).encode())


def write_first_config(folder: Path, settings: dict) -> None:
    """Write config.json into an empty folder."""
    require_empty(folder)
    write_config(folder, settings)


def require_empty(folder: Path) -> None:
    """Raise InputError unless the folder is empty, or has only an unfinished config.json."""
    if any(path.name != "config.json" + PARTIAL for path in folder.iterdir()):
        fix = "Choose another folder"
        if (folder / "config.json").exists():
            fix += ", or continue the run in it with --resume"
        raise InputError("--out names a folder that is new or empty", folder, f"{fix}.")


def read_config(folder: Path, name: str = "config.json") -> dict:
    """The content of a run's config.json, or of another file that `write_config` wrote.

    Raises InputError if the file is missing, invalid, or was changed.
    """
    path = folder / name
    try:
        if not path.is_file():
            raise ValueError(f"there is no such {'file' if folder.is_dir() else 'folder'}")
        settings = json.loads(path.read_text(encoding="utf-8"))
        if settings.pop("crc32") != checksum(settings):
            raise ValueError(f"its checksum says that {name} was changed")
        return settings if settings.pop("format", 4) > 4 else _from_format_4(settings)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise not_a_run(folder, problem, name) from None


def _from_format_4(settings: dict) -> dict:
    """The settings of a config.json of format 4, under today's names."""
    parts = {"options", "config", "recipe"} & settings.keys()
    return settings | {part: settings_from_4(settings[part]) for part in parts}


def not_a_run(folder: Path, problem: object, name: str = "config.json") -> InputError:
    """The error for a folder whose config.json is missing or was changed."""
    return InputError(
        f"the folder of a run has its {name}, unchanged since it was written",
        f"{folder} ({problem})",
        "Name the folder with --out, or start a new run without --resume.",
    )


def checksum(settings: dict) -> int:
    return zlib.crc32(json.dumps(settings).encode())
