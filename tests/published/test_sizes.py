"""numformer count: the parameters of published models, from their configs alone."""

import json
import tracemalloc

import numpy as np
import pytest
from published_cases import CASES, RandomModel

import numformer as nf
from numformer import __main__, sizes
from numformer.published.kinds import KINDS


def gpt2(width: int, layers: int, heads: int) -> dict:
    sizes = dict(vocab_size=50257, n_embd=width, n_layer=layers, n_head=heads, n_positions=1024)
    return dict(model_type="gpt2", activation_function="gelu_new") | sizes


def llama(
    vocabulary: int, width: int, inner: int, layers: int, heads: int, groups: int, **further
) -> dict:
    """A Llama, or another kind with the same settings."""
    sizes = dict(vocab_size=vocabulary, hidden_size=width, intermediate_size=inner)
    sizes |= dict(num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=groups)
    return dict(model_type="llama", max_position_embeddings=4096) | sizes | further


def bert(vocabulary: int, width: int, layers: int, heads: int) -> dict:
    sizes = dict(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads)
    sizes |= dict(intermediate_size=4 * width, max_position_embeddings=512, hidden_act="gelu")
    return dict(model_type="bert", vocab_size=vocabulary) | sizes


def pythia(vocabulary: int, width: int, layers: int, heads: int) -> dict:
    return bert(vocabulary, width, layers, heads) | dict(model_type="gpt_neox")


def t5(width: int, inner: int, layers: int, heads: int, head: int = 64, **further) -> dict:
    sizes = dict(d_model=width, d_ff=inner, num_layers=layers, num_heads=heads, d_kv=head)
    return dict(model_type="t5", vocab_size=32128) | sizes | further


def vit(width: int, layers: int, heads: int) -> dict:
    sizes = dict(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads)
    sizes |= dict(intermediate_size=4 * width, image_size=224, patch_size=16, hidden_act="gelu")
    return dict(model_type="vit", id2label=dict.fromkeys(range(1000), "")) | sizes


