"""MosaicML Streaming: MDS shards of 64 MB, read by StreamingDataset through torch's DataLoader. Rows are arrays of a
declared shape and type, the encoding that its documentation has for them; shuffle settings are the defaults (py1e)."""

import os

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from . import System
from .batches import batch
from .torchs import Joined


class Rows(StreamingDataset):
    def __init__(self, varied, **settings):
        self.varied = varied
        super().__init__(**settings)

    def __getitem__(self, at):
        item = super().__getitem__(at)
        return item["x"], item["y"]


class Collate(Joined):
    """Numbers first: the loader counts its batches by the length of a batch's first part."""

    def __call__(self, items):
        rows, numbers = zip(*items)
        x, numbers = batch(self.kind, rows, numbers)
        return numbers, x


class Mosaic(System):
    title = "MosaicML Streaming"
    format = "mds"
    packages = ("mosaicml-streaming", "torch")

    @staticmethod
    def prepare(source, folder):
        kind = source.kind
        shape = ",".join(map(str, kind.shape))
        columns = {"x": "bytes" if kind.varied else f"ndarray:{kind.dtype}:{shape}", "y": "int64"}
        with MDSWriter(out=str(folder), columns=columns) as writer:
            for number in source.numbers:
                row = source.row(number)
                writer.write({"x": row.tobytes() if kind.varied else row, "y": number})

    def __init__(self, place, workers):
        self.kind = place.kind
        dataset = Rows(
            place.kind.varied, shuffle=True, batch_size=place.kind.batch, num_canonical_nodes=1, **self.where(place)
        )
        keep = {"persistent_workers": True} if workers else {}
        self.loader = StreamingDataLoader(
            dataset,
            batch_size=place.kind.batch,
            num_workers=workers,
            collate_fn=Collate(place.kind) if place.kind.varied else None,
            **keep,
        )

    def where(self, place):
        return {"local": str(place.folder)}

    def epoch(self, _seed):
        for batch in self.loader:  # it counts epochs itself
            yield batch[::-1] if self.kind.varied else batch

    def state(self):
        return self.loader.state_dict()

    def resume(self, state):
        self.loader.load_state_dict(state)
        return self.epoch(None)


class MosaicBucket(Mosaic):
    title = "MosaicML Streaming, bucket"
    streams = "bucket"

    def where(self, place):
        os.environ["S3_ENDPOINT_URL"] = place.bucket["endpoint"]
        return {"remote": f"{place.bucket['url']}/{place.folder.name}", "local": str(place.cache)}
