"""The models of the benchmarks in PyTorch, written as PyTorch's guides recommend."""

import torch
from torch import nn
from torch.nn import functional

from numformer.paper.positions import sinusoidal_table
from tests.benchmarks.sizes import P_DROP, Size


def torch_model(size: Size, padded: bool) -> nn.Module:
    """The same model as an nn.Module: source, target -> logits; a gpt's takes ids alone."""

    def embedding(count):
        layer = nn.Embedding(count, size.D)
        nn.init.normal_(layer.weight, 0, size.D**-0.5)
        return layer

    def split(x):
        return x.unflatten(-1, (size.heads, -1)).transpose(1, 2)

    class Attention(nn.Module):
        def __init__(self, crosses=False):
            super().__init__()
            self.query = nn.Linear(size.D, size.D if crosses else 3 * size.D, bias=False)
            self.memory = nn.Linear(size.D, 2 * size.D, bias=False) if crosses else None
            self.output = nn.Linear(size.D, size.D, bias=False)

        def forward(self, x, memory=None, mask=None, causal=False):
            if memory is None:
                query, key, value = self.query(x).chunk(3, -1)
            else:
                query, (key, value) = self.query(x), self.memory(memory).chunk(2, -1)
            heads = functional.scaled_dot_product_attention(
                split(query), split(key), split(value), mask, is_causal=causal
            )
            return self.output(heads.transpose(1, 2).flatten(-2))

    class Layer(nn.Module):
        def __init__(self, crosses=False):
            super().__init__()
            self.attention = Attention()
            self.cross = Attention(crosses=True) if crosses else None
            self.inner, self.outer = nn.Linear(size.D, size.F), nn.Linear(size.F, size.D)
            self.norms = nn.ModuleList(nn.LayerNorm(size.D) for _ in range(3 if crosses else 2))
            self.dropout = nn.Dropout(P_DROP)

        def forward(self, x, memory=None, mask=None):
            if size.model == "gpt":
                x = x + self.dropout(self.attention(self.norms[0](x), causal=True))
                fed = self.outer(functional.gelu(self.inner(self.norms[1](x))))
                return x + self.dropout(fed)
            decodes = self.cross is not None
            own = self.attention(x, None, None if decodes else mask, causal=decodes)
            x = self.norms[0](x + self.dropout(own))
            if decodes:
                x = self.norms[1](x + self.dropout(self.cross(x, memory, mask)))
            fed = self.outer(functional.relu(self.inner(x)))
            return self.norms[-1](x + self.dropout(fed))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.dropout = embedding(size.V), nn.Dropout(P_DROP)
            self.encoder = nn.ModuleList(Layer() for _ in range(size.layers))
            self.decoder = nn.ModuleList(Layer(crosses=True) for _ in range(size.layers))
            table = torch.from_numpy(sinusoidal_table(size.T, size.D)).float()
            self.register_buffer("table", table)

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * size.D**0.5 + self.table[: ids.shape[1]])

        def forward(self, source, target):
            mask = (source != 0)[:, None, None, :] if padded else None
            memory, x = self.embed(source), self.embed(target)
            for layer in self.encoder:
                memory = layer(memory, mask=mask)
            for layer in self.decoder:
                x = layer(x, memory, mask)
            return functional.linear(x, self.embedding.weight)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.positions = embedding(size.V), embedding(size.T)
            self.layers = nn.ModuleList(Layer() for _ in range(size.layers))
            self.norm, self.dropout = nn.LayerNorm(size.D), nn.Dropout(P_DROP)

        def forward(self, ids):
            x = self.dropout(self.embedding(ids) * size.D**0.5 + self.positions.weight)
            for layer in self.layers:
                x = layer(x)
            return functional.linear(self.norm(x), self.embedding.weight)

    class LSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = embedding(size.V), embedding(size.V)
            self.encoder = nn.LSTM(size.D, size.D, batch_first=True)
            self.decoder = nn.LSTM(2 * size.D, size.D, batch_first=True)
            self.bridge, self.readout = nn.Linear(size.D, size.D), nn.Linear(size.D, size.D)
            self.dropout = nn.Dropout(P_DROP)

        def forward(self, source, target):
            h, _ = self.encoder(self.dropout(self.source(source) * size.D**0.5))
            last = h[torch.arange(len(h)), (source != 0).sum(dim=1) - 1]
            start = self.bridge(last).tanh()[None]
            y = self.dropout(self.target(target) * size.D**0.5)
            context = last[:, None].expand(-1, y.shape[1], -1)
            y, _ = self.decoder(torch.cat([y, context], dim=-1), (start, torch.zeros_like(start)))
            y = self.dropout(self.readout(y).tanh())
            return functional.linear(y, self.target.weight)

    return {"transformer": Transformer, "gpt": GPT, "lstm": LSTM}[size.model]()
