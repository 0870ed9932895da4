"""Writing: numformer against `generate` of Hugging Face transformers.

    python -m tests.benchmarks.decode [--sizes tiny base gpt gpt2] [--batches 1 16 64]

Models of the same sizes with random weights read and write 30 symbols. Each library runs in its own
process with one thread, and the two take turns. Compared are medians of processor time, as tokens a
second. Needs torch and transformers (pip install torch transformers).
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from numformer.allocator import reuse_freed_memory
from numformer.data.vocabulary import END, UNKNOWN
from numformer.generation import beam_search, greedy
from numformer.layer import pack
from numformer.models import Config, LanguageModel, Transformer
from tests.benchmarks.sizes import SIZES as TRAINED
from tests.benchmarks.sizes import Size
from tests.benchmarks.worker import Worker

LENGTH, ROUNDS = 30, 7  # symbols read, and written; measurements


SIZES = {name: TRAINED[name] for name in ("tiny", "base", "gpt")}
SIZES["gpt2"] = Size(50257, 256, 4, 4, 1024, 64, LENGTH, "gpt")


def inputs_for(size: Size, batch: int) -> np.ndarray:
    """Random ids (B, LENGTH); for an encoder the last one is the end id."""
    ids = np.random.default_rng(0).integers(UNKNOWN + 1, size.V, (batch, LENGTH))
    if size.model == "transformer":
        ids[:, -1] = END
    return ids


def numformer_writer(size: Size) -> Callable:
    reuse_freed_memory()
    sizes = dict(d_model=size.D, heads=size.heads, layers=size.layers, d_ff=size.F)
    if size.model == "gpt":
        settings = dict(norm="pre", activation="gelu", positions="learned", max_length=2 * LENGTH)
        model = LanguageModel(LanguageModel.Config(vocabulary=size.V, **sizes, **settings))
    else:
        model = Transformer(Config.base(size.V, **sizes))
    pack(model)
    step = model.step

    def step_without_end(ids, state):
        logits = step(ids, state)
        logits[:, END] = np.finfo(logits.dtype).min
        return logits

    model.step = step_without_end

    def write(ids: np.ndarray, beam: int):
        if beam == 1:
            return greedy(model, ids, LENGTH)
        return beam_search(model, ids, LENGTH, beam)

    return write


def transformers_writer(size: Size) -> Callable:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)
    ends = dict(pad_token_id=0, eos_token_id=END, bos_token_id=1)
    if size.model == "gpt":
        sizes = dict(n_embd=size.D, n_head=size.heads, n_layer=size.layers, n_inner=size.F)
        config = GPT2Config(vocab_size=size.V, n_positions=2 * LENGTH, **sizes, **ends)
        model = GPT2LMHeadModel(config)
    else:
        sizes = {
            f"{side}_{name}": number
            for side in ("encoder", "decoder")
            for name, number in (
                ("layers", size.layers),
                ("attention_heads", size.heads),
                ("ffn_dim", size.F),
            )
        }
        ends |= dict(decoder_start_token_id=1, forced_eos_token_id=None)
        model = MarianMTModel(MarianConfig(vocab_size=size.V, d_model=size.D, **sizes, **ends))
    model.eval()

    def write(ids: np.ndarray, beam: int):
        inputs = torch.from_numpy(ids)
        settings = dict(min_new_tokens=LENGTH, max_new_tokens=LENGTH, num_beams=beam)
        with torch.inference_mode():
            mask = torch.ones_like(inputs)
            return model.generate(inputs, attention_mask=mask, do_sample=False, **settings)

    return write


WRITERS = {"numformer": numformer_writer, "transformers": transformers_writer}


def work(library: str, name: str) -> None:
    """Answer each line "batch beam" on standard input with the seconds that writing took."""
    size = SIZES[name]
    write = WRITERS[library](size)
    for line in sys.stdin:
        batch, beam = map(int, line.split())
        ids, start = inputs_for(size, batch), time.process_time()
        write(ids, beam)
        print(time.process_time() - start, flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.decode")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5], help="1 is greedy")
    words = [*WRITERS, *SIZES]
    parser.add_argument("--worker", nargs=2, choices=words, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(*options.worker)
    for package in ("torch", "transformers"):
        if not importlib.util.find_spec(package):
            parser.error(f"numformer is compared with transformers: pip install {package}")
    print("tokens a second\n| size | batch | beam |", " | ".join(WRITERS), "| ratio |")
    print("|---" * 6 + "|", flush=True)
    for name in options.sizes:
        workers = {library: Worker("decode", library, name, threads=1) for library in WRITERS}
        for beam in options.beams:
            for batch in options.batches:
                rates = {library: [] for library in WRITERS}
                for _ in range(ROUNDS + 1):
                    for library, worker in workers.items():
                        rates[library].append(batch * LENGTH / worker.ask(batch, beam))
                medians = [statistics.median(rates[library][1:]) for library in WRITERS]
                row = [name, str(batch), str(beam), *(f"{rate:,.0f}" for rate in medians)]
                print("|", " | ".join(row), f"| {medians[0] / medians[1]:.2f} |", flush=True)
        for worker in workers.values():
            worker.end()


if __name__ == "__main__":
    main()
