"""The limits: loops over a mapped file that do nothing but gather, in this process. Not loaders: no state, nothing ahead."""

import os

import numpy as np
import torch

from kinds import Source

from . import System
from .batches import joined


class FromNumpy(System):
    title = "loop: `torch.from_numpy(mm[idx])`"
    format = ""
    packages = ("numpy", "torch")
    settings = (0,)

    @staticmethod
    def prepare(source, folder):
        """The source itself is read."""

    def __init__(self, place, _setting):
        self.kind, self.source = place.kind, Source(place.source, place.kind)

    def epoch(self, seed):
        order = np.random.default_rng(seed).permutation(len(self.source))
        for start in range(0, len(order), self.kind.batch):
            numbers = order[start : start + self.kind.batch]
            yield self.gather(numbers), torch.from_numpy(self.source.numbers[numbers])

    def gather(self, numbers):
        if self.kind.varied:
            return joined([self.source.row(number) for number in numbers])
        return torch.from_numpy(self.source.x[numbers])


class Take(FromNumpy):
    title = "loop: `np.take(mm, idx, out=reused)`"
    mode = "raise"

    def __init__(self, place, setting):
        super().__init__(place, setting)
        if self.kind.varied:
            largest = int(np.diff(self.source.offsets).max())
            self.out = np.zeros(self.kind.batch * largest, dtype=self.kind.dtype)
        else:
            self.out = np.zeros((self.kind.batch, *self.kind.shape), dtype=self.kind.dtype)
        self.tensor = torch.from_numpy(self.out)

    def gather(self, numbers):
        if not self.kind.varied:
            np.take(self.source.x, numbers, axis=0, out=self.out[: len(numbers)], mode=self.mode)
            return self.tensor[: len(numbers)]
        rows = [self.source.row(number) for number in numbers]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        np.concatenate(rows, out=self.out[: offsets[-1]])
        return self.tensor[: offsets[-1]], torch.from_numpy(offsets)


class TakeClip(Take):
    """With indices that NumPy need not check first, it writes to `out` without a buffer between."""

    title = '… with `mode="clip"`'
    mode = "clip"


class Sequential(FromNumpy):
    """What a disk gives at best: the file from its begin to its end, in reads of a MiB, not shuffled."""

    title = "sequential read"

    def epoch(self, _seed):
        source, kind = self.source, self.kind
        buffer = memoryview(bytearray(1 << 20))
        with open(source.path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while file.readinto(buffer):
                pass
        yield torch.frombuffer(buffer, dtype=getattr(torch, kind.dtype)), torch.from_numpy(source.numbers)
