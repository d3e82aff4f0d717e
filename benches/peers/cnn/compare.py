"""Trains a small convolutional network with PyTorch, with the trainer's engine and with burn's own loop: see `run`."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROWS, SIDE, CLASSES = 64, 28, 10


def torch_side(threads, seconds):
    """As benches/cnn.rs: the same network, optimizer and batch size, on one batch of noise again and again."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )
    assert sum(parameter.numel() for parameter in net.parameters()) == 206_922
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    images = torch.rand(ROWS, 1, SIDE, SIDE) - 0.5
    labels = torch.randint(0, CLASSES, (ROWS,))

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
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
    print(json.dumps({"samples": steps * ROWS, "seconds": took, "cpu_s": cpu_s, "loss": loss}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch-side", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bench", help="the built bench `cnn`")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn (3)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (7)")
    parser.add_argument("--threads", default="1,2", help="how many, one after the other (1,2)")
    args = parser.parse_args()
    if args.torch_side:
        return torch_side(args.torch_side, args.seconds)

    print(f"{'threads':>7}  {'':<18} {'samples/CPU s':>13} {'of PyTorch':>10} {'samples/s':>10} {'of PyTorch':>10}")
    for threads in map(int, args.threads.split(",")):
        seconds = ["--seconds", str(args.seconds)]
        sides = {
            "PyTorch": [sys.executable, "-B", __file__, "--torch-side", str(threads), *seconds],
            "plain burn": [args.bench, "--side", "plain", *seconds],
            "shardd's engine": [args.bench, "--side", "engine", *seconds],
        }
        found = {name: [] for name in sides}
        environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        for turn in range(args.rounds):
            # Forwards and backwards, so that no side always follows the same one.
            for name in list(sides) if turn % 2 == 0 else reversed(sides):
                told = subprocess.run(sides[name], env=environment, check=True, capture_output=True, text=True)
                found[name].append(json.loads(told.stdout))
        per = lambda name, what: statistics.median(turn["samples"] / turn[what] for turn in found[name])
        for name in sides:
            figures = [(per(name, what), per(name, what) / per("PyTorch", what)) for what in ("cpu_s", "seconds")]
            (cpu, cpu_ratio), (wall, wall_ratio) = figures
            print(f"{threads:>7}  {name:<18} {cpu:>13.0f} {cpu_ratio:>10.2f} {wall:>10.0f} {wall_ratio:>10.2f}", flush=True)


main()
