"""torch.utils.data.DataLoader over a mapped file: a row at a time, as most people write it, and a batch at a time; and
torchdata's StatefulDataLoader, which can resume. Best settings: a generator with a seed, no pinning without a GPU."""

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from kinds import Source

from . import System
from .batches import batch, joined


class Rows(Dataset):
    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, number):
        return torch.from_numpy(self.source.row(number)), self.source.numbers[number]


class Batches(Rows):
    """Asked for a list of rows, it answers with the batch."""

    def __getitem__(self, numbers):
        source = self.source
        if source.kind.varied:
            x = joined([source.row(number) for number in numbers])
        else:
            x = torch.from_numpy(source.x[numbers])
        return x, torch.from_numpy(source.numbers[numbers])


def collate(kind):
    """PyTorch's own, save that binaries are joined."""
    if not kind.varied:
        return None
    return Joined(kind)


class Joined:
    def __init__(self, kind):
        self.kind = kind

    def __call__(self, items):
        rows, numbers = zip(*items)
        return batch(self.kind, [row.numpy() for row in rows], numbers)


class MapStyle(System):
    title = "torch DataLoader, map-style"
    format = ""

    @staticmethod
    def prepare(source, folder):
        """The source itself is read."""

    def __init__(self, place, workers):
        self.workers, self.kind = workers, place.kind
        self.source = Source(place.source, place.kind)
        self.generator = torch.Generator()
        self.loader = self.opened()

    def opened(self):
        return DataLoader(Rows(self.source), **self.settings_of())

    def settings_of(self):
        keep = {"persistent_workers": True} if self.workers else {}
        return {
            "batch_size": self.kind.batch,
            "shuffle": True,
            "generator": self.generator,
            "num_workers": self.workers,
            "collate_fn": collate(self.kind),
            **keep,
        }

    def epoch(self, seed):
        self.generator.manual_seed(seed)
        return iter(self.loader)


class Batched(MapStyle):
    title = "torch DataLoader, batched sampler on memmap"

    def opened(self):
        rows = Batches(self.source)
        sampler = BatchSampler(RandomSampler(rows, generator=self.generator), self.kind.batch, drop_last=False)
        keep = {"persistent_workers": True} if self.workers else {}
        return DataLoader(rows, sampler=sampler, batch_size=None, num_workers=self.workers, **keep)


class Stateful(MapStyle):
    title = "torchdata StatefulDataLoader, map-style"
    packages = ("torchdata", "torch")

    def opened(self):
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Rows(self.source), **self.settings_of())

    def state(self):
        return self.loader.state_dict()

    def resume(self, state):
        self.loader.load_state_dict(state)
        return iter(self.loader)
