"""Hugging Face datasets: an Arrow file that is mapped, asked for a batch of random rows at a time; as tensors (format
"torch"), and as Arrow whose buffers become tensors here, the fastest that its documentation has. And Parquet streamed from a
bucket over HTTP, with a shuffle buffer of 1,000 rows as by default."""

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from datasets import Dataset, Features, Sequence, Value, load_dataset
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from . import System
from .arrows import of_table, tables
from .batches import joined

BUFFER = 1000


def write(source, folder, nested):
    from datasets.arrow_writer import ArrowWriter

    if not nested:
        features = Features({"x": Value("large_binary"), "y": Value("int64")})
    else:
        length = -1 if source.kind.varied else int(np.prod(source.kind.shape))
        features = Features({"x": Sequence(Value(source.kind.dtype), length=length), "y": Value("int64")})
    with ArrowWriter(features=features, path=str(folder / "data.arrow")) as writer:
        for table in tables(source, nested):
            writer.write_table(table)
        writer.finalize()


class TorchFormat(System):
    title = 'HF datasets, format "torch"'
    format = "hf_nested"
    packages = ("datasets", "pyarrow", "torch")

    @staticmethod
    def prepare(source, folder):
        write(source, folder, True)

    def __init__(self, place, workers):
        self.kind = place.kind
        dataset = Dataset.from_file(str(place.folder / "data.arrow")).with_format(self.form())
        self.generator = torch.Generator()
        sampler = BatchSampler(RandomSampler(dataset, generator=self.generator), self.kind.batch, drop_last=False)
        keep = {"persistent_workers": True} if workers else {}
        self.loader = DataLoader(
            dataset, sampler=sampler, batch_size=None, collate_fn=self.collate, num_workers=workers, **keep
        )

    def form(self):
        return "torch"

    def collate(self, items):
        # The format makes every integer an int64; a type that is asked for would be that of `y`, too.
        if self.kind.varied:
            return joined([row.numpy().astype(self.kind.dtype) for row in items["x"]]), items["y"]
        return items["x"].to(getattr(torch, self.kind.dtype)).reshape(-1, *self.kind.shape), items["y"]

    def epoch(self, seed):
        self.generator.manual_seed(seed)
        return iter(self.loader)


class Arrow(TorchFormat):
    title = "HF datasets, Arrow"
    format = "hf_binary"

    @staticmethod
    def prepare(source, folder):
        write(source, folder, False)

    def form(self):
        return "arrow"

    def collate(self, table):
        return of_table(self.kind, table)


class ParquetBucket(System):
    title = "HF datasets streaming Parquet, bucket"
    format = "parquet"
    packages = ("datasets", "pyarrow", "torch")
    streams = "bucket"

    @staticmethod
    def prepare(source, folder):
        whole = list(tables(source, False))
        parts = max(1, len(whole) // 4)  # files of about 64 MB, at least four
        for part, start in enumerate(range(0, len(whole), parts)):
            schema = whole[start].schema
            with pyarrow.parquet.ParquetWriter(
                folder / f"{part:03}.parquet", schema, compression="none", use_dictionary=False
            ) as writer:
                for table in whole[start : start + parts]:
                    writer.write_table(table, row_group_size=max(1, (4 << 20) // source.kind.row_bytes))

    def __init__(self, place, workers):
        files = sorted(path.name for path in place.folder.glob("*.parquet"))
        urls = [f"{place.bucket['http']}/{place.folder.name}/{name}" for name in files]
        self.kind = place.kind
        dataset = load_dataset("parquet", data_files=urls, split="train", streaming=True, cache_dir=str(place.cache))
        self.dataset = dataset.shuffle(seed=1, buffer_size=BUFFER).with_format("arrow")
        keep = {"persistent_workers": True} if workers else {}
        batches = self.dataset.batch(self.kind.batch)
        self.loader = DataLoader(batches, batch_size=None, collate_fn=self.collate, num_workers=workers, **keep)

    def collate(self, table):
        if isinstance(table, dict):
            table = pyarrow.table(table)
        x, y = table["x"].combine_chunks(), table["y"].combine_chunks()
        flat = pyarrow.table({"x": x.flatten(), "y": y.flatten()}) if pyarrow.types.is_list(y.type) else table
        return of_table(self.kind, flat)

    def epoch(self, seed):
        self.dataset.set_epoch(seed)
        return iter(self.loader)
