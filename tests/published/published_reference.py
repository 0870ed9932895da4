"""What transformers computes for the cases: logits and every gradient, by our names of parameters.

Its own roundings to float32 are lifted, and its rule that an embedding of padding is not trained.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import transformers
from published_cases import RandomModel

MODELS = {
    "marian": "MarianMTModel",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "bert": "BertForMaskedLM",
    "vit": "ViTForImageClassification",
}


def load(folder: Path, values: dict, dtype=torch.float64):
    """The model of a folder. Fails if an array is missing or unexpected."""
    (name,) = values.get("architectures", [MODELS[values["model_type"]]])
    kind: Any = getattr(transformers, name)
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    computed = {name for name in report["missing_keys"] if "embed_positions" in name}
    assert {*report["missing_keys"]} == computed
    assert not any(report[key] for key in ("unexpected_keys", "mismatched_keys", "error_msgs"))
    model = model.to(dtype).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    if dtype == torch.float64:
        for name, module in model.named_modules():
            if "RMSNorm" in type(module).__name__ or type(module).__name__ == "T5LayerNorm":
                module.forward = _rms_norm(module)
            if "RotaryEmbedding" in type(module).__name__:
                module.forward = _rotary(module, model.config)
            if name.endswith("embed_positions"):
                module.weight.data = _sinusoids(*module.weight.shape)
    return model


def _rms_norm(module):
    epsilon = getattr(module, "variance_epsilon", None) or module.eps

    def forward(x):
        return module.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)

    return forward


def _rotary(module, config):
    rope = getattr(config, "rope_parameters", None) or {}
    base = rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))
    size = config.head_dim

    def forward(x, position_ids):
        theta = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = position_ids[..., None].double() * theta
        both = torch.cat([angles, angles], dim=-1)
        return both.cos(), both.sin()

    return forward


def _sinusoids(length: int, width: int):
    angles = torch.arange(length).double()[:, None]
    angles = angles / 10000 ** (torch.arange(0, width, 2).double() / width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def results(example: RandomModel, folder: Path, dtype=torch.float64) -> dict[str, np.ndarray]:
    """Logits and gradients as RandomModel.results has them."""
    model = load(folder, example.values, dtype)
    inputs = {
        name: torch.from_numpy(array.copy()) for name, array in example.foreign_inputs.items()
    }
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias.requires_grad_()
    outputs = model(**inputs)
    logits = outputs.prediction_logits if example.has_relations else outputs.logits
    arrays = {"logits": logits.detach().numpy()}
    logits.backward(torch.from_numpy(example.dlogits).to(dtype), retain_graph=example.has_relations)
    if example.has_relations:
        outputs.seq_relationship_logits.backward(torch.from_numpy(example.drelations).to(dtype))
        arrays["relations"] = outputs.seq_relationship_logits.detach().numpy()
    gradients = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    if bias is not None:
        gradients["final_logits_bias"] = bias.grad.numpy()
    return arrays | by_our_names(example, gradients, model)


def by_our_names(example: RandomModel, gradients: dict, model) -> dict[str, np.ndarray]:
    """Gradients by our names and in our layouts; a scaled parameter has the inverse factor."""
    names = {}
    with contextlib.suppress(ImportError):
        names = _saved_names(model)
    gradients = {names.get(name, name): array for name, array in gradients.items()}
    parameters = example.model.named_parameters()
    ours: dict[str, np.ndarray] = {}
    for entry in example.kind.table(example.model.config).entries(parameters):
        if entry.ours[0] in ours or not all(name in gradients for name in entry.foreign):
            continue
        shapes = [parameters[name].shape for name in entry.ours]
        arrays = [gradients[name] for name in entry.foreign]
        ones = entry.read([np.ones_like(array) for array in arrays], shapes, example.model.config)
        values = entry.read(arrays, shapes, example.model.config)
        pairs = zip(entry.ours, values, ones, strict=True)
        ours |= {name: array / one**2 for name, array, one in pairs}
    return ours


def _saved_names(model) -> dict[str, str]:
    """The names in the file of parameters that have another name within the model."""
    return {
        name: name.replace("vit.layers.", "vit.encoder.layer.")
        .replace("attention.q_proj", "attention.attention.query")
        .replace("attention.k_proj", "attention.attention.key")
        .replace("attention.v_proj", "attention.attention.value")
        .replace("attention.o_proj", "attention.output.dense")
        .replace("mlp.fc1", "intermediate.dense")
        .replace("mlp.fc2", "output.dense")
        for name, _ in model.named_parameters()
        if name.startswith("vit.layers.")
    }
