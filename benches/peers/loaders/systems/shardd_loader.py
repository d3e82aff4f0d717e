"""shardd: a store that `shardctl ingest` makes of an Arrow file, read from its directory or from a bucket through its cache.

`shardctl` is the program that SHARDD_SHARDCTL names."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow
import shardd
import torch
from bucket import environment

from . import System
from .arrows import tables

NAME = "rows"


def arrow_file(folder):
    """What is ingested; beside what buckets serve."""
    return folder.parent.parent / "shardd.arrow"


def ingest(file, store, environment=None):
    command = [os.environ.get("SHARDD_SHARDCTL", "shardctl"), "ingest", file, "--name", NAME, "--store", store]
    subprocess.run(command, check=True, env=environment)


class Shardd(System):
    title = "shardd"
    format = "shardd"
    packages = ("shardd", "torch")

    @staticmethod
    def prepare(source, folder):
        kind = source.kind
        file = arrow_file(folder)
        x = pyarrow.large_binary()
        if not kind.varied:
            x = pyarrow.fixed_shape_tensor(pyarrow.from_numpy_dtype(kind.dtype), kind.shape)
        schema = pyarrow.schema([pyarrow.field("x", x, False), pyarrow.field("y", pyarrow.int64(), False)])
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_file(sink, schema) as writer:
            for table in tables(source, not kind.varied):
                rows, numbers = (column.combine_chunks() for column in table.columns)
                if not kind.varied:
                    rows = pyarrow.ExtensionArray.from_storage(x, rows)
                writer.write_table(pyarrow.table([rows, numbers], schema=schema))
        ingest(file, folder)

    def __init__(self, place, workers):
        self.kind = place.kind
        dataset = shardd.StreamingDataset(self.where(place), dataset=NAME, q=0.1, shuffle_seed=1, **self.cached(place))
        self.loader = shardd.DataLoader(dataset, batch_size=place.kind.batch, num_workers=workers)

    def where(self, place):
        return str(place.folder)

    def cached(self, _place):
        return {}

    def epoch(self, seed):
        self.loader.set_epoch(seed)
        return self.batches()

    def batches(self):
        for batch in self.loader:
            yield self.joined(batch["x"]) if self.kind.varied else batch["x"], batch["y"]

    def joined(self, rows):
        """Binaries as one tensor and offsets, if that is not how they come."""
        if isinstance(rows, tuple):
            return rows
        rows = [row if torch.is_tensor(row) else torch.frombuffer(row, dtype=torch.uint8) for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        return torch.cat(rows), torch.from_numpy(offsets)

    def state(self):
        return self.loader.state_dict()

    def resume(self, state):
        self.loader.load_state_dict(state)
        return self.batches()


class SharddBucket(Shardd):
    title = "shardd, bucket"
    streams = "bucket"

    @staticmethod
    def fill(place):
        """A bucket keeps the names of datasets otherwise than a directory, so it is filled as users fill one."""
        ingest(arrow_file(Path(place["folder"])), f"{place['bucket']['url']}/shardd-bucket", environment(place["bucket"]))

    def where(self, place):
        return f"{place.bucket['url']}/shardd-bucket"

    def cached(self, place):
        return {"local": str(place.cache)}
