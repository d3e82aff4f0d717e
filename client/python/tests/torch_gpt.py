"""The model of `shardtrain --model gpt` in PyTorch, with its optimizer and the names under which that keeps its weights."""

import math
import re

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Each token looks at those before it and at itself."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(hidden).chunk(3, dim=2)
        )
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.project(attended.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a perceptron, each of normalised values, each added to its input."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(heads, width)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.gelu = nn.GELU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.narrow(self.gelu(self.widen(self.norm2(hidden))))


class Gpt(nn.Module):
    """Tokens `[rows, length]` to logits `[rows, length, vocabulary]` of those that follow. The matrix of the tokens makes these, too."""

    def __init__(self, vocabulary: int, length: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(heads, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden) @ self.tokens.weight.T


def mean_loss(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """Over all tokens but the first of each row, each to be predicted from those before it."""
    logits = model(sequences[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


def adamw(model: nn.Module, rate: float, decay: float, **how) -> torch.optim.AdamW:
    """With weight decay for matrices (embeddings, too), and none for biases and normalisation."""
    groups = [
        {"params": [it for it in model.parameters() if it.dim() >= 2], "weight_decay": decay},
        {"params": [it for it in model.parameters() if it.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8, **how)


def share_of_rate(step: int, *, warm_up: int, steps: int) -> float:
    """What a step, from 0, has of the highest rate: a linear rise, then half a cosine to zero."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def as_shardtrain_has_it(model: Gpt) -> dict[str, torch.Tensor]:
    """A copy of all weights by `shardtrain`'s names. Its linear layers multiply from the other side."""
    return {_name(name): _turned(name, weight.detach()).contiguous().clone() for name, weight in model.named_parameters()}


def _turned(name: str, weight: torch.Tensor) -> torch.Tensor:
    return weight.T if weight.dim() == 2 and name.startswith("layers.") else weight


def _name(name: str) -> str:
    if name in ("tokens.weight", "positions.weight"):
        return f"embed.{name.removesuffix('.weight')}"
    name = re.sub(r"^layers\.(\d+)", r"layer\1", name)
    name = re.sub(r"^norm\.", "head.norm.", name)
    if "norm" in name:
        name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
    return name
