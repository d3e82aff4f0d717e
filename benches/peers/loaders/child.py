"""child.py prepare|measure PLACE: one system in a process of its own, on behalf of measure.py and cold.py.

PLACE is JSON: system, kind, rows, folders, setting, and the bucket if there is one. `prepare` writes the system's format.
`measure` imports, says so, and then carries out requests, a line of JSON each, on the pipe whose number is in
PLACE:

    ["attempt", T, S]    does "epochs" with the setting T, or where an epoch takes long reads a part of one
    ["first", S]         opens the loader and reads an epoch: to the first batch, and to its end or S seconds on
    ["epochs", S]        reads whole epochs for at least S seconds
    ["check", N]         reads N epochs, looks at their contents and at the memory; not timed
    ["half", FILE]       reads half an epoch and keeps the state in FILE
    ["resume", FILE]     opens the loader with that state and reads to the end of the epoch
    ["close"]            lets go of the loader and of its files
    ["join", FILE]       moves the process into the control group whose list of processes FILE is
"""

import gc
import json
import math
import os
import pickle
import resource
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import quality
from kinds import KINDS, Source
from systems import system


# Seconds that a setting is tried for, where an epoch takes longer.
ATTEMPT = 2


@dataclass(frozen=True)
class Place:
    """Where a system finds its data: its files in `folder`, or the same in a bucket, and its cache in
    `cache`."""

    kind: object
    source: Path
    folder: Path
    cache: Path
    bucket: dict  # endpoint, url (s3://…), http; empty where there is none

    @classmethod
    def of(cls, asked):
        kind = replace(KINDS[asked["kind"]], rows=asked["rows"])
        paths = (Path(asked[name]) for name in ("source", "folder", "cache"))
        return cls(kind, *paths, asked.get("bucket") or {})


class Child:
    def __init__(self, asked):
        self.place = Place.of(asked)
        self.system = system(asked["system"])
        self.setting = asked["setting"]
        self.loader = None
        self.number = 0
        self.imported = status()

    def opened(self):
        return self.system(self.place, self.setting)

    def epoch(self):
        self.number += 1
        return self.loader.epoch(self.number - 1)

    def attempt(self, setting, least):
        self.close()
        self.setting, self.number = setting, 0
        told = self.first(ATTEMPT)
        if told["samples"] == self.place.kind.rows:
            return self.epochs(least)
        rest = {"samples": told["samples"] - self.place.kind.batch, "seconds": told["seconds"] - told["first_ms"] / 1e3}
        return {**told, **rest}

    def first(self, longest=math.inf):
        began, cpu = time.perf_counter(), time.process_time()
        self.loader = self.opened()
        batches = self.epoch()
        count = len(next(batches)[1])
        first = time.perf_counter() - began
        while time.perf_counter() - began - first < longest and (batch := next(batches, None)):
            count += len(batch[1])
        ended = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
        return {"first_ms": first * 1e3, **ended, "samples": count}

    def epochs(self, least):
        count = epochs = 0
        began = time.perf_counter()
        while not epochs or time.perf_counter() - began < least:
            for _, numbers in self.epoch():
                count += len(numbers)
            epochs += 1
        return {"seconds": time.perf_counter() - began, "samples": count, "epochs": epochs}

    def check(self, epochs):
        gc.collect()
        seen, most = [], 0
        for _ in range(epochs):
            batches = []
            for x, numbers in self.epoch():
                self.right(x, numbers, len(batches) == 0)
                batches.append(np.array(numbers))
                if len(batches) % 16 == 1:
                    most = max(most, status()["own"])
            seen.append(batches)
        biggest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
        memory = {"peak_mb": status()["peak"], "own_mb": most - self.imported["own"], "worker_mb": biggest}
        return {**quality.of_epochs(seen, self.place.kind), **memory}

    def right(self, x, numbers, closely):
        """Stops it all if these are not tensors of the rows with these numbers."""
        import torch

        kind = self.place.kind
        rows, offsets = x if kind.varied else (x, None)
        assert torch.is_tensor(rows) and torch.is_tensor(numbers), "a batch is of tensors"
        assert str(rows.dtype) == f"torch.{kind.dtype}" and rows.is_contiguous(), f"rows are {rows.dtype}"
        assert kind.varied or rows.shape == (len(numbers), *kind.shape), f"a batch has the shape {tuple(rows.shape)}"
        if closely:
            source = Source(self.place.source, kind)
            for at, number in enumerate(numbers.tolist()):
                row = rows[offsets[at] : offsets[at + 1]] if kind.varied else rows[at]
                assert np.array_equal(row.numpy(), source.row(number)), f"row {number} has other bytes"

    def half(self, file):
        self.loader = self.opened()
        wanted, seen = self.place.kind.rows // 2, []
        batches = self.epoch()
        for _, numbers in batches:
            seen += numbers.tolist()
            if len(seen) >= wanted:
                break
        Path(file).write_bytes(pickle.dumps((self.loader.state(), seen)))
        return {}

    def resume(self, file):
        state, seen = pickle.loads(Path(file).read_bytes())
        began = time.perf_counter()
        self.loader = self.opened()
        batches = self.loader.resume(state)
        rest = next(batches)[1].tolist()
        took = time.perf_counter() - began
        for _, numbers in batches:
            rest += numbers.tolist()
        return {"resume_ms": took * 1e3, "exact": sorted(seen + rest) == list(range(self.place.kind.rows))}

    def close(self):
        self.loader = None
        gc.collect()
        return {}

    def join(self, file):
        Path(file).write_text(str(os.getpid()))
        return {}


def status():
    """Of this process, in MB: the peak of resident memory, and the present part without a file behind it."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    megabytes = {name: int(lines[name].split()[0]) / 1e3 for name in ("VmHWM", "RssAnon", "RssShmem")}
    return {"peak": megabytes["VmHWM"], "own": megabytes["RssAnon"] + megabytes["RssShmem"]}


def measure(asked):
    def answer(value):
        os.write(asked["answers"], (json.dumps(value) + "\n").encode())

    try:
        began = time.perf_counter()
        import torch

        torch.set_num_threads(1)  # collating with more than one thread costs all of them time on two processors
        child = Child(asked)
        answer({"imports": time.perf_counter() - began, "versions": child.system.versions()})
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            answer(getattr(child, verb)(*arguments))
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(1)  # without waiting for whatever threads a loader has


def prepare(asked):
    place = Place.of(asked)
    place.folder.mkdir(parents=True)
    system(asked["system"]).prepare(Source(place.source, place.kind), place.folder)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    {"prepare": prepare, "measure": measure}[sys.argv[1]](json.loads(sys.argv[2]))
