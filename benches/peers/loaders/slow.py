"""Some samples cost much more than others: what that costs an epoch, ours beside torch's DataLoader in order and out of order.

    python benches/peers/loaders/slow.py [--workers 4] [--rounds 5] [--slow 0.003] [--times 400]

A transform sleeps 0.5 ms for a sample, and --times as long for a share --slow of them. No order can be faster than *ideal*: the sum
of all sleeps over the workers. The column *in order* says whether batches have the order of one process. Needs the packages shardd,
torch and NumPy.
"""

import argparse
import os
import random
import statistics
import tempfile
import time

import numpy
import torch

import shardd

ROWS, BATCH, USUAL = 6_000, 32, 0.0005


class Costly:
    """A transform that sleeps."""

    def __init__(self, slow: float, times: float) -> None:
        self.slow, self.times = slow, times

    def seconds(self, number: int) -> float:
        return USUAL * (self.times if random.Random(number).random() < self.slow else 1)

    def __call__(self, sample: dict) -> dict:
        time.sleep(self.seconds(int(sample["id"])))
        return {"id": sample["id"]}


class Rows(torch.utils.data.Dataset):
    def __init__(self, costly: Costly) -> None:
        self.costly = costly

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict:
        return self.costly({"id": torch.tensor(number)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow", type=float, default=0.003)
    parser.add_argument("--times", type=float, default=400)
    options = parser.parse_args()
    costly = Costly(options.slow, options.times)
    ideal = sum(map(costly.seconds, range(ROWS))) / options.workers
    with tempfile.TemporaryDirectory() as folder:
        rows = ({"id": number, "value": numpy.zeros(8, dtype=numpy.uint8)} for number in range(ROWS))
        store = os.path.join(folder, "store")
        shardd.from_iter(rows, store, name="slow")
        dataset = shardd.StreamingDataset(store)
        ours = shardd.DataLoader(dataset, batch_size=BATCH, transform=costly, transform_processes=options.workers)

        def torch_loader(in_order: bool) -> torch.utils.data.DataLoader:
            how = dict(num_workers=options.workers, persistent_workers=True, in_order=in_order)
            return torch.utils.data.DataLoader(Rows(costly), BATCH, shuffle=True, **how)

        systems = {"shardd": ours, "torch, in order": torch_loader(True), "torch, `in_order=False`": torch_loader(False)}
        took = {name: [] for name in systems}
        for system in systems.values():
            for _ in system:  # processes start, costs are learned
                pass
        for _ in range(options.rounds):
            for name, system in systems.items():
                begun = time.perf_counter()
                seen = [number for batch in system for number in batch["id"].tolist()]
                took[name].append(time.perf_counter() - begun)
                assert sorted(seen) == list(range(ROWS)), name
        print(f"| {options.workers} workers, {options.slow:.1%} of samples take {options.times:g} times as long | s | of ideal |")
        print("|---|--:|--:|")
        print(f"| ideal | {ideal:.2f} | 1.00 |")
        for name, seconds in took.items():
            middle = statistics.median(seconds)
            print(f"| {name} | {middle:.2f} | {middle / ideal:.2f} |")
        ours.close()


if __name__ == "__main__":
    main()
