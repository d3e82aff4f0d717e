"""What time goes by with, and what a loader waits for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    from ._dataset import StreamingDataset

# What the threads of a loader count.
COUNTED = ("steps", "samples", "surplus", "waited_s", "kept_s", "network_s", "disk_s", "decode_s", "transform_s", "replaced", "skipped")

ADVICE = {
    "network": "The loop waits for the store or the nodes. Keep shards on this machine (local, cache_limit), read further ahead "
    "(prefetch_factor), or start nodes nearby.",
    "disk": "The loop waits for files of this machine. Use a faster disk, or more memory. For small rows that exceed the memory, order them "
    "in blocks (grain_rows, block_slots). If the disk is slow only now and then, read further ahead (prefetch_factor).",
    "decode": "The loop waits for threads that gather batches. Use more threads (num_workers).",
    "transform": "The loop waits for threads that transform pictures. Use more threads (num_workers), smaller pictures, or fewer operations.",
    "python": "The loop waits for transform and collate_fn. Use processes (transform_processes), or do the work once, at ingest.",
    "processes": "The loop waits for transform and collate_fn. Use more processes (transform_processes), or do the work once, at ingest.",
    "nothing": "Batches are ready in time. Your own code takes the time.",
}

# Who waits for less than this part of the time waits for nothing worth a change.
_LITTLE = 0.1


class Times:
    """Where the time of the thread that iterates goes, besides waiting for threads."""

    def __init__(self) -> None:
        self.counted: dict[str, float] = dict.fromkeys(COUNTED, 0)
        # In Python code that makes batches, and in the loop's own.
        self.python_s = 0.0
        self.user_s = 0.0

    def keep(self, counted: Mapping[str, float]) -> None:
        """What threads counted that have ended."""
        for name in COUNTED:
            self.counted[name] += counted[name]

    def told(self, running: Mapping[str, float] | None) -> dict[str, float]:
        """All of it, with what threads have counted that are running."""
        counted = {name: self.counted[name] + (running[name] if running else 0) for name in COUNTED}
        return {**counted, "python_s": self.python_s, "user_s": self.user_s}


class Stats(dict[str, Any]):
    """The counts of a loader: a dict that notebooks show as bars."""

    def _repr_html_(self) -> str:
        from . import _notebook

        return _notebook.stats(self)


def told(now: Mapping[str, float], since: Mapping[str, Any] | None, has_processes: bool) -> Stats:
    """``now``, less the counts before, and the rates that follow."""
    counts = Stats({name: value - (since[name] if since else 0) for name, value in now.items()})
    counts["waits_for"] = waits_for(counts)
    waits_for_processes = has_processes and counts["waits_for"] == "python"
    counts["advice"] = ADVICE["processes" if waits_for_processes else counts["waits_for"]]
    return counts


def waits_for(counts: Mapping[str, float]) -> str:
    """What would have to be faster for the loop to be: ``"python"``, or what the threads spend most time with; ``"nothing"`` if the
    loop itself takes nearly all of the time.

    Files are read by one thread and batches gathered by others at the same time, so whichever takes longer is waited for.
    """
    waited, python, user = counts["waited_s"], counts["python_s"], counts["user_s"]
    if waited + python <= _LITTLE * (waited + python + user):
        return "nothing"
    if python > waited:
        return "python"
    network, disk, decode, transform = counts["network_s"], counts["disk_s"], counts["decode_s"], counts["transform_s"]
    if decode + transform > network + disk:
        return "decode" if decode > transform else "transform"
    return "network" if network > disk else "disk"


# How many exchanges without nodes are listed, the last ones: each is worked out from the plan.
_EXCHANGES = 4


def exchange(dataset: StreamingDataset, epoch: int) -> dict[str, Any]:
    """What the exchange has moved before ``epoch``: as nodes have counted it, else as the plan says it."""
    mixture = dataset._mixture
    if mixture is not None:
        epochs = mixture.native.epochs_of_sources(epoch)
        streams = [
            {"stream": source.name, "epochs": _moved(store, plan, source.samples, own, dataset.shuffle)}
            for source, (store, _), plan, own in zip(mixture.sources, mixture.versions, mixture.plans, epochs)
        ]
        return {"nodes": 0, "streams": streams}
    if dataset._where["servers"]:
        return json.loads(_native.exchanged(dataset._store, dataset.run or "python"))
    return {"nodes": 0, "epochs": _moved(dataset._store, dataset.plan, dataset._samples, epoch, dataset.shuffle)}


def _moved(store: _native.Store, plan: str, samples: int, epoch: int, shuffle: bool) -> list[dict[str, Any]]:
    """What a plan moves after the last epochs before ``epoch``."""
    moves = _native.moves(store, plan, max(0, epoch - _EXCHANGES), epoch) if shuffle else []
    names = ("epoch", "grains", "samples", "bytes")
    return [{**dict(zip(names, moved)), "share": moved[2] / max(samples, 1)} for moved in moves]
