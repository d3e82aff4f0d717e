"""The kinds of data that are measured, and the plain files that everybody's format is written from.

A source is sorted by class, ten classes of equal size, as a folder per class is read: a loader that mixes too little shows.
Beside each row stands an int64: the row's number in the source. Its class follows from it (`classes`), and so does whether
a row was seen exactly once; nobody's format has to carry anything more for the checks' sake.
"""

import io
import itertools
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CLASSES = 10


@dataclass(frozen=True)
class Kind:
    letter: str
    title: str
    rows: int
    shape: tuple  # of a row; of binaries, the mean
    dtype: str
    batch: int
    varied: bool = False  # rows are binaries of any length

    @property
    def row_bytes(self):
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


KINDS = {
    kind.letter: kind
    for kind in (
        Kind("A", "rows of 784 B", 50_000, (784,), "uint8", 256),
        Kind("B", "CIFAR-10 raw, 3,072 B", 50_000, (3_072,), "uint8", 256),
        Kind("C", "raw images of 150,528 B", 4_000, (224, 224, 3), "uint8", 64),
        Kind("X", "binaries of about 100 KB", 4_000, (100_000,), "uint8", 64, varied=True),
        Kind("E", "sequences of 2,049 tokens, int32", 20_000, (2_049,), "int32", 32),
    )
}


def classes(numbers, rows):
    """The class of each row, by its number."""
    return np.asarray(numbers) * CLASSES // rows


class Source:
    """The plain files of a kind: `x.bin`, rows one after the other; `offsets.npy`, where each begins, of binaries; and the
    kind with the number of rows that are there."""

    def __init__(self, folder, kind):
        self.folder, self.kind = Path(folder), kind
        self.path = self.folder / "x.bin"
        if kind.varied:
            self.offsets = np.load(self.folder / "offsets.npy")
            self.x = np.memmap(self.path, dtype=kind.dtype, mode="c")
        else:
            # Copy-on-write: PyTorch warns of arrays it must not write to.
            self.x = np.memmap(self.path, dtype=kind.dtype, mode="c").reshape(-1, *kind.shape)
        self.numbers = np.arange(kind.rows, dtype=np.int64)

    def __len__(self):
        return self.kind.rows

    def row(self, number):
        if self.kind.varied:
            return self.x[self.offsets[number] : self.offsets[number + 1]]
        return self.x[number]

    def pieces(self, target_bytes=64 << 20):
        """The rows in slices of about this number of bytes."""
        step = max(1, target_bytes // self.kind.row_bytes)
        for start in range(0, len(self), step):
            yield slice(start, min(start + step, len(self)))


def make(kind, folder, archive):
    """Writes the source of a kind, once. `archive` is CIFAR-10's, which kind B is decoded from."""
    folder = Path(folder)
    done = folder / "rows"
    if done.exists() and done.read_text() == str(kind.rows):
        return
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    with open(folder / "x.bin", "wb") as file:
        if kind.letter == "B":
            cifar(kind, archive, file)
        elif kind.varied:
            mean = kind.shape[0]
            lengths = random.integers(mean // 2, mean * 3 // 2, kind.rows)
            np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]))
            noise(random, int(lengths.sum()), file)
        elif kind.letter == "E":
            for start in range(0, kind.rows, 1000):
                rows = min(1000, kind.rows - start)
                file.write(random.integers(0, 50_257, (rows, *kind.shape), dtype=np.int32).tobytes())
        else:
            noise(random, kind.rows * kind.row_bytes, file)
    done.write_text(str(kind.rows))


def noise(random, count, file):
    for start in range(0, count, 16 << 20):
        file.write(random.bytes(min(16 << 20, count - start)))


def cifar(kind, archive, file):
    from PIL import Image

    decoded = []
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.startswith("train/"):
                image = Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB")
                decoded.append((member.name, image.tobytes()))
    decoded.sort()  # by class, then by name
    per_class = len(decoded) // CLASSES
    for start in range(0, len(decoded), per_class):  # again and again where more rows are asked for
        images = itertools.cycle(decoded[start : start + per_class])
        for _, pixels in itertools.islice(images, kind.rows // CLASSES):
            file.write(pixels)
