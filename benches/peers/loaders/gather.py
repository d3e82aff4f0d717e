"""What gathering costs: batches of random rows by their numbers, from shards through the Python client, beside
`np.take(mm, numbers, out=reused, mode="clip")` on a mapped file with the same rows, on one core and in one process.

Both read the same rows in turns, every other round the other way round; printed are the medians of the rounds, and of the
ratios within a round, which is what a busy machine disturbs least. Before the clock runs both have read everything once, and
numbers are lists and arrays already. Ours gives Arrow columns (a second one, of labels, too) in memory of its own pool, and lets go of each
batch before the next; what NumPy gives is compared with it, byte by byte.

    PYTHONPATH=client/python/python SHARDD_SHARDCTL=…/shardctl python benches/peers/loaders/gather.py
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import shardd

SIZES = {784: 256, 3_072: 256, 24_576: 64, 102_400: 64, 150_528: 64}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes of a row, with commas")
    parser.add_argument("--megabytes", type=int, default=200, help="of rows, for each size")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--turn", type=float, default=0.02, metavar="SECONDS", help="about how long a round is")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print("| row bytes | rows | ours GB/s | np.take GB/s | ratio | quartiles |")
    print("|--:|--:|--:|--:|--:|--:|")
    for size in map(int, arguments.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            print(measured(Path(folder), size, SIZES.get(size, 64), arguments), flush=True)


def measured(folder, size, batch, arguments):
    count = max(batch, arguments.megabytes * 1_000_000 // size)
    random = np.random.default_rng(size)
    rows = np.lib.format.open_memmap(folder / "rows.npy", mode="w+", dtype=np.uint8, shape=(count, size))
    for start in range(0, count, 1_000):
        rows[start : start + 1_000] = random.integers(0, 256, rows[start : start + 1_000].shape, np.uint8)
    rows.flush()
    shardctl = os.environ.get("SHARDD_SHARDCTL", "shardctl")
    subprocess.run(
        [shardctl, "ingest", folder / "rows.npy", "--name", "rows", "--store", folder / "store", "--mix", "sequential"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    dataset = shardd.StreamingDataset(str(folder / "store"), dataset="rows", local=str(folder / "cache"))
    ours = shardd._native.Samples([(dataset._store, dataset.version)], cache_dir=str(folder / "cache"))
    mapped = np.load(folder / "rows.npy", mmap_mode="r")
    out = np.zeros((batch, size), np.uint8)
    for start in range(0, count, batch):  # rows read once lie in memory, and are known to
        numbers = np.arange(start, min(count, start + batch))
        np.take(mapped, numbers, axis=0, out=out[: len(numbers)], mode="clip")
        column = ours.take(numbers.tolist())[0]
        found = np.from_dlpack(column).reshape(len(numbers), size)
        assert (found == out[: len(numbers)]).all(), f"rows {start} to {start + len(numbers)} differ"
        del column, found

    def take(arrays, _lists):
        for numbers in arrays:
            np.take(mapped, numbers, axis=0, out=out, mode="clip")

    def gather(_arrays, lists):
        for numbers in lists:
            ours.take(numbers)

    def timed(work, *what):
        began = time.perf_counter()
        work(*what)
        return time.perf_counter() - began

    steps = max(1, int(arguments.turn * 5e9 / (batch * size)))
    figures = []
    for turn in range(arguments.rounds):
        arrays = [random.integers(0, count, batch) for _ in range(steps)]
        lists = [numbers.tolist() for numbers in arrays]
        works = [gather, take] if turn % 2 else [take, gather]
        times = {work: timed(work, arrays, lists) for work in works}
        figures.append((times[gather], times[take]))
    gigabytes = steps * batch * size / 1e9
    speed = [gigabytes / statistics.median(times) for times in zip(*figures)]
    ratios = sorted(theirs / own for own, theirs in figures)
    quarter = len(ratios) // 4
    return (
        f"| {size:,} | {batch} | {speed[0]:.2f} | {speed[1]:.2f} | {statistics.median(ratios):.2f} "
        f"| {ratios[quarter]:.2f}-{ratios[-1 - quarter]:.2f} |"
    )


if __name__ == "__main__":
    main()
