"""Grain over ArrayRecord: a global shuffle by index, rows decoded and batched by Grain. `settings` are 0 (no threads of
its own, advised where data is in memory), "threads" (its default, 16) and 2 worker processes."""

import grain.python as grain
import torch
from array_record.python.array_record_module import ArrayRecordWriter

from . import System
from .batches import batch


class Grain(System):
    title = "Grain + ArrayRecord"
    format = "array_record"
    packages = ("grain", "array-record")
    settings = (0, "threads", 2)

    @staticmethod
    def prepare(source, folder):
        # A group of one record, uncompressed: what random access is served best by.
        writer = ArrayRecordWriter(str(folder / "rows.array_record"), "group_size:1,uncompressed")
        for number in source.numbers:
            writer.write(number.tobytes() + source.row(number).tobytes())
        writer.close()

    def __init__(self, place, setting):
        self.collate = Collate(place.kind)
        self.kind, self.setting = place.kind, setting
        self.source = grain.ArrayRecordDataSource([str(place.folder / "rows.array_record")])

    def opened(self, seed):
        rows = grain.MapDataset.source(self.source).seed(seed).shuffle()
        batches = rows.batch(self.kind.batch, batch_fn=self.collate)
        if self.setting == "threads":
            return iter(batches.to_iter_dataset())
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        read = batches.to_iter_dataset(options)
        if self.setting:
            read = read.mp_prefetch(grain.MultiprocessingOptions(num_workers=self.setting))
        return iter(read)

    def epoch(self, seed):
        return self.batches(seed, self.opened(seed))

    def batches(self, seed, iterator):
        self.reading = seed, iterator
        for (x, offsets), numbers in iterator:
            x = torch.from_numpy(x)
            yield (x, torch.from_numpy(offsets)) if self.kind.varied else x, torch.from_numpy(numbers)

    def state(self):
        seed, iterator = self.reading
        return seed, iterator.get_state()

    def resume(self, state):
        seed, position = state
        iterator = self.opened(seed)
        iterator.set_state(position)
        return self.batches(seed, iterator)


class Collate:
    """To arrays: Grain shares those between processes, and tensors not."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, records):
        numbers = [int.from_bytes(record[:8], "little") for record in records]
        x, numbers = batch(self.kind, [memoryview(record)[8:] for record in records], numbers)
        x, offsets = x if self.kind.varied else (x, numbers)
        return (x.numpy(), offsets.numpy()), numbers.numpy()
