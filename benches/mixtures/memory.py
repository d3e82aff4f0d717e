"""Memory and time of a loader that mixes 1, 10 and 50 sources of the same total size.

    memory.py [--sources 1,10,50] [--samples N] [--size BYTES] [--json FILE]

Each number of sources has a process of its own, which reads two epochs in batches of 64. Prints the largest memory of the process
beyond that of an imported package (VmHWM), the part of it that is not files, its threads, the time to the first batch, and samples a
second after that. The samples are the same;
they lie in one dataset or in several. Needs the Python package `shardd` with NumPy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH = 64


def memory(field: str) -> int:
    """A field of this process's status, in KiB."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":")]
    return int(line.split()[1])


def fill(directory: Path, sources: int, samples: int, size: int) -> None:
    import shardd

    each = samples // sources
    for source in range(sources):
        rows = ({"id": source * each + row, "payload": os.urandom(size)} for row in range(each))
        shardd.from_iter(rows, str(directory / "store"), name=f"source-{source}")


def read(directory: Path, sources: int) -> dict[str, float]:
    """What one process needs."""
    import numpy  # noqa: F401
    import shardd

    before, own, began = memory("VmRSS"), memory("RssAnon"), time.perf_counter()
    streams = [shardd.Stream(str(directory / "store"), dataset=f"source-{source}", proportion=1) for source in range(sources)]
    loader = shardd.DataLoader(shardd.StreamingDataset(streams=streams, format="numpy"), batch_size=BATCH)
    first, count, threads, anonymous = 0.0, 0, 0, 0
    for _ in range(2):
        for batch in loader:
            first = first or time.perf_counter() - began
            count += len(batch["id"])
            threads, anonymous = max(threads, memory("Threads")), max(anonymous, memory("RssAnon") - own)
    seconds = time.perf_counter() - began
    return {
        "sources": sources,
        "memory_mib": (memory("VmHWM") - before) / 1024,
        "anonymous_mib": anonymous / 1024,
        "threads": threads,
        "first_batch_s": first,
        "samples_s": count / (seconds - first),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", default="1,10,50", help="numbers of sources, joined by commas")
    parser.add_argument("--samples", type=int, default=50_000, help="samples in all")
    parser.add_argument("--size", type=int, default=4096, help="bytes of a sample")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(read(options.child, int(options.sources))))
        return
    results = []
    for sources in map(int, options.sources.split(",")):
        if options.samples % sources:
            parser.error(f"{options.samples} samples cannot be dealt to {sources} sources")
        with tempfile.TemporaryDirectory() as directory:
            fill(Path(directory), sources, options.samples, options.size)
            child = [sys.executable, "-B", __file__, "--child", directory, "--sources", str(sources)]
            done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(done.stdout))
    print("| sources | memory, MiB | of it anonymous, MiB | threads | first batch, s | samples/s |\n|--:|--:|--:|--:|--:|--:|")
    for result in results:
        numbers = [f"{result[name]:.0f}" for name in ("sources", "memory_mib", "anonymous_mib", "threads")]
        print(f"| {' | '.join(numbers)} | {result['first_batch_s']:.3f} | {result['samples_s']:.0f} |")
    if options.json:
        setting = {"samples": options.samples, "size": options.size, "batch": BATCH}
        options.json.write_text(json.dumps({**setting, "results": results}) + "\n")


if __name__ == "__main__":
    main()
