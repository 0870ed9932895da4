"""Compare writing with numformer, CTranslate2, and `generate` of Hugging Face transformers.

    python -m tests.benchmarks.decode [--sizes tiny base gpt gpt2] [--batches 1 16 64]

Models of the same sizes with random weights read and write 30 symbols; in CTranslate2 they have
numformer's weights. Each library runs in its own process with one thread, and they take turns. The
table gives medians of tokens per second of processor time, and numformer's rate divided by each
other library's. Needs pip install ctranslate2 torch transformers.
"""

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from numformer.allocator import reuse_freed_memory
from numformer.data.vocabulary import END, START, UNKNOWN
from numformer.generation import beam_search, greedy
from numformer.layer import inference, pack
from numformer.models import Config, LanguageModel, Model, Transformer
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


def numformer_model(size: Size) -> Model:
    """A model that never writes the end id."""
    sizes = dict(d_model=size.D, heads=size.heads, layers=size.layers, d_ff=size.F)
    sizes |= dict(unwritten=(*range(UNKNOWN + 1),))
    if size.model == "gpt":
        settings = dict(norm="pre", activation="gelu", positions="learned", max_length=2 * LENGTH)
        model = LanguageModel(LanguageModel.Config(vocabulary=size.V, **sizes, **settings))
    else:
        model = Transformer(Config.base(size.V, **sizes))
    pack(model)
    return model


def numformer_writer(size: Size) -> Callable:
    reuse_freed_memory()
    model = numformer_model(size)

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


def ctranslate2_writer(size: Size) -> Callable:
    import ctranslate2
    from ctranslate2 import specs

    model, symbols = numformer_model(size), [*map(str, range(size.V))]
    symbols[START], symbols[END], symbols[UNKNOWN] = "<s>", "</s>", "<unk>"
    if gpt := size.model == "gpt":
        kind, settings = specs.TransformerDecoderModelSpec, dict(activation=specs.Activation.GELU)
        spec = kind.from_config(size.layers, size.heads, pre_norm=True, **settings)
        spec.register_vocabulary(symbols)
        pairs = [(spec.decoder, model.input, model.tower)]
        fill(spec.decoder.layer_norm, model.tower.norm)
    else:
        kind = specs.TransformerSpec
        spec = kind.from_config([size.layers] * 2, size.heads, pre_norm=False)
        spec.register_source_vocabulary(symbols)
        spec.register_target_vocabulary(symbols)
        pairs = [(spec.encoder, model.source, model.encoder)]
        pairs += [(spec.decoder, model.target, model.decoder)]
    for stack, *parts in pairs:
        fill_stack(stack, *parts)
    spec.decoder.projection.weight = model.output.weight.data.copy()
    spec.config.add_attribute("bos_token", "<s>")
    spec.validate()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        reader = ctranslate2.Generator if gpt else ctranslate2.Translator
        reader = reader(folder, device="cpu", intra_threads=1, compute_type="float32")

    def write(ids: np.ndarray, beam: int):
        texts = [[symbols[n] for n in row] for row in ids.tolist()]
        if gpt:
            limits = dict(min_length=LENGTH, max_length=LENGTH, include_prompt_in_result=False)
            return reader.generate_batch(texts, beam_size=beam, **limits)
        limits = dict(min_decoding_length=LENGTH, max_decoding_length=LENGTH)
        return reader.translate_batch(texts, beam_size=beam, **limits)

    return write


def fill_stack(spec, first, stack) -> None:
    """Copy the weights of an input embedding and of a stack's layers to CTranslate2's parts."""
    for words in np.atleast_1d(spec.embeddings):
        words.weight = first.embedding.weight.data.copy()
    ids = np.zeros((1, 2 * LENGTH), int)
    with inference():
        x = first.embedding.forward(ids)
        spec.position_encodings.encodings = (first.positions.forward(x) - x)[0]
    for to, layer in zip(spec.layer, stack.layers, strict=True):
        attention, inner = layer.self_attention.sublayer, layer.feed_forward.sublayer
        own, ffn = to.self_attention, to.ffn
        fill(own.linear[0], attention.query, attention.key, attention.value)
        fill(own.linear[1], attention.output)
        fill(ffn.linear_0, inner.inner)
        fill(ffn.linear_1, inner.outer)
        fill(own.layer_norm, layer.self_attention.norm)
        fill(ffn.layer_norm, layer.feed_forward.norm)
        if hasattr(layer, "cross_attention"):
            attention = layer.cross_attention.sublayer
            fill(to.attention.linear[0], attention.query)
            fill(to.attention.linear[1], attention.key, attention.value)
            fill(to.attention.linear[2], attention.output)
            fill(to.attention.layer_norm, layer.cross_attention.norm)


def fill(spec, *layers) -> None:
    """Copy the weights of a norm, or of linear layers, which it transposes and joins."""
    if hasattr(spec, "gamma"):
        spec.gamma, spec.beta = layers[0].gamma.data.copy(), layers[0].beta.data.copy()
        return
    spec.weight = np.concatenate([layer.weight.data.T for layer in layers])
    if layers[0].bias:
        spec.bias = layers[0].bias.data.copy()


WRITERS = {
    "numformer": numformer_writer,
    "ctranslate2": ctranslate2_writer,
    "transformers": transformers_writer,
}
OTHERS = [name for name in WRITERS if name != "numformer"]


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
    for package in ("torch", *OTHERS):
        if not importlib.util.find_spec(package):
            parser.error(f"numformer is compared with {', '.join(OTHERS)}: pip install {package}")
    print("tokens a second\n| size | batch | beam |", " | ".join([*WRITERS, *OTHERS]), "|")
    print("|---" * (4 + 2 * len(OTHERS)) + "|", flush=True)
    for name in options.sizes:
        workers = {library: Worker("decode", library, name, threads=1) for library in WRITERS}
        for beam in options.beams:
            for batch in options.batches:
                rates = {library: [] for library in WRITERS}
                for _ in range(ROUNDS + 1):
                    for library, worker in workers.items():
                        rates[library].append(batch * LENGTH / worker.ask(batch, beam))
                ours, *others = [statistics.median(rates[library][1:]) for library in WRITERS]
                row = [name, str(batch), str(beam), *(f"{rate:,.0f}" for rate in (ours, *others))]
                ratios = [f"{ours / rate:.2f}" for rate in others]
                print("|", " | ".join(row + ratios), "|", flush=True)
        for worker in workers.values():
            worker.end()


if __name__ == "__main__":
    main()
