#!/usr/bin/env -S python3 -B
"""Rows from Python into a dataset: `shardd.from_iter` beside `shardctl ingest` of the same rows in an Arrow file, and MDSWriter.

    benches/peers/loaders/writers.py [--kinds B,C] [--rows C=1500,...] [--rounds N] [--work DIR] [--data ARCHIVE]

All read the rows from one mapped file that is in memory, and write into an empty directory, in turns. Seconds begin after imports;
those of `shardctl` are of the whole process. CPU is of the process and its children. Needs the environment of
benches/peers/loaders/run, and `shardctl` (SHARDD_SHARDCTL).
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import shardd
from faults import ARCHIVE
from kinds import KINDS, Source, make
from systems.mosaic import Mosaic
from systems.shardd_loader import NAME, Shardd, arrow_file, ingest

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="B,C")
    parser.add_argument("--rows", default="C=1500", metavar="KIND=ROWS,...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--data", type=Path, default=ARCHIVE)
    asked = parser.parse_args()
    counts = dict(pair.split("=") for pair in asked.rows.split(",") if pair)
    print("| rows | | seconds | from - to | CPU s | of `shardctl` |\n|---|---|--:|--:|--:|--:|")
    for letter in asked.kinds.split(","):
        kind = replace(KINDS[letter], rows=int(counts.get(letter, KINDS[letter].rows)))
        with tempfile.TemporaryDirectory(prefix="shardd-writers-", dir=asked.work) as folder:
            report(kind, measured(kind, Path(folder), asked))


def measured(kind, folder, asked):
    make(kind, folder / "source", asked.data)
    source = Source(folder / "source", kind)
    first = folder / "own" / "shardd"
    first.mkdir(parents=True)
    Shardd.prepare(source, first)  # leaves the Arrow file
    file = arrow_file(first)
    ways = {
        "`shardctl ingest`, Arrow file": lambda out: ingest(file, out),
        "`shardd.from_iter`": lambda out: shardd.from_iter(rows(source), out, name=NAME),
        "MDSWriter": lambda out: Mosaic.prepare(source, out),
    }
    found = {way: [] for way in ways}
    for number in range(asked.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            out = folder / "out"
            out.mkdir()
            before, began = cpu_s(), time.perf_counter()
            ways[way](out)
            found[way].append((time.perf_counter() - began, cpu_s() - before))
            shutil.rmtree(out)
    return found


def rows(source):
    for number in source.numbers:
        yield {"x": source.row(number), "y": int(number)}


def cpu_s():
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def report(kind, found):
    ours = statistics.median(seconds for seconds, _ in next(iter(found.values())))
    for way, runs in found.items():
        seconds, cpu = zip(*runs)
        median = statistics.median(seconds)
        cells = [f"{kind.rows:,} {kind.title}", way, f"{median:.2f}", f"{min(seconds):.2f} - {max(seconds):.2f}"]
        print("| " + " | ".join([*cells, f"{statistics.median(cpu):.2f}", f"{median / ours:.2f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
