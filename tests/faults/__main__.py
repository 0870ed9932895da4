"""Kill training at random moments, and resume from damaged files: `python -m tests.faults`.

A run that is killed (SIGKILL) and resumed must end bit for bit like one that nothing interrupted:
every file of its folder, but for the seconds that it took, and what it prints from the best step
on, which shows decoded test sequences. A file that was damaged, or made to do damage, must be
refused with an InputError, with nothing in the folder changed and never more than 512 MiB taken.
The last line is `survived N of N kills, M of M bad files refused`; exit code 0 only where all did
and were. About two minutes.

With --mpi two to four ranks train, and one of them, at random, is killed (SIGKILL), told to stop
(SIGTERM, Ctrl-C) or hangs (SIGSTOP): all must end, and the run, resumed by another number of ranks,
like one that a single process has trained.
"""

import argparse
import contextlib
import copy
import functools
import io
import itertools
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy
from tqdm import tqdm

from numformer.errors import InputError
from numformer.models import Config, Transformer
from numformer.runs.checkpoints import load_checkpoint, load_model, save_checkpoint
from numformer.runs.files import PARTIAL
from tests.equal_runs import without_seconds
from tests.faults import ranks
from tests.toy_tasks.small import program
from toy_tasks import reverse
from toy_tasks.command_line import build_parser, parse_options, settings_from, train_task
from toy_tasks.text_to_text.sequences import DEFAULTS, SequenceTask

KILLED = """--steps 240 --d-model 16 --d-ff 16 --heads 2 --layers 1 --batch-size 32 --p-drop 0.1
--warmup 60 --factor 1 --evaluate-every 8 --log-every 3 --no-plots""".split()


start = functools.partial(program, "reverse")


def result(process: subprocess.Popen, folder: Path) -> tuple:
    """What a finished run leaves: exit code, errors, the lines after training, every file."""
    out, err = process.communicate()
    printed = out[out.find("kept at step") :].replace(str(folder), "FOLDER")
    err = re.sub(r"^step \d+ of .*\n", "", err, flags=re.M)  # how far a slow machine is
    return process.returncode, err, printed, without_seconds(folder)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def killed(process: subprocess.Popen, training: bool) -> bool:
    """Kill it -> whether it was still at work."""
    process.kill()
    process.communicate()
    return process.returncode < 0


def kill(
    folder: Path, flags, when: str, whole: int, rng: np.random.Generator, start, strike
) -> str | None:
    """Start or resume the run in `folder` and kill it -> where it was hit, or None if it ended.

    "save": as soon as a temporary file is there; "step": when metrics.jsonl, `whole` bytes in the
    end, has reached a random size; "start": up to a second after the start.
    """
    process, metrics = start(*flags, *resuming(folder), "--out", folder), folder / METRICS
    done = size(metrics)
    enough = done + (whole - done) * rng.uniform(0, 0.8 if when == "save" else 1.1)
    then = {"start": rng.uniform(0, 1), "step": rng.uniform(0, 0.02), "save": 0}[when]

    def reached() -> bool:
        if when == "start" or size(metrics) < min(enough, whole):
            return when == "start"
        return when == "step" or any(folder.glob("*" + PARTIAL))

    while process.poll() is None and not reached():
        time.sleep(0.0002)
    time.sleep(then)
    if not strike(process, when != "start" and size(metrics) < 0.9 * whole):
        return None
    return "save" if any(folder.glob("*" + PARTIAL)) else "step" if size(metrics) else "start"


def resuming(folder: Path) -> list[str]:
    """A run that was killed before its settings were written begins again."""
    return ["--resume"] if (folder / "config.json").exists() else []


