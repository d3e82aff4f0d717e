"""Ranks that read batches and wait for as long as an accelerator would compute on them. `benches/storage/run` starts this with the
Python that has PyTorch, PyArrow and the package shardd.

    ranks.py write JSON     makes a store of random bytes
    ranks.py train JSON     prints for each rank the ends of its steps, on its clock, and its waits for data

A rank is a process. All ranks meet after each step, as data-parallel training makes them.
"""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy
import pyarrow
import shardd
import torch

from disk_bytes import disk_bytes
from setting import PAGE_BYTES, WORKLOADS, threads

NAME, PLACES = "samples", "places.json"


def main():
    verb, asked = sys.argv[1], json.loads(sys.argv[2])
    {"write": write, "train": train}[verb](asked)


def write(asked):
    workload, rows = WORKLOADS[asked["workload"]], asked["rows"]
    random = numpy.random.default_rng(1)
    sizes = numpy.full(rows, workload.sample_bytes)
    if workload.deviation_bytes:
        sizes = random.normal(workload.sample_bytes, workload.deviation_bytes, rows).clip(workload.sample_bytes / 8)
        sizes = (sizes * (workload.sample_bytes / sizes.mean())).astype(int)
    samples = ({"sample": random.bytes(int(size))} for size in sizes)
    shardd.from_iter(samples, asked["store"], name=NAME, mix="sequential")
    # Before any run, because Arrow has the pages read of all that it maps.
    Path(asked["store"], PLACES).write_text(json.dumps(places(asked["store"])))


def places(store):
    """Of each sample its file, and its first byte and its size in it."""
    found = []
    for path in sorted(Path(store).glob("store/shards/*/*.arrow")):
        with pyarrow.memory_map(str(path)) as file:
            base = file.read_buffer(1).address
            reader = pyarrow.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                column = reader.get_batch(number).column(0)
                _, offsets, values = column.buffers()
                starts = numpy.frombuffer(offsets, numpy.int64)[: len(column) + 1]
                begin = values.address - base
                found += [(str(path), begin + int(a), int(b - a)) for a, b in zip(starts, starts[1:])]
    return found


# --- systems: endless iterators of batches, as lists of tensors ---------------------------------------------------------


def of_shardd(asked, rank):
    workload, ranks = WORKLOADS[asked["workload"]], asked["ranks"]
    where = {"servers": [asked["server"]], "run": asked["run"]} if asked.get("server") else {"remote": asked["store"]}
    dataset = shardd.StreamingDataset(
        **where, dataset=NAME, q=1.0, partitions=ranks, rank=rank, world_size=ranks, shuffle_seed=asked["seed"]
    )
    loader = shardd.DataLoader(
        dataset, batch_size=workload.batch, drop_last=True, num_workers=threads(ranks), prefetch_factor=workload.ahead
    )
    while True:
        for batch in loader:
            yield [batch["sample"].values]


class Rows(torch.utils.data.Dataset):
    """The samples of a store, read from its files with one read each: the same bytes at the same places of the disk."""

    def __init__(self, store):
        self.places = json.loads(Path(store, PLACES).read_text())
        self.files = {}

    def __len__(self):
        return len(self.places)

    def __getitem__(self, number):
        path, place, size = self.places[number]
        if path not in self.files:
            self.files[path] = os.open(path, os.O_RDONLY)
        sample = torch.empty(size, dtype=torch.uint8)
        view, done = memoryview(sample.numpy()), 0
        while done < size:
            done += os.preadv(self.files[path], [view[done:]], place + done)
        return sample


def of_torch(asked, rank):
    workload, ranks, rows = WORKLOADS[asked["workload"]], asked["ranks"], asked["rows"]
    generator = torch.Generator().manual_seed(asked["seed"])
    order, epochs = [], 2 + asked["steps"] * workload.batch * ranks // len(rows)
    for _ in range(epochs):
        order += torch.randperm(len(rows), generator=generator).tolist()[rank::ranks]
    loader = torch.utils.data.DataLoader(
        rows,
        batch_size=workload.batch,
        sampler=order,
        drop_last=True,
        num_workers=threads(ranks),
        prefetch_factor=workload.ahead,
        # Samples of different sizes stay apart.
        collate_fn=list if workload.deviation_bytes else None,
    )
    for batch in loader:
        yield batch if isinstance(batch, list) else [batch]


SYSTEMS = {"store": of_shardd, "node": of_shardd, "torch": of_torch}


# --- ranks ------------------------------------------------------------------------------------------------------------------


def train(asked):
    torch.set_num_threads(1)
    if asked["system"] == "torch":
        asked["rows"] = Rows(asked["store"])
    context = multiprocessing.get_context("fork")
    barrier, over, answers = context.Barrier(asked["ranks"]), context.Value("b", 0), context.Queue()
    processes = [context.Process(target=answered, args=(asked, rank, barrier, over, answers)) for rank in range(asked["ranks"])]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    # Of a rank that fails the others find the barrier broken.
    if failed := sorted((one["error"] for one in found if "error" in one), key=lambda error: "BrokenBarrier" in error):
        sys.exit(failed[0])
    print(json.dumps(sorted(found, key=lambda one: one["rank"])))


def answered(asked, rank, barrier, over, answers):
    try:
        answers.put(steps(asked, rank, barrier, over))
    except Exception as error:
        barrier.abort()
        answers.put({"rank": rank, "error": f"rank {rank}: {type(error).__name__}: {error}"})
    finally:
        answers.close()
        answers.join_thread()
        os._exit(0)  # without waiting for threads and workers that read ahead


def steps(asked, rank, barrier, over):
    batches = SYSTEMS[asked["system"]](asked, rank)
    barrier.wait()
    began = time.perf_counter()
    ends, waits, read_bytes, samples = [], [], 0, 0
    while len(ends) < asked["steps"] and not over.value:
        asked_at = time.perf_counter()
        batch = next(batches)
        for tensor in batch:
            tensor.view(-1)[::PAGE_BYTES].sum()
            read_bytes += tensor.numel()
        del batch
        # The self-test slows the loader down with this.
        time.sleep(asked.get("slow_s", 0))
        waits.append(time.perf_counter() - asked_at)
        time.sleep(asked["compute_s"])
        barrier.wait()
        ends.append(time.perf_counter() - began)
        if rank == 0 and len(ends) >= asked["least"] and ends[-1] > asked["longest_s"]:
            over.value = 1
        barrier.wait()
    return {"rank": rank, "ends": ends, "waits": waits, "bytes": read_bytes, "disk_bytes": disk_bytes(os.getpid())}


if __name__ == "__main__":
    main()
