"""Lance: a dataset in its own columnar format, `take` of a batch of random rows (its documentation's way to shuffle all of
it). Threads are its own, so there is nothing to set."""

import lance
import numpy as np
import pyarrow
import torch

from . import System
from .arrows import of_table, tables


class Lance(System):
    title = "Lance, take"
    format = "lance"
    packages = ("pylance", "pyarrow")
    settings = (0,)

    @staticmethod
    def prepare(source, folder):
        nested = not source.kind.varied
        first, *rest = tables(source, nested)
        reader = pyarrow.RecordBatchReader.from_batches(
            first.schema, (part for table in (first, *rest) for part in table.to_batches())
        )
        lance.write_dataset(reader, str(folder / "data.lance"))

    def __init__(self, place, _setting):
        self.kind = place.kind
        self.dataset = lance.dataset(str(place.folder / "data.lance"))

    def epoch(self, seed):
        order = np.random.default_rng(seed).permutation(self.kind.rows)
        for start in range(0, len(order), self.kind.batch):
            table = self.dataset.take(order[start : start + self.kind.batch])
            yield self.tensors(table)

    def tensors(self, table):
        if self.kind.varied:
            return of_table(self.kind, table)
        numbers = table["y"].to_numpy()
        flat = table["x"].combine_chunks().flatten().to_numpy(zero_copy_only=True)
        return torch.tensor(flat).reshape(len(numbers), *self.kind.shape), torch.tensor(numbers)
