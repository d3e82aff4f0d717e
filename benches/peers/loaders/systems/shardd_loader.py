"""shardd: a store that `shardctl ingest` makes of an Arrow file, read from its directory or from a bucket through its cache.

`shardctl` is the program that SHARDD_SHARDCTL names."""

import os
import subprocess
from pathlib import Path

import pyarrow
import shardd
import torch.utils.data
from bucket import environment

from . import System
from .arrows import tables
from .disk import Random

NAME = "rows"


def arrow_file(folder):
    """The ingested dataset; beside the files that buckets serve."""
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
        how = {**self.cached(place), **self.plan(place.kind)}
        dataset = dataset_of(self.where(place), **how)
        self.loader = shardd.DataLoader(dataset, batch_size=place.kind.batch, num_workers=workers)

    def where(self, place):
        return str(place.folder)

    def cached(self, _place):
        return {}

    def plan(self, _kind):
        return {}

    def epoch(self, seed):
        self.loader.set_epoch(seed)
        return self.batches()

    def batches(self):
        return batches_of(self.loader, self.kind)

    def state(self):
        return self.loader.state_dict()

    def resume(self, state):
        self.loader.load_state_dict(state)
        return self.batches()


def dataset_of(place, **how):
    return shardd.StreamingDataset(place, dataset=NAME, q=0.1, shuffle_seed=1, **how)


def batches_of(loader, kind):
    for batch in loader:
        x = batch["x"]
        yield (x.values, x.offsets) if kind.varied else x, batch["y"]


class SharddInTorch(System):
    """The dataset in the DataLoader of PyTorch, which a script may have to keep."""

    title = "shardd in torch's DataLoader, no workers"
    format = Shardd.format
    packages = Shardd.packages
    prepare = Shardd.prepare
    settings = (0,)

    def __init__(self, place, workers):
        self.kind = place.kind
        self.dataset = dataset_of(str(place.folder), batch_size=place.kind.batch)
        keep = {"persistent_workers": True} if workers else {}
        self.loader = torch.utils.data.DataLoader(self.dataset, batch_size=None, num_workers=workers, **keep)

    def epoch(self, seed):
        self.dataset.set_epoch(seed)
        return batches_of(self.loader, self.kind)


class SharddInTorch1(SharddInTorch):
    title, settings = "shardd in torch's DataLoader, one worker", (1,)


class SharddInTorch2(SharddInTorch):
    title, settings = "shardd in torch's DataLoader, two workers", (2,)


class SharddBlocked(Shardd):
    """With an order for data that memory does not hold: of every partition some grains of a quarter of a megabyte at a time."""

    title = "shardd, in blocks"

    def plan(self, kind):
        rows = max(1, (256 << 10) // kind.row_bytes)
        return {"grain_rows": 1 << (rows.bit_length() - 1), "block_slots": 4}


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


class RandomOfShards(Random):
    """No loader: as many bytes as rows have, here and there in the files of the shards, past the page cache."""

    format = Shardd.format
    prepare = Shardd.prepare

    def __init__(self, place, setting):
        super().__init__(place, setting)
        self.shards = sorted(place.folder.glob("store/shards/**/*.arrow"))

    def files(self):
        return self.shards


class RandomOfShards8(RandomOfShards):
    title, depth = "random reads of the shards past the page cache, 8 at a time", 8


class RandomOfShards32(RandomOfShards):
    title, depth = "random reads of the shards past the page cache, 32 at a time", 32
