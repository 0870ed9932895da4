"""Loading a published model: seconds and memory, for a random model of the size of GPT-2 XL.

    python -m tests.benchmarks.published [--layers 48]

It writes 1.5 billion random bfloat16 numbers into several files of a temporary folder and loads
them in another process, whose peak memory is compared with the size of the numbers in float32.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

XL = dict(model_type="gpt2", vocab_size=50257, n_embd=1600, n_head=25, n_positions=1024)
XL |= dict(activation_function="gelu_new", bos_token_id=50256, eos_token_id=50256)
PART = 1 << 30  # bytes of a file, approximately


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """The arrays of a GPT-2 of this width, by name."""
    width = XL["n_embd"]
    arrays = {"wte.weight": (XL["vocab_size"], width), "wpe.weight": (XL["n_positions"], width)}
    for n in range(layers):
        for part, (rows, columns) in {
            "attn.c_attn": (width, 3 * width),
            "attn.c_proj": (width, width),
            "mlp.c_fc": (width, 4 * width),
            "mlp.c_proj": (4 * width, width),
        }.items():
            arrays |= {f"h.{n}.{part}.weight": (rows, columns), f"h.{n}.{part}.bias": (columns,)}
        for norm in ("ln_1", "ln_2"):
            arrays |= {f"h.{n}.{norm}.weight": (width,), f"h.{n}.{norm}.bias": (width,)}
    return arrays | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def write(folder: Path, layers: int) -> int:
    """Write a published model of random bfloat16 numbers; return how many they are."""
    (folder / "config.json").write_text(json.dumps(XL | dict(n_layer=layers)))
    parts: list[dict] = [{}]
    for name, shape in shapes(layers).items():
        if sum(2 * int(np.prod(other)) for other in parts[-1].values()) > PART:
            parts.append({})
        parts[-1][name] = shape
    bits = np.random.default_rng(0).integers(0x3C00, 0x3D00, 1 << 20).astype(np.uint16)
    index, total = {}, 0
    for number, part in enumerate(parts, 1):
        header, at = {}, 0
        for name, shape in part.items():
            size = 2 * int(np.prod(shape))
            header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
            at, total = at + size, total + size // 2
        path = folder / f"model-{number:05}-of-{len(parts):05}.safetensors"
        index |= dict.fromkeys(part, path.name)
        head = json.dumps(header).encode()
        with path.open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for _ in range(at // bits.nbytes):
                file.write(bits.data)
            file.write(bits.data[: (at % bits.nbytes) // 2])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return total


def load(folder: Path) -> None:
    """Load it; print the seconds, the peak memory of this process in bytes, and the parameters."""
    from numformer.trained import model_of_run

    start = time.perf_counter()
    model, _ = model_of_run(folder)
    seconds = time.perf_counter() - start
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(seconds, peak, sum(x.size for x in model.named_parameters().values()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.published")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        return load(options.load)
    with tempfile.TemporaryDirectory() as name:
        numbers = write(Path(name), options.layers)
        command = [sys.executable, "-m", "tests.benchmarks.published", "--load", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    seconds, peak, parameters = float(output[0]), int(output[1]), int(output[2])
    print(f"{parameters:,} parameters of {numbers:,} numbers, bfloat16, in {seconds:.1f} s")
    print(f"peak memory {peak / 2**20:,.0f} MiB, {peak / (4 * parameters):.2f} of float32's")


if __name__ == "__main__":
    main()