TIED = dict(tie_word_embeddings=True)
T5_1_1 = dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu")
QWEN2 = dict(model_type="qwen2")
MIXTRAL = dict(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
GEMMA = dict(model_type="gemma", head_dim=256, hidden_activation="gelu_pytorch_tanh")
GEMMA2 = dict(model_type="gemma2", head_dim=256, hidden_activation="gelu_pytorch_tanh")
DISTILBERT = dict(model_type="distilbert", vocab_size=30522, dim=768, n_layers=6, n_heads=12)
DISTILBERT |= dict(hidden_dim=3072, max_position_embeddings=512, activation="gelu")

PUBLISHED: dict[str, tuple[int, dict]] = {
    "gpt2": (124_439_808, gpt2(768, 12, 12)),
    "gpt2-medium": (354_823_168, gpt2(1024, 24, 16)),
    "gpt2-large": (774_030_080, gpt2(1280, 36, 20)),
    "gpt2-xl": (1_557_611_200, gpt2(1600, 48, 25)),
    "bert-base-uncased": (109_514_298, bert(30522, 768, 12, 12)),
    "bert-large-uncased": (335_174_458, bert(30522, 1024, 24, 16)),
    "bert-base-cased": (108_340_804, bert(28996, 768, 12, 12)),
    "distilbert-base-uncased": (66_985_530, DISTILBERT),
    "t5-small": (60_506_624, t5(512, 2048, 6, 8)),
    "t5-base": (222_903_552, t5(768, 3072, 12, 12)),
    "t5-large": (737_668_096, t5(1024, 4096, 24, 16)),
    "t5-3b": (2_851_598_336, t5(1024, 16384, 24, 32, 128)),
    "t5-11b": (11_307_321_344, t5(1024, 65536, 24, 128, 128)),
    "flan-t5-small": (76_961_152, t5(512, 1024, 8, 6, **T5_1_1)),
    "flan-t5-base": (247_577_856, t5(768, 2048, 12, 12, **T5_1_1)),
    "flan-t5-large": (783_150_080, t5(1024, 2816, 24, 16, **T5_1_1)),
    "flan-t5-xl": (2_849_757_184, t5(2048, 5120, 24, 32, **T5_1_1)),
    "flan-t5-xxl": (11_135_332_352, t5(4096, 10240, 24, 64, **T5_1_1)),
    "vit-base-patch16-224": (86_567_656, vit(768, 12, 12)),
    "deit-tiny-distilled-patch16-224": (5_910_800, vit(192, 12, 3) | dict(model_type="deit")),
    "clip-vit-base-patch32": (151_277_313, dict(model_type="clip")),
    "Llama 2 7B": (6_738_415_616, llama(32000, 4096, 11008, 32, 32, 32)),
    "Llama 2 13B": (13_015_864_320, llama(32000, 5120, 13824, 40, 40, 40)),
    "Llama 2 70B": (68_976_648_192, llama(32000, 8192, 28672, 80, 64, 8)),
    "Llama 3 8B": (8_030_261_248, llama(128256, 4096, 14336, 32, 32, 8)),
    "Llama 3 70B": (70_553_706_496, llama(128256, 8192, 28672, 80, 64, 8)),
    "Llama 3.1 405B": (405_853_388_800, llama(128256, 16384, 53248, 126, 128, 8)),
    "Llama 3.2 1B": (1_235_814_400, llama(128256, 2048, 8192, 16, 32, 8, **TIED)),
    "Llama 3.2 3B": (3_212_749_824, llama(128256, 3072, 8192, 28, 24, 8, **TIED)),
    "Mistral 7B": (7_241_732_096, llama(32000, 4096, 14336, 32, 32, 8, model_type="mistral")),
    "Mixtral 8x7B": (46_702_792_704, llama(32000, 4096, 14336, 32, 32, 8, **MIXTRAL)),
    "Qwen2 0.5B": (494_032_768, llama(151936, 896, 4864, 24, 14, 2, **QWEN2, **TIED)),
    "Qwen2 1.5B": (1_543_714_304, llama(151936, 1536, 8960, 28, 12, 2, **QWEN2, **TIED)),
    "Qwen2 7B": (7_615_616_512, llama(152064, 3584, 18944, 28, 28, 4, **QWEN2)),
    "Gemma 2B": (2_506_172_416, llama(256000, 2048, 16384, 18, 8, 1, **GEMMA)),
    "Gemma 7B": (8_537_680_896, llama(256000, 3072, 24576, 28, 16, 16, **GEMMA)),
    "Gemma 2 2B": (2_614_341_888, llama(256000, 2304, 9216, 26, 8, 4, **GEMMA2)),
    "Gemma 2 9B": (9_241_705_984, llama(256000, 3584, 14336, 42, 16, 8, **GEMMA2)),
    "Pythia 70M": (70_426_624, pythia(50304, 512, 6, 8)),
    "Pythia 1.4B": (1_414_647_808, pythia(50304, 2048, 24, 16)),
    "Pythia 12B": (11_846_072_320, pythia(50688, 5120, 36, 40)),
}
"""The numbers of parameters that the models' pages and transformers give, and their settings."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name, tmp_path, call):
    count, values = PUBLISHED[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    code, out, err = call(__main__.main, f"count {path}")
    assert (code, err) == (0, []) and out[0] == f"{values['model_type']}: {count:,} parameters"
    parts = [int(line.split()[1].replace(",", "")) for line in out[1:] if line[0] == " "]
    assert sum(parts) == count


def counted(call, path, *others: str) -> list[str]:
    code, out, err = call(__main__.main, f"count {path}", *others)
    assert (code, err) == (0, [])
    return out


def test_what_is_printed(tmp_path, call):
    """For GPT-2: 2 FLOPs for each of 12 (4 + 8) 768^2 + 50257 768 entries of matrices."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(gpt2(768, 12, 12)))
    assert counted(call, path) == [
        "gpt2: 124,439,808 parameters",
        "  positions                786,432    0.6%",
        "  attention             28,348,416   22.8%",
        "  feed_forward          56,669,184   45.5%",
        "  norm                      38,400    0.0%",
        "  embedding             38,597,376   31.0%",
        "memory to train, besides a batch: 1.99 GB",
        "memory to answer: 498 MB, and 73.7 kB for each position",
        "a position of the text: 247 MFLOPs, and 36.9 kFLOPs for each position that it sees",
        "training takes three times as many FLOPs",
    ]
    assert 2 * (12 * 12 * 768**2 + 50257 * 768) == 247_064_064 and 12 * 2 * 768 * 4 == 73_728
    path.write_text(json.dumps(PUBLISHED["Llama 3.1 405B"][1]))
    tracemalloc.start()
    out, (_, peak) = counted(call, path), tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000 and "memory to train, besides a batch: 6.49 TB" in out


def test_an_encoder_decoder_reads_and_writes():
    """Keys and values of cross-attention are computed once, for the source."""
    config = KINDS["t5"].model.Config(
        **KINDS["t5"].config(sizes.ForeignConfig(t5(16, 24, 2, 2, head=6, num_decoder_layers=3)))
    )
    attention, network = 4 * 16 * 12, 2 * 16 * 24
    found = sizes.sizes_of(nf.Transformer, config)
    assert found.read == 2 * (2 * (attention + network) + 3 * attention // 2)
    assert found.written == 2 * (3 * (attention + attention // 2 + network) + 16 * 32128)
    assert (found.seen, found.kept) == (3 * 4 * 12, 3 * 2 * 12 * 4)


def test_a_recurrent_model_is_counted_by_its_parts(tmp_path, call):
    """A cell has one matrix for each input and each of its three gates."""
    for context, both in ("attention", 2), ("fixed", 1):
        kind = nf.RecurrentEncoderDecoder
        config = kind.Config(source_vocabulary=7, target_vocabulary=9, d_model=4, context=context)
        cell, square, attends = 3 * 4 * 4, 4 * 4, both == 2
        attention = {"attention": 3 * square + 4} if attends else {}
        found, output = sizes.sizes_of(kind, config), (3 if attends else 1) * square
        parts = {
            "embedding": (7 + 9) * 4,
            "encoder": both * (2 * cell + 3 * 4),
            "decoder": square + 4 + (2 + both) * cell + 3 * 4,
            "output": output + 4,
        } | attention
        assert found.parts == parts | {"total": sum(parts.values())}
        assert found.read == 2 * (both * 2 * cell + attends * 2 * square)
        query = attends * (square + 4)
        assert found.written == 2 * (square + (2 + both) * cell + query + output + 9 * 4)
        nf.save_model(tmp_path / "best.safetensors", kind(config))
        written = f"a position of the text: {found.written} FLOPs"
        assert written in counted(call, tmp_path)  # without "0 FLOPs for each position"


def test_chosen_experts_compute(tmp_path):
    few, all_of_them = (
        sizes.sizes_of(nf.LanguageModel, RandomModel("m", CASES["mixtral"] | chosen).model.config)
        for chosen in (dict(num_experts_per_tok=1), dict(num_experts_per_tok=3))
    )
    assert few.parts == all_of_them.parts and few.kept == 2 * 2 * 8 * 4
    assert all_of_them.written - few.written == 2 * 2 * (2 * 3 * 16 * 24)  # layers, further experts


def test_a_dual_encoder_reads_images_and_texts():
    """The matrices that map one vector of each are counted with the texts."""
    found = sizes.sizes_of(nf.DualEncoder, RandomModel("clip", CASES["clip"]).model.config)
    texts, images = (2 * 2 * (4 * width**2 + 2 * 24 * width) for width in (12, 16))
    assert found.read == images + 2 * 3 * 4 * 4 * 16
    assert found.written == texts + 2 * 10 * (12 + 16)
    assert (found.seen, found.kept) == (2 * 4 * 12, 0)


@pytest.mark.parametrize("name", ["bert_bare", "llama_bare", "vit_bare"])
def test_a_model_without_a_head_is_counted(name, tmp_path, call):
    """Its class tells, or the config of a run; only decoders keep keys and values."""
    bare = RandomModel(name, CASES[name], np.float32)
    folder = bare.save(tmp_path / "published")
    total = bare.model.parameter_counts()["total"]
    for path in () if name == "vit_bare" else (folder, folder / "config.json"):
        out = counted(call, path)
        assert out[0] == f"{CASES[name]['model_type']}: {total:,} parameters", path
        assert ("for each position" in out[-3]) == (name == "llama_bare"), out
    nf.save_model(tmp_path / "best.safetensors", bare.model)
    assert f"{total:,} parameters" in counted(call, tmp_path / "best.safetensors")[0]


def test_a_class_with_a_head_is_counted_with_it(tmp_path, call):
    values = CASES["gpt2_untied"]
    total = RandomModel("gpt2", values).model.parameter_counts()["total"]
    values = values | dict(architectures=["GPT2LMHeadModel"])
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert counted(call, tmp_path / "config.json")[0] == f"gpt2: {total:,} parameters"


def test_a_run_is_counted(tmp_path, call):
    gpt = RandomModel("gpt2", CASES["gpt2"], np.float32).model
    nf.save_model(tmp_path / "best.safetensors", gpt)
    for name in "config.json", "metrics.jsonl":
        (tmp_path / name).write_text("{}")
    lines = counted(call, tmp_path)
    assert lines == counted(call, tmp_path / "config.json")
    assert lines[0] == f"LanguageModel: {gpt.parameter_counts()['total']:,} parameters"
    assert lines == counted(call, tmp_path / "best.safetensors")
    assert gpt.tower.norm.gamma.data.flags.writeable and nf.Parameter([1.0]).data == 1.0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "config.json, which is not there. Name the folder"),
        ("{", "config.json (Expecting"),
        ('{"model_type": "resnet"}', "model_type 'resnet' in"),
        ('{"model_type": "gpt2", "n_embd": 16}', "one without "),
        (json.dumps(gpt2(16, 10**9, 2)), "n_layer is at most 10,000; received 1,000,000,000"),
        (json.dumps(gpt2(16, 2, 2) | dict(vocab_size="x")), "vocab"),
    ],
)
def test_what_is_no_config_is_refused_in_one_line(content, words, tmp_path, call):
    path = tmp_path / "config.json"
    if content:
        path.write_text(content)
    code, out, err = call(__main__.main, f"count {path}")
    assert code == 2 and not out and len(err) == 1 and words in err[0], err
    assert nf.Parameter([1.0]).data.flags.writeable


def test_the_command_is_listed_and_says_what_it_takes(call):
    for flags in "", "--help":
        assert any("numformer count CONFIG.json" in line for line in call(__main__.main, flags)[1])
    code, out, _ = call(__main__.main, "count --help")
    assert code == 0 and any("a config.json, or a run" in line for line in out)


def test_amounts_have_three_digits():
    numbers = {5.0: "5 B", 999.0: "999 B", 1000.0: "1 kB", 61440.0: "61.4 kB", 2.5e15: "2.5e+03 TB"}
    assert {n: sizes._amount(n, "B") for n in numbers} == numbers
