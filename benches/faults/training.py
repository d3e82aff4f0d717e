"""What both PyTorch programs share: the model, the data, their pace and their log."""

import json
import os
import time

import torch

from setting import CLASSES, FEATURES, GLOBAL_BATCH, MIDDLE, RANKS

STEPS = int(os.environ["BENCH_STEPS"])
PACE_S = float(os.environ["BENCH_PACE_S"])
PLACE = os.environ["BENCH_PLACE"]
MICRO = GLOBAL_BATCH // RANKS
START = time.monotonic_ns()


def model():
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(FEATURES, MIDDLE), torch.nn.ReLU(), torch.nn.Linear(MIDDLE, CLASSES))
    return layers, torch.optim.AdamW


def data():
    """One epoch of as many samples as the steps read."""
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(STEPS * GLOBAL_BATCH, FEATURES, generator=draw)
    return x, (x @ torch.randn(FEATURES, CLASSES, generator=draw)).argmax(1)


class Pace:
    """Lets a step end no sooner than its time after the one before, as if an accelerator computed on it."""

    def __init__(self):
        self.last = time.monotonic()

    def wait(self):
        time.sleep(max(0.0, self.last + PACE_S - time.monotonic()))
        self.last = time.monotonic()


class Log:
    """Lines in a file that all ranks append to; each is written whole, before the next statement."""

    def __init__(self, rank):
        self.rank, self.file = rank, os.open(f"{PLACE}/log.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event, step, **more):
        line = {"event": event, "rank": self.rank, "step": step, "start": START, "at": time.monotonic(), **more}
        os.write(self.file, (json.dumps(line) + "\n").encode())
