"""LitData: chunks of 64 MB made by `optimize`, read by StreamingDataset and StreamingDataLoader. Once with the defaults,
once with a whole chunk shuffled and rows decoded one by one (`item_shuffle_window="full"`, `batch_decode=0`), which its
documentation offers where the default window of 256 rows mixes too little."""

import os

os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"  # a look at the package index is no part of opening a dataset

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize
from litdata.streaming import downloader

from kinds import Source

from . import System
from .torchs import collate


class Write:
    """Made before workers are forked, so that they need not be sent the rows."""

    def __init__(self, source):
        self.source = source

    def __call__(self, part):
        for number in range(part.start, part.stop):
            yield torch.from_numpy(self.source.row(number)).clone(), number


class LitData(System):
    title = "LitData"
    format = "litdata"
    packages = ("litdata", "torch")
    window = {}

    @staticmethod
    def prepare(source, folder):
        parts = list(source.pieces())
        optimize(
            fn=Write(Source(source.folder, source.kind)),
            inputs=parts,
            output_dir=str(folder),
            num_workers=1,
            chunk_bytes="64MB",
            start_method="fork",
            keep_data_ordered=True,
            verbose=False,
        )

    def __init__(self, place, workers):
        dataset = StreamingDataset(shuffle=True, seed=1, **self.where(place), **self.window)
        keep = {"persistent_workers": True} if workers else {}
        extra = {"collate_fn": collate(place.kind)} if place.kind.varied else {}
        self.loader = StreamingDataLoader(dataset, batch_size=place.kind.batch, num_workers=workers, **keep, **extra)

    def where(self, place):
        return {"input_dir": str(place.folder)}

    def epoch(self, _seed):
        return iter(self.loader)  # it counts epochs itself

    def state(self):
        return self.loader.state_dict()

    def resume(self, state):
        self.loader.load_state_dict(state)
        return iter(self.loader)


class LitDataFull(LitData):
    title = "LitData, whole chunks shuffled"
    window = {"item_shuffle_window": "full", "batch_decode": 0}


class LitDataBucket(LitData):
    title = "LitData, bucket"
    streams = "bucket"

    def where(self, place):
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the faster of its two clients insists on TLS otherwise
        options = {"endpoint_url": place.bucket["endpoint"]}
        url = f"{place.bucket['url']}/{place.folder.name}"
        return {"input_dir": url, "cache_dir": str(place.cache), "storage_options": options, "max_cache_size": "30GB"}


class LitDataFullBucket(LitDataBucket, LitDataFull):
    title = "LitData, bucket, whole chunks shuffled"
