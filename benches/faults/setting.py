"""The training that all systems run, and their faults. Pure."""

import random
from dataclasses import dataclass

RANKS = 4
GLOBAL_BATCH = 64
# PyTorch's perceptron has 23,000 weights, as many as the transformer of shardtrain.
FEATURES, MIDDLE, CLASSES = 64, 306, 10
# Bytes of a sequence of the transformer: its tokens, and the target of the last.
SEQUENCE = 17
# A rank that ended, or a launcher that was killed, starts again after this many seconds.
RESTART_S = 1.0


@dataclass(frozen=True)
class Fault:
    """The kill of a process of this kind after a step has ended; `victim` chooses among those of the kind."""

    step: int
    kind: str
    victim: int


def faults(kinds, seed, steps):
    """A fault of each kind, in a random order, at random steps of the middle eight tenths."""
    draw = random.Random(seed)
    at = sorted(draw.sample(range(steps // 10, steps * 9 // 10), len(kinds)))
    kinds = list(kinds)
    draw.shuffle(kinds)
    return [Fault(step, kind, draw.randrange(1 << 16)) for step, kind in zip(at, kinds)]
