"""Small published models of every kind and option, with random weights and inputs.

Each is a model of ours and a folder that transformers opens, to compute logits and gradients in
float64.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import numformer as nf
from numformer.published.configs import ForeignConfig
from numformer.published.kinds import KINDS
from numformer.published.saving import save_published

V, B, S, T = 50, 3, 7, 6
PAD = {"marian": V - 1, "t5": 0, "bert": 0}
MARIAN: dict[str, Any] = dict(
    model_type="marian", vocab_size=V, d_model=16, encoder_layers=2, decoder_layers=2
) | dict(
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    activation_function="swish",
    scale_embedding=True,
    max_position_embeddings=32,
    pad_token_id=V - 1,
    decoder_start_token_id=V - 1,
    eos_token_id=0,
    bad_words_ids=[[V - 1]],
    forced_eos_token_id=None,
)
TWO = dict(decoder_vocab_size=V + 7, share_encoder_decoder_embeddings=False)
GPT2: dict[str, Any] = dict(
    model_type="gpt2", vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=24
) | dict(activation_function="gelu_new", bos_token_id=3, eos_token_id=3)
LLAMA: dict[str, Any] = dict(
    model_type="llama", vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=4
) | dict(num_key_value_heads=2, intermediate_size=24, hidden_act="silu", rms_norm_eps=1e-6)
LLAMA |= dict(bos_token_id=1, eos_token_id=2)
T5: dict[str, Any] = dict(
    model_type="t5", vocab_size=V, d_model=16, num_layers=2, num_decoder_layers=2, num_heads=2
) | dict(d_kv=6, d_ff=24, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=6)
BERT: dict[str, Any] = dict(
    model_type="bert", vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
) | dict(intermediate_size=24, max_position_embeddings=24, hidden_act="gelu", pad_token_id=0)
VIT: dict[str, Any] = dict(
    model_type="vit", hidden_size=16, num_hidden_layers=2, num_attention_heads=2
) | dict(intermediate_size=24, image_size=12, patch_size=4, num_channels=3, hidden_act="gelu")
VIT |= dict(id2label={str(n): str(n) for n in range(5)})

CASES: dict[str, dict[str, Any]] = {
    "marian": MARIAN,
    "marian_of_unequal_towers": MARIAN | dict(decoder_layers=1, activation_function="relu"),
    "marian_without_scale": MARIAN | dict(scale_embedding=False, activation_function="gelu"),
    "marian_of_two_vocabularies": MARIAN | TWO,
    "marian_of_two_vocabularies_untied": MARIAN | TWO | dict(tie_word_embeddings=False),
    "gpt2": GPT2,
    "gpt2_untied": GPT2 | dict(tie_word_embeddings=False, n_inner=20),
    "gpt2_of_another_epsilon": GPT2 | dict(layer_norm_epsilon=1e-2, activation_function="relu"),
    "llama": LLAMA,
    "llama_tied": LLAMA | dict(tie_word_embeddings=True, num_key_value_heads=4),
    "llama_with_biases": LLAMA | dict(attention_bias=True, mlp_bias=True, num_key_value_heads=1),
    "llama_of_long_texts": LLAMA
    | dict(rope_parameters=dict(rope_theta=5e5, rope_type="default"), head_dim=6),
    "llama_of_several_ends": LLAMA | dict(eos_token_id=[2, 4, 8, 24, 25]),
    "t5": T5,
    "t5_untied_gated": T5 | dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu"),
    "t5_of_unequal_towers": T5 | dict(num_decoder_layers=1, layer_norm_epsilon=1e-3),
    "bert": BERT,
    "bert_relu": BERT | dict(hidden_act="relu", layer_norm_eps=1e-3, type_vocab_size=3),
    "bert_that_relates": BERT | dict(architectures=["BertForPreTraining"]),
    "vit": VIT,
    "vit_grey": VIT | dict(num_channels=1, patch_size=6, layer_norm_eps=1e-3),
}


@dataclass
class RandomModel:
    """A model of ours for a config.json, with random weights, inputs and dlogits.

    `values` is the content of the config.json, `foreign_inputs` are the inputs for transformers.
    """

    name: str
    values: dict[str, Any]
    dtype: type = np.float64
    foreign_inputs: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        kind, rng = KINDS[self.values["model_type"]], np.random.default_rng(7)
        self.has_relations = self.values.get("architectures") == ["BertForPreTraining"]
        foreign = ForeignConfig(self.values, ["cls.seq_relationship.weight"] * self.has_relations)
        self.kind, config = kind, kind.model.Config(**kind.config(foreign))
        self.model: Any = kind.model(config, 1)
        nf.pack(self.model, self.dtype)
        for name, parameter in self.model.named_parameters().items():
            centre = float(name.endswith("gamma"))
            parameter.data[...] = centre + 0.3 * rng.standard_normal(parameter.shape)
        self.inputs = getattr(self, f"_{self.values['model_type']}_inputs")(rng)
        with nf.inference():
            shape = self.model.forward(*self.inputs).shape
        self.dlogits = rng.standard_normal(shape).astype(self.dtype)
        self.drelations = rng.standard_normal((B, 2)).astype(self.dtype)
        padding = PAD.get(self.values["model_type"])
        if self.values["model_type"] == "bert":  # the logits of padding do not count
            self.dlogits[self.inputs[0] == padding] = 0

    def _marian_inputs(self, rng) -> list[np.ndarray]:
        end, padding = self.values["eos_token_id"], self.values["pad_token_id"]
        source, target = rng.integers(4, V - 2, (B, S)), rng.integers(4, V - 2, (B, T))
        source[:, -1], target[:, 0] = end, padding
        source[1, 4:], source[1, 3] = padding, end
        self.foreign_inputs = dict(input_ids=source, decoder_input_ids=target)
        self.foreign_inputs["attention_mask"] = (source != padding).astype(int)
        return [source, target]

    _t5_inputs = _marian_inputs

    def _gpt2_inputs(self, rng) -> list[np.ndarray]:
        ids = rng.integers(0, V, (B, T))
        self.foreign_inputs = dict(input_ids=ids)
        return [ids]

    _llama_inputs = _gpt2_inputs

    def _bert_inputs(self, rng) -> list[Any]:
        ids, segments = rng.integers(4, V, (B, T)), rng.integers(0, 2, (B, T))
        ids[1, 4:] = 0
        self.foreign_inputs = dict(input_ids=ids, token_type_ids=segments)
        self.foreign_inputs["attention_mask"] = (ids != 0).astype(int)
        return [ids, None, segments]

    def _vit_inputs(self, rng) -> list[np.ndarray]:
        size, channels = self.values["image_size"], self.values["num_channels"]
        images = rng.standard_normal((B, size, size, channels))
        self.foreign_inputs = dict(pixel_values=images.transpose(0, 3, 1, 2))
        return [images]

    def save(self, folder: Path) -> Path:
        """Write the folder as it would be published."""
        save_published(folder, self.model, {"published": self.values})
        return folder

    def results(self) -> dict[str, np.ndarray]:
        """Logits and the gradient of every parameter, by our names."""
        self.model.zero_grad()
        with nf.mode(training=False):
            logits = self.model.forward(*self.inputs)
            self.model.backward(self.dlogits.copy())
            results = {"logits": logits}
            if self.has_relations:
                ids, _, segments = self.inputs
                results["relations"] = self.model.relation_logits(ids, segments)
                self.model.relation_logits_backward(self.drelations.copy())
        return results | {n: p.grad for n, p in self.model.named_parameters().items()}


class WritingModel(RandomModel):
    """A RandomModel whose texts end early or after `length` ids."""

    length = 12

    def __post_init__(self):
        super().__post_init__()
        output = self.model.output.weight.data
        output[self.model.config.special.end] = 1.5 * output[7]  # or few texts would end
