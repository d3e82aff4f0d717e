"""The small convolutional network of `shardtrain`, in PyTorch: all trainings of one shape are one batched computation."""

import numpy
import torch
from orders import steps_of

CLASSES, SIDE, CHANNELS, WIDTHS = 10, 16, 3, (24, 48)
MOMENTUM, WEIGHT_DECAY, RUNNING, EPSILON, GROUP = 0.9, 5e-4, 0.1, 1e-5, 8


class Data:
    def __init__(self, directory, device):
        self.images, self.labels = {}, {}
        for name in ("train", "test"):
            arrays = numpy.load(directory / f"{name}.npz")
            images = torch.from_numpy(arrays["image"].astype(numpy.float32) / 127).to(device)
            self.images[name] = windows(images.permute(0, 2, 3, 1)[None])[0]
            self.labels[name] = torch.from_numpy(arrays["label"].astype(numpy.int64)).to(device)


def windows(images):
    """3x3 windows, two apart, of `[.., rows, height, width, channels]`: `[.., rows, pixels, 9 channels]`."""
    *before, rows, height, width, channels = images.shape
    padded = torch.nn.functional.pad(images, (0, 0, 1, 1, 1, 1))
    cut = padded.unfold(-3, 3, 2).unfold(-3, 3, 2)  # .., rows, height/2, width/2, channels, 3, 3
    return cut.reshape(*before, rows, cut.shape[-5] * cut.shape[-4], channels * 9)


def first_weights(cells, device):
    def uniform(shape, fan_in, he):
        bound = (6 / fan_in) ** 0.5 if he else fan_in**-0.5
        drawn = []
        for cell in cells:
            generator = torch.Generator().manual_seed(1_000_003 * cell.seed + shape[0])
            drawn.append((torch.rand(shape, generator=generator) * 2 - 1) * bound)
        return torch.stack(drawn).to(device).requires_grad_()

    count, (one, two) = len(cells), WIDTHS
    ones = lambda width: torch.ones(count, 1, width, device=device).requires_grad_()
    zeros = lambda width: torch.zeros(count, 1, width, device=device).requires_grad_()
    last = two * (SIDE // 4) ** 2
    return dict(
        w1=uniform((9 * CHANNELS, one), 9 * CHANNELS, True), g1=ones(one), b1=zeros(one),
        w2=uniform((9 * one, two), 9 * one, True), g2=ones(two), b2=zeros(two),
        w3=uniform((last, CLASSES), last, False), b3=zeros(CLASSES),
    )


class Norm:
    """Of `[models, rows, pixels, channels]`; rows are those of one virtual rank after the other."""

    def __init__(self, kind, ranks, count, width, device):
        self.kind, self.ranks = kind, ranks
        self.mean = torch.zeros(count, width, device=device)
        self.variance = torch.ones(count, width, device=device)

    def __call__(self, x, weight, bias, training):
        count, rows, pixels, width = x.shape
        weight, bias = weight[:, :, None], bias[:, :, None]
        if self.kind == "group":
            grouped = x.reshape(count, rows, pixels, width // GROUP, GROUP)
            mean, variance = grouped.mean((2, 4), keepdim=True), grouped.var((2, 4), keepdim=True, unbiased=False)
            return ((grouped - mean) * (variance + EPSILON).rsqrt()).reshape(x.shape) * weight + bias
        if not training:
            mean, variance = self.mean[:, None, None], self.variance[:, None, None]
            return (x - mean) * (variance + EPSILON).rsqrt() * weight + bias
        ranks = self.ranks if self.kind == "batch" else 1
        split = x.reshape(count, ranks, -1, width)
        mean, variance = split.mean(2, keepdim=True), split.var(2, keepdim=True, unbiased=False)
        with torch.no_grad():
            values = split.shape[2]
            self.mean.lerp_(mean.mean(1)[:, 0], RUNNING)
            self.variance.lerp_(variance.mean(1)[:, 0] * values / max(values - 1, 1), RUNNING)
        return ((split - mean) * (variance + EPSILON).rsqrt()).reshape(x.shape) * weight + bias


def forward(at, norms, x, training):
    """Logits `[models, rows, classes]` of windows `[models, rows, pixels, 9 channels]`."""
    count, rows = x.shape[:2]
    x = torch.bmm(x.reshape(count, -1, x.shape[-1]), at["w1"]).reshape(count, rows, -1, WIDTHS[0])
    x = norms[0](x, at["g1"], at["b1"], training).relu()
    x = windows(x.reshape(count, rows, SIDE // 2, SIDE // 2, WIDTHS[0]))
    x = torch.bmm(x.reshape(count, -1, x.shape[-1]), at["w2"]).reshape(count, rows, -1, WIDTHS[1])
    x = norms[1](x, at["g2"], at["b2"], training).relu()
    return torch.bmm(x.reshape(count, rows, -1), at["w3"]) + at["b3"]


def train(data, cells, orders, device):
    """All cells, of one shape, at once; a line for each."""
    steps = list(zip(*(steps_of(*orders[cell.order()], cell) for cell in cells)))
    count, total = len(cells), len(steps)
    at = first_weights(cells, device)
    momenta = {name: torch.zeros_like(weights) for name, weights in at.items()}
    norms = [Norm(cells[0].norm, cells[0].virtual_ranks, count, width, device) for width in WIDTHS]
    rates = torch.tensor([cell.rate for cell in cells], device=device)[:, None, None]
    epochs = cells[0].epochs
    warm = total * 2 // 10  # a fifth: two of ten epochs
    losses = torch.zeros(epochs, count, device=device)
    for number, step in enumerate(steps):
        chosen = torch.from_numpy(numpy.stack([own.ravel() for own in step])).to(device).long()
        logits = forward(at, norms, data.images["train"][chosen], True)
        targets = data.labels["train"][chosen]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").reshape(count, -1).mean(1)
        loss.sum().backward()
        losses[min(number * epochs // total, epochs - 1)] += loss.detach() / (total / epochs)
        share = (number + 1) / warm if number < warm else 0.5 * (1 + numpy.cos(numpy.pi * (number - warm) / max(total - warm, 1)))
        with torch.no_grad():
            for name, weights in at.items():
                gradient = weights.grad + WEIGHT_DECAY * weights if name in ("w1", "w2", "w3") else weights.grad
                momenta[name].mul_(MOMENTUM).add_(gradient)
                weights.sub_(rates * share * momenta[name])
                weights.grad = None
    with torch.no_grad():
        right = torch.zeros(count, device=device)
        for images, labels in zip(data.images["test"].split(1000), data.labels["test"].split(1000)):
            logits = forward(at, norms, images[None].expand(count, *images.shape), False)
            right += (logits.argmax(2) == labels).sum(1)
    accuracies = (right / len(data.labels["test"])).tolist()
    by_epoch = losses.T.tolist()
    return [
        cell.line() | dict(test_accuracy=round(accuracy, 4), last_loss=round(own[-1], 4))
        for cell, accuracy, own in zip(cells, accuracies, by_epoch)
    ]
