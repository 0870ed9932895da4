"""What transformers computes for the cases: logits and every gradient, by our names of parameters.

Its own roundings to float32 are lifted, and its rule that an embedding of padding is not trained.
"""

import contextlib
import os
from pathlib import Path

import numpy as np

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import transformers
from published_cases import Drawn

MODELS = {
    "marian": "MarianMTModel",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "bert": "BertForMaskedLM",
    "vit": "ViTForImageClassification",
}


def opened(folder: Path, said: dict, dtype=torch.float64):
    """The model in a folder. Fails where one of its arrays was not there, or one too many."""
    (name,) = said.get("architectures", [MODELS[said["model_type"]]])
    of_kind = getattr(transformers, name)
    told = of_kind.from_pretrained(folder, output_loading_info=True)
    model, report = told
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
    told = getattr(config, "rope_parameters", None) or {}
    base = told.get("rope_theta", getattr(config, "rope_theta", 10000.0))
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


def computed(drawn: Drawn, folder: Path, dtype=torch.float64) -> dict[str, np.ndarray]:
    """Logits and gradients as Drawn.computed has them."""
    model = opened(folder, drawn.said, dtype)
    inputs = {name: torch.from_numpy(array.copy()) for name, array in drawn.theirs.items()}
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias.requires_grad_()
    outputs = model(**inputs)
    logits = outputs.prediction_logits if drawn.relates else outputs.logits
    told = {"logits": logits.detach().numpy()}
    logits.backward(torch.from_numpy(drawn.dlogits).to(dtype), retain_graph=drawn.relates)
    if drawn.relates:
        outputs.seq_relationship_logits.backward(torch.from_numpy(drawn.drelations).to(dtype))
        told["relations"] = outputs.seq_relationship_logits.detach().numpy()
    gradients = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    if bias is not None:
        gradients["final_logits_bias"] = bias.grad.numpy()
    return told | by_our_names(drawn, gradients, model)


def by_our_names(drawn: Drawn, gradients: dict, model) -> dict[str, np.ndarray]:
    """Gradients there, which turn as the arrays do, but where ours are theirs times a factor."""
    names = {}
    with contextlib.suppress(ImportError):
        names = _saved_names(model)
    gradients = {names.get(name, name): array for name, array in gradients.items()}
    parameters = drawn.model.named_parameters()
    told: dict[str, np.ndarray] = {}
    for entry in drawn.kind.table(drawn.model.config).entries(parameters):
        if entry.ours[0] in told or not all(name in gradients for name in entry.theirs):
            continue
        shapes = [parameters[name].shape for name in entry.ours]
        arrays = [gradients[name] for name in entry.theirs]
        ones = entry.here([np.ones_like(array) for array in arrays], shapes, drawn.model.config)
        made = entry.here(arrays, shapes, drawn.model.config)
        pairs = zip(entry.ours, made, ones, strict=True)
        told |= {name: array / one**2 for name, array, one in pairs}
    return told


def _saved_names(model) -> dict[str, str]:
    """How a parameter is called in the file, where that is another name than within the model."""
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