def survive_kills(
    kills: int,
    rng: np.random.Generator,
    folder: Path,
    flags=KILLED,
    begin: Callable[..., subprocess.Popen] = start,
    strike: Callable[[subprocess.Popen, bool], bool] = killed,
    reference: Callable[..., subprocess.Popen] = start,
) -> tuple[int, dict]:
    """Kill `kills` times, one to four times in each run -> kills survived, and where they hit.

    `begin` starts the programs to kill and `reference` the one that runs to its end; `strike`
    kills a program and returns whether it was still at work.
    """
    straight = result(reference(*flags, "--out", folder / "straight"), folder / "straight")
    whole = size(folder / "straight" / METRICS)
    survived, hits = 0, {"start": 0, "step": 0, "save": 0}
    aims = itertools.cycle(["save", "step", "save", "step", "start"])
    with tqdm(total=kills, desc="kills", disable=not sys.stderr.isatty()) as bar:
        while sum(hits.values()) < kills:
            before = sum(hits.values())
            run = folder / f"killed-at-{before}"
            for _ in range(min(rng.integers(1, 5), kills - before)):
                if hit := kill(run, flags, next(aims), whole, rng, begin, strike):
                    hits[hit] += 1
                    bar.update()
            ended = result(begin(*flags, *resuming(run), "--out", run), run)
            if ended == straight:
                survived += sum(hits.values()) - before
            else:
                tqdm.write(f"{run.name}: {ended[:3]}")
    return survived, hits


LAST, BEST = "last.safetensors", "best.safetensors"
METRICS, CONFIG = "metrics.jsonl", "config.json"
JUNK = [None, "x", "\n", -1, 0.5, 10**30, 10**400, float("nan"), float("inf"), True, [], {}, [[]]]
JUNK += [["x"], [None], [1e999], [1.0] * 100, {"step": 2}, {"step": "x", "exact_match": 1.0}]
JUNK += [{"step": 2, "exact_match": "x"}, {"step": -1, "exact_match": 1.0}, {"bytes": -1}]
JUNK += [{"bytes": 10**30, "crc32": 0}, {"d_model": "x"}, [1, 2]]
SIZES = ["d_model", "d_ff", "layers", "heads", "d_k", "d_v", "source_vocabulary", "max_length"]


