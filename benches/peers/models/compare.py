"""Trains three models with PyTorch and with the trainer's engine: see `run`."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROWS, SIDE, CLASSES = 64, 28, 10
SEQUENCES, LENGTH, TOKENS, WIDTH, HEADS, LAYERS = 16, 64, 128, 128, 4, 4
PARAMETERS = {"cnn": 206_922, "mlp": 1_863_690, "gpt": 817_920}


def cnn(torch):
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )
    return net, torch.rand(ROWS, 1, SIDE, SIDE) - 0.5, torch.randint(0, CLASSES, (ROWS,))


def mlp(torch):
    nn = torch.nn
    net = nn.Sequential(
        nn.Linear(SIDE * SIDE, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)
    )
    return net, torch.rand(ROWS, SIDE * SIDE) - 0.5, torch.randint(0, CLASSES, (ROWS,))


def gpt(torch):
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.mix, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, hidden):
            rows, length, _ = hidden.shape
            heads = lambda part: part.view(rows, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            query, key, value = map(heads, self.mix(self.norm1(hidden)).chunk(3, dim=2))
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + self.project(attended.transpose(1, 2).reshape(rows, length, WIDTH))
            return hidden + self.narrow(functional.gelu(self.widen(self.norm2(hidden))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, tokens):
            hidden = self.tokens(tokens) + self.positions.weight
            for layer in self.layers:
                hidden = layer(hidden)
            return functional.linear(self.norm(hidden), self.tokens.weight).flatten(0, 1)

    tokens = torch.randint(0, TOKENS, (SEQUENCES, LENGTH))
    return Gpt(), tokens, torch.randint(0, TOKENS, (SEQUENCES * LENGTH,))


def torch_side(model, threads, seconds):
    """As benches/models.rs: the same model, optimizer and batch size, on one batch of noise again and again."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net, inputs, labels = {"cnn": cnn, "mlp": mlp, "gpt": gpt}[model](torch)
    assert sum(parameter.numel() for parameter in net.parameters()) == PARAMETERS[model]
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    warm = time.perf_counter()
    while time.perf_counter() - warm < 0.5:
        step()
    began, cpu, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        loss = step()
        steps += 1
    took, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"samples": steps * len(inputs), "seconds": took, "cpu_s": cpu_s, "loss": loss}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch-side", help=argparse.SUPPRESS)
    parser.add_argument("--bench", help="the built bench `models`")
    parser.add_argument("--models", default="cnn,mlp,gpt", help="which, one after the other (cnn,mlp,gpt)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn (3)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (7)")
    parser.add_argument("--threads", default="1,2", help="how many, one after the other (1,2)")
    args = parser.parse_args()
    if args.torch_side:
        return torch_side(args.torch_side, int(args.threads), args.seconds)

    print(f"{'model':<5} {'threads':>7}  {'':<8} {'samples/CPU s':>13} {'of PyTorch':>10} {'samples/s':>10} {'of PyTorch':>10}")
    for model in args.models.split(","):
        for threads in args.threads.split(","):
            compare(args, model, threads)


def compare(args, model, threads):
    seconds = ["--seconds", str(args.seconds)]
    sides = {
        "PyTorch": [sys.executable, "-B", __file__, "--torch-side", model, "--threads", threads, *seconds],
        "shardd": [args.bench, "--model", model, *seconds],
    }
    found = {name: [] for name in sides}
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    for turn in range(args.rounds):
        # Forwards and backwards, so that no side always follows the same one.
        for name in list(sides) if turn % 2 == 0 else reversed(sides):
            output = subprocess.run(sides[name], env=environment, check=True, capture_output=True, text=True).stdout
            found[name].append(json.loads(output))
    per = lambda name, what: statistics.median(turn["samples"] / turn[what] for turn in found[name])
    for name in sides:
        figures = [(per(name, what), per(name, what) / per("PyTorch", what)) for what in ("cpu_s", "seconds")]
        (cpu, cpu_ratio), (wall, wall_ratio) = figures
        print(f"{model:<5} {threads:>7}  {name:<8} {cpu:>13.0f} {cpu_ratio:>10.2f} {wall:>10.0f} {wall_ratio:>10.2f}", flush=True)


main()
