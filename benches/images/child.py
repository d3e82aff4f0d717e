"""child.py prepare|measure PLACE: one contestant in a process of its own, on behalf of measure.py.

PLACE is JSON: contestant, kind, folders, and the number of the pipe for answers. `measure` imports, opens and reads an epoch, and
then carries out requests, a line of JSON each:

    ["epochs", S]     reads whole epochs for at least S seconds
    ["check", N]      reads N epochs and looks at their pictures; not timed
"""

import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

from contestants import BATCH, CONTESTANTS, SIZE, Pictures

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds():
    """Of this process, its descendants that live, and those that it waited for."""
    stats = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(file.parent.name)] = list(map(int, file.read_text().rsplit(")", 1)[1].split()[1:15]))
        except OSError:
            pass  # ended meanwhile
    found, seen = [os.getpid()], 0
    while seen < len(found):
        found += [child for child, stat in stats.items() if stat[0] == found[seen]]
        seen += 1
    return sum(sum(stats[process][10:14]) for process in found) / TICKS


class Child:
    def __init__(self, asked):
        cls = CONTESTANTS[asked["contestant"]]
        pictures = Pictures(Path(asked["pictures"]), asked["count"])
        self.kind = asked["kind"]
        self.count = pictures.count
        self.contestant = cls(pictures, Path(asked["folder"]), self.kind)
        self.versions = cls.versions()

    def epochs(self, least):
        count = epochs = 0
        cpu, began = cpu_seconds(), time.perf_counter()
        while not epochs or time.perf_counter() - began < least:
            for _, numbers in self.contestant.epoch():
                count += len(numbers)
            epochs += 1
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "cpu_s": cpu_seconds() - cpu, "samples": count, "epochs": epochs}

    def check(self, epochs):
        import torch

        means, squares, batches = torch.zeros(3, dtype=torch.double), torch.zeros(3, dtype=torch.double), 0
        first, dtype = set(), torch.float32 if self.kind == "jpeg" else torch.uint8
        for _ in range(epochs):
            seen = []
            for images, numbers in self.contestant.epoch():
                assert images.shape == (BATCH, 3, SIZE, SIZE) and images.is_contiguous(), f"a batch has the shape {tuple(images.shape)}"
                assert images.dtype == dtype, f"pictures are {images.dtype}"
                values = images.double()
                means += values.mean(dim=(0, 2, 3))
                squares += values.square().mean(dim=(0, 2, 3))
                batches += 1
                seen += numbers.tolist()
                if len(seen) == BATCH:
                    first.add(tuple(seen))
            assert len(set(seen)) == len(seen) == self.count // BATCH * BATCH, "an epoch has each picture once, but for a short last batch"
        assert len(first) == epochs, "each epoch has an order of its own"
        self.epochs(0)  # which leaves no batches that were made in the meantime
        means, squares = means / batches, squares / batches
        return {"mean": means.tolist(), "std": (squares - means.square()).sqrt().tolist()}


def measure(asked):
    def answer(value):
        os.write(asked["answers"], (json.dumps(value) + "\n").encode())

    try:
        import torch

        torch.set_num_threads(1)
        child = Child(asked)
        child.epochs(0)
        answer({"versions": child.versions})
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            answer(getattr(child, verb)(*arguments))
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        sys.stdout.flush(), sys.stderr.flush()
    os._exit(0)  # without waiting for threads


def prepare(asked):
    folder = Path(asked["folder"])
    folder.mkdir(parents=True)
    CONTESTANTS[asked["contestant"]].prepare(Pictures(Path(asked["pictures"]), asked["count"]), folder)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    {"prepare": prepare, "measure": measure}[sys.argv[1]](json.loads(sys.argv[2]))