class Bad:
    """Ways to make bad files of good ones: each method is a kind -> the file's name, its content.

    What is sealed has a checksum that is right, so that it is refused for what it says.
    """

    def __init__(self, folder: Path, rng: np.random.Generator):
        self.folder, self.rng = folder, rng
        self.originals = {path.name: path.read_bytes() for path in folder.iterdir()}

    def choose(self, *items):
        return items[self.rng.integers(len(items))]

    def any_of_the_run(self) -> tuple[str, bytearray]:
        name = self.choose(LAST, BEST, METRICS, CONFIG)
        return name, bytearray(self.originals[name])

    def place(self, content) -> int:
        return int(self.rng.integers(len(content)))

    def overwritten(self, start: int, name: str, content: bytearray, new: bytes):
        content[start : start + len(new)] = new[: len(content) - start]
        return name, content

    def truncated_file(self):
        name, content = self.any_of_the_run()
        return name, content[: self.place(content)]

    def lengthened_file(self):
        name = self.choose(LAST, BEST, CONFIG)  # a killed run leaves a metrics.jsonl that is longer
        return name, self.originals[name] + self.rng.bytes(int(self.rng.integers(1, 100)))

    def flipped_bit_file(self):
        name, content = self.any_of_the_run()
        content[self.place(content)] ^= 1 << int(self.rng.integers(8))
        return name, content

    def overwritten_file(self):
        name, content = self.any_of_the_run()
        new = self.rng.bytes(int(self.rng.integers(1, 64)))
        return self.overwritten(self.place(content), name, content, new)

    def lost_block_file(self):  # never reached the disk
        name, content = self.any_of_the_run()
        return self.overwritten(self.place(content) // 512 * 512, name, content, bytes(512))

    def swapped_parts_file(self):
        name, content = self.any_of_the_run()
        start, stop = sorted(self.rng.integers(len(content), size=2))
        return name, content[stop:] + content[start:stop] + content[:start]

    def foreign_file(self):
        name = self.choose(LAST, BEST, METRICS, CONFIG)
        noise = self.rng.bytes(int(self.rng.integers(200)))
        array = {"x": self.rng.standard_normal(3).astype(np.float32)}
        others = safetensors.numpy.save(array), safetensors.numpy.save(array, {"format": "pt"})
        return name, self.choose(noise, b"\x80\x04\x95" + noise, b"\x89PNG\r\n" + noise, *others)

    def lying_header(self):
        name = self.choose(LAST, BEST)
        file = self.originals[name]
        length = int.from_bytes(file[:8], "little")
        header, data = json.loads(file[8 : 8 + length]), file[8 + length :]
        tensor = header[self.choose(*(key for key in header if key != "__metadata__"))]
        start, stop = tensor["data_offsets"]
        far = int(self.rng.integers(1, 2**40))
        shapes = [far, far], [far], [2**62, 2**62, 4], [-far], [stop - start]
        places = [start, stop + far], [start + far, stop + far], [stop, start]
        dtype = self.choose("F64", "BF16", "F16", "I32", "U8", "F8_E4M3", "X")
        lies = [{"shape": shape} for shape in shapes]
        lies += [{"data_offsets": place} for place in (*places, [0, stop - start + 4])]
        tensor.update(self.choose(*lies, {"dtype": dtype}, {"shape": "x", "far": far}))
        text = json.dumps(header).encode()
        return name, len(text).to_bytes(8, "little") + text + data

    def wrong_length_header(self):
        name = self.choose(LAST, BEST)
        length = self.choose(self.rng.bytes(8), int(self.rng.integers(10**5)).to_bytes(8, "little"))
        return name, length + self.originals[name][8:]

    def deep_content(self):  # more deeply than a parser may go
        depth, name = int(self.rng.integers(2000, 10**5)), self.choose(LAST, BEST, CONFIG)
        deep = "[" * depth + "]" * depth
        if name == CONFIG:
            return name, deep.encode()
        return name, safetensors.numpy.save({}, {"numformer": deep})

    def sealed(self, name: str, change: Callable[[dict, dict], None]) -> tuple[str, bytes]:
        tensors, metadata = load_checkpoint(self.folder / name)
        change(tensors, metadata)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            save_checkpoint(path, tensors, metadata)
            return name, path.read_bytes()

    def wrong_metadata_content(self):
        name = self.choose(LAST, BEST)
        keys = "config best format model".split()
        if name == LAST:
            keys += "recipe seed steps parts task step losses metrics seconds".split()
        # No losses, or a few, are what a run may have since its last line.
        may_be = {"losses": ([], [1, 2]), "seconds": (0.5, 10**30)}
        key = self.choose(*keys)

        def change(tensors, metadata):
            junk = [value for value in JUNK if value not in may_be.get(key, ())]
            metadata[key] = copy.deepcopy(self.choose(*junk))
            if self.rng.integers(4) == 0 and key != "seconds":  # which older files do not tell
                del metadata[key]

        return self.sealed(name, change)

    def giant_config_content(self):
        def change(tensors, metadata):
            for key in self.rng.choice(SIZES, self.rng.integers(1, 4), replace=False):
                metadata["config"][key] = int(10 ** self.rng.uniform(3, 18))
            metadata["config"]["positions"] = "learned"

        return self.sealed(self.choose(LAST, BEST), change)

    def wrong_config_content(self):
        name = self.choose(LAST, BEST)

        def change(tensors, metadata):
            key = self.choose(*metadata["config"], "rotary")
            other = [junk for junk in JUNK if junk != metadata["config"].get(key)]
            metadata["config"][key] = copy.deepcopy(self.choose(*other))

        return self.sealed(name, change)

    def wrong_tensor_content(self):
        def change(tensors, metadata):
            key = self.choose(*tensors)
            array = tensors.pop(key)
            other = f"{key}\n{self.place(array)}"
            longer, empty = np.append(array, np.float32(1)), np.zeros((0, *array.shape), "f4")
            cast = array.astype(self.choose("f8", "f2", "i4", "i8", "u1", "?"))
            alone = [{key: x} for x in (array[None], longer, empty, cast)]
            tensors.update(self.choose({}, {key: array, other: array}, {other: array}, *alone))

        return self.sealed(self.choose(LAST, BEST), change)

    def broken_numbers_content(self):
        def change(tensors, metadata):
            key = self.choose(*tensors)
            values = [np.nan, np.inf, -np.inf] + [-1] * (key == "optimizer.square")
            tensors[key].flat[self.place(tensors[key].ravel())] = self.choose(*values)

        return self.sealed(self.choose(LAST, BEST), change)


KINDS = [kind for kind in vars(Bad) if kind.endswith(("_file", "_header", "_content"))]


def content(name: str, file: bytes):
    """What a file says, where it can be read: so that a change of spaces is not counted as bad."""
    with contextlib.suppress(Exception):
        if name == CONFIG:
            return json.loads(file)
        if name != METRICS:
            length = int.from_bytes(file[:8], "little")
            header = json.loads(file[8 : 8 + length])
            metadata = json.loads(header.pop("__metadata__")["numformer"])
            metadata.pop("crc32")  # which also tells in what order the metadata stand
            return json.dumps(metadata, sort_keys=True), header, file[8 + length :]
    return bytes(file)


class Falling(SequenceTask):
    """The reverse task with measures that fall, so that the best is not the last."""

    measured = 1.0

    def evaluate(self, model) -> dict[str, float]:
        self.measured /= 2
        return {"exact_match": self.measured}


TRIED = """--steps 6 --evaluate-every 2 --log-every 1 --batch-size 4 --d-model 8 --d-ff 12 --heads 2
--layers 1 --seed 5 --no-plots""".split()


def resume(task: SequenceTask, *flags) -> None:
    """What the script does up to the end of training, in this process."""
    parser = build_parser("reverse", "", Transformer, **DEFAULTS)
    options = parse_options(parser, lambda options: "reverse", list(map(str, flags)))
    symbols = len(task.text.source)
    config = settings_from(options, Config, source_vocabulary=symbols, target_vocabulary=symbols)
    with contextlib.redirect_stdout(io.StringIO()):
        train_task(task, Transformer, config, options)


@contextlib.contextmanager
def little_memory(mib: int = 512):
    """Within the block this process can take no more than `mib` MiB beyond what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def complaint(function: Callable, *arguments) -> str | None:
    """None where `function` refuses with an InputError, otherwise what it did instead."""
    try:
        function(*arguments)
    except InputError:
        return None
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:300]
    return "accepted"


def refuse_bad_files(count: int, rng: np.random.Generator, folder: Path) -> tuple[int, int]:
    """Try `count` bad files of each kind -> how many were refused, and how many there were."""
    run, task = folder / "tried", Falling(reverse.RULE, 4, 5)
    resume(task, *TRIED, "--out", run)
    bad, refused = Bad(run, rng), 0
    with little_memory(), tqdm(total=count * len(KINDS), disable=not sys.stderr.isatty()) as bar:
        for named in KINDS:
            kind = getattr(bad, named)
            bar.set_description(named)
            for _ in range(count):
                name, new = kind()
                while content(name, new) == content(name, bad.originals[name]):
                    name, new = kind()
                (run / name).write_bytes(new)
                before = state(run)
                wrong = complaint(resume, task, "--resume", "--out", run)
                if not wrong and name == BEST:
                    wrong = complaint(load_model, run / BEST)
                    # A model alone does not need all that a run says.
                    if wrong == "accepted" and named.startswith(("wrong_config", "wrong_metadata")):
                        wrong = None
                if state(run) != before:
                    wrong = "changed the folder"
                if wrong:
                    tqdm.write(f"{named} of {name}: {wrong}")
                refused += not wrong
                for file, original in bad.originals.items():
                    (run / file).write_bytes(original)
                bar.update()
    return refused, count * len(KINDS)


def state(folder: Path) -> dict:
    """What tells whether any file in a folder was written, made or removed."""
    files = {path: path.stat() for path in folder.iterdir()}
    return {p.name: (at.st_mtime_ns, at.st_ino, p.read_bytes()) for p, at in files.items()}


def main(arguments: list[str] | None = None) -> int:
    flags = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    for name, default in {"--kills": 40, "--bad-files": 500, "--seed": 1}.items():
        flags.add_argument(name, type=int, default=default, help=f"default: {default}")
    flags.add_argument("--mpi", action="store_true", help="kill ranks; no bad files")
    options = flags.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        if options.mpi:
            how = functools.partial(ranks.start, rng), functools.partial(ranks.strike, rng)
            survived, hits = survive_kills(options.kills, rng, Path(folder), ranks.KILLED, *how)
            print("hits while it " + ", ".join(f"{at}s {number}" for at, number in hits.items()))
            print(f"survived {survived} of {options.kills} kills of a rank")
            return 0 if survived == options.kills else 1
        survived, hits = survive_kills(options.kills, rng, Path(folder))
        print("kills while it " + ", ".join(f"{at}s {number}" for at, number in hits.items()))
        refused, tried = refuse_bad_files(options.bad_files, rng, Path(folder))
    print(f"survived {survived} of {options.kills} kills, {refused} of {tried} bad files refused")
    return 0 if (survived, refused) == (options.kills, tried) else 1


if __name__ == "__main__":
    sys.exit(main())
