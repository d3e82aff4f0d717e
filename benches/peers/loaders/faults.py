#!/usr/bin/env -S python3 -B
"""Page faults of a batch once a loader is warm: shardd's, beside torch's DataLoader over a mapped file.

    benches/peers/loaders/faults.py [--kinds A,B,C,X] [--work DIR] [--data ARCHIVE] [--results FILE]

Each loader is a process of its own. It reads two epochs, and then three more, of which the faults count: those of the process and
of its workers, from /proc/PID/stat. A minor fault gives a page of memory, or maps one that is in memory; a major fault waits for the
disk. Appends a line of JSON for each loader to FILE; benches/paper/report makes the table. Needs Linux, PyTorch, pyarrow, the shardd
package and `shardctl` (SHARDD_SHARDCTL).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCHIVE = Path(os.environ.get("SHARDD_SHARED", HERE.parents[2] / "../shared")) / "data/cifar10-jpeg.tar.gz"
LOADERS = [("shardd", 0), ("torch_batched", 0), ("torch_batched", 2), ("torch_map", 2)]
WARM, COUNTED = 2, 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="A,B,C,X")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--data", type=Path, default=ARCHIVE)
    parser.add_argument("--results", type=Path, default=HERE / "faults.jsonl")
    parser.add_argument("--one", nargs=4, metavar=("SYSTEM", "WORKERS", "KIND", "FOLDER"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        system, workers, kind, folder = asked.one
        print(json.dumps(measured(system, int(workers), kind, Path(folder))))
        return
    with tempfile.TemporaryDirectory(prefix="shardd-faults-", dir=asked.work) as folder:
        for letter in asked.kinds.split(","):
            prepare(letter, Path(folder) / letter, asked.data)
            for system, workers in LOADERS:
                words = [sys.executable, "-B", __file__, "--one", system, str(workers), letter, Path(folder) / letter]
                line = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
                with open(asked.results, "a") as out:
                    out.write(json.dumps(line) + "\n")
                print(json.dumps(line), file=sys.stderr)


def prepare(letter, folder, archive):
    from kinds import KINDS, Source, make
    from systems import system

    kind = KINDS[letter]
    make(kind, folder / "source", archive)
    (folder / "own/shardd").mkdir(parents=True)
    system("shardd").prepare(Source(folder / "source", kind), folder / "own/shardd")


def measured(name, workers, letter, folder):
    from child import Place
    from kinds import KINDS
    from systems import system

    kind = KINDS[letter]
    used = system(name)
    place = Place(kind, folder / "source", folder / "own/shardd", folder / "cache", {})
    loader = used(place, workers)
    epochs = iter(range(WARM + COUNTED))
    for _ in range(WARM):
        read(loader, next(epochs))
    before, began = faults(), time.perf_counter()
    batches = sum(read(loader, next(epochs)) for _ in range(COUNTED))
    seconds = time.perf_counter() - began
    minor, major = (after - before for after, before in zip(faults(), before))
    line = {"kind": letter, "system": name, "title": used.title, "workers": workers, "batches": batches}
    return {**line, "minor": minor, "major": major, "batch_bytes": kind.batch * kind.row_bytes, "seconds": round(seconds, 4)}


def read(loader, epoch):
    return sum(1 for _ in loader.epoch(epoch))


def faults():
    """Minor and major ones, of this process and of its descendants that live."""
    by_parent, own = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # the process has ended
        own[int(path.parent.name)] = int(fields[7]), int(fields[9])
        by_parent.setdefault(int(fields[1]), []).append(int(path.parent.name))
    minor = major = 0
    left = [os.getpid()]
    while left:
        process = left.pop()
        left += by_parent.get(process, [])
        minor, major = minor + own[process][0], major + own[process][1]
    return minor, major


def tables(lines, table):
    """The table of benches/README.md."""
    if not lines:
        return {}
    rows = []
    for line in lines:
        batches = line["batches"]
        of_memory = line["minor"] / batches / (line["batch_bytes"] / 4096)
        workers = f", {line['workers']} workers" if line["workers"] else ""
        title = line["title"].replace(" on memmap", "") + workers
        pages = line["batch_bytes"] / 4096
        rows.append([line["kind"], title, f"{pages:,.0f}", f"{line['minor'] / batches:,.1f}", f"{line['major'] / batches:.2f}", f"{of_memory:.3f}"])
    return {"faults": table(["", "loader", "pages of a batch", "minor faults", "major faults", "minor, by page"], rows, 2)}


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
