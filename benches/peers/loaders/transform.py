"""What a transform in other processes costs beside the same one in torch's workers: CPU time of all processes, and memory.

    python benches/peers/loaders/transform.py [--rounds 5]

Rows of bytes become floats, one by one, in two processes. All have the rows in memory: torch's dataset maps a file, ours reads a
store in /dev/shm. Each system is a process of its own, in turns. CPU and wall time are in microseconds for each sample. Memory is
the proportional set size of all processes of a system. Needs the packages shardd, torch and NumPy.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch

import shardd

BATCH, WORKERS, EPOCHS = 64, 2, 3
SHAPES = ((3_072, 20_000), (150_528, 1_500))


def scaled(sample: dict) -> dict:
    return {"id": sample["id"], "image": sample["image"].float() / 255}


class Rows(torch.utils.data.Dataset):
    def __init__(self, path: Path) -> None:
        self.rows = numpy.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict:
        return scaled({"id": torch.tensor(number), "image": torch.from_numpy(self.rows[number].copy())})


def family() -> list[Path]:
    """The folders in /proc of this process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    found, seen = [int(Path("/proc/self").resolve().name)], 0
    while seen < len(found):
        found += [child for child, parent in parents.items() if parent == found[seen]]
        seen += 1
    return [Path(f"/proc/{pid}") for pid in found]


def cpu_seconds() -> float:
    ticks = 0
    for folder in family():
        if (folder / "stat").exists():
            ticks += sum(map(int, (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    return ticks / 100


def resident_mb() -> float:
    lines = [line for folder in family() for line in (folder / "smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(system: str, folder: Path) -> dict:
    """In a process of its own."""
    if system == "torch":
        rows = Rows(folder / "rows.npy")
        loader = torch.utils.data.DataLoader(rows, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    else:
        dataset = shardd.StreamingDataset(str(folder / "store"))
        loader = shardd.DataLoader(dataset, batch_size=BATCH, transform=scaled, transform_processes=WORKERS)
    count = sum(len(batch["id"]) for batch in loader)
    cpu, wall = cpu_seconds(), time.perf_counter()
    for _ in range(EPOCHS):
        for _ in loader:
            pass
    wall = time.perf_counter() - wall
    each = 1e6 / (EPOCHS * count)
    return {"cpu": (cpu_seconds() - cpu) * each, "wall": wall * each, "memory": resident_mb()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], Path(options.measure[1]))))
        return
    print("| a row | system | CPU µs | of torch | wall µs | memory MB |\n|--:|---|--:|--:|--:|--:|")
    for size, count in SHAPES:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            values = numpy.random.default_rng(0).integers(0, 256, (count, size), dtype=numpy.uint8)
            numpy.save(f"{folder}/rows.npy", values)
            shardd.from_iter(({"id": number, "image": row} for number, row in enumerate(values)), f"{folder}/store", name="rows")
            results = {"torch": [], "shardd": []}
            for _ in range(options.rounds):
                for system, of in results.items():
                    command = [sys.executable, "-W", "ignore", __file__, "--measure", system, folder]
                    of.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            middle = {system: {key: statistics.median(it[key] for it in of) for key in of[0]} for system, of in results.items()}
            for system, of in middle.items():
                share = of["cpu"] / middle["torch"]["cpu"]
                print(f"| {size:,} B | {system} | {of['cpu']:.0f} | {share:.2f} | {of['wall']:.0f} | {of['memory']:.0f} |")


if __name__ == "__main__":
    main()
