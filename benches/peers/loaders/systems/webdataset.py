"""WebDataset: tars of about 64 MB, at least four, shuffled by shard and in a buffer of 1,000 rows (its documentation's),
batched in the workers. From a bucket it reads every epoch again, through curl, as it does by default."""

import io
import math
import tarfile

import webdataset

from . import System
from .batches import batch

BUFFER = 1000


class WebDataset(System):
    title = "WebDataset"
    format = "tar"
    packages = ("webdataset", "torch")

    @staticmethod
    def prepare(source, folder):
        kind = source.kind
        tars = max(4, math.ceil(kind.rows * kind.row_bytes / (64 << 20)))
        per_tar = math.ceil(kind.rows / tars)
        for start in range(0, kind.rows, per_tar):
            with tarfile.open(folder / f"{start // per_tar:03}.tar", "w") as tar:
                for number in range(start, min(start + per_tar, kind.rows)):
                    for suffix, data in (("bin", source.row(number).tobytes()), ("cls", str(number).encode())):
                        member = tarfile.TarInfo(f"{number:08}.{suffix}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))

    def __init__(self, place, workers):
        tars = sorted(path.name for path in place.folder.glob("*.tar"))
        urls = [f"{self.where(place)}/{name}" for name in tars]
        self.dataset = (
            webdataset.WebDataset(urls, shardshuffle=len(urls), detshuffle=True, seed=1)
            .shuffle(BUFFER)
            .to_tuple("bin", "cls")
            .map_tuple(bytes, int)
            .batched(place.kind.batch, collation_fn=Collate(place.kind))
        )
        keep = {"persistent_workers": True} if workers else {}
        self.loader = webdataset.WebLoader(self.dataset, batch_size=None, num_workers=workers, **keep)

    def where(self, place):
        return str(place.folder)

    def epoch(self, _seed):
        return iter(self.loader)


class Collate:
    def __init__(self, kind):
        self.kind = kind

    def __call__(self, items):
        rows, numbers = zip(*items)
        return batch(self.kind, rows, numbers)


class WebDatasetBucket(WebDataset):
    title = "WebDataset, bucket"
    streams = "bucket"

    def where(self, place):
        return f"{place.bucket['http']}/{place.folder.name}"
