"""Other people's loaders, and ours, behind one small interface.

A system is a class in a module of this folder:

    title       what the tables call it
    format      name of the folder that `prepare` fills; systems of one format share it
    packages    whose versions are noted
    settings    those tried, of which the fastest is measured: numbers of worker processes unless it says otherwise
    streams     "bucket" where it reads a bucket (and may keep files in a cache directory)
    prepare     writes a source in its format (static)
    __init__    opens the data: (place, setting), see child.Place
    epoch       yields the batches of a shuffled epoch: (x, numbers), tensors. Where rows vary in length x is a pair: all
                bytes of the batch in one tensor, and the offset of each row in it
    state, resume   where it can: the state within an epoch, and an iterator over the rest of that epoch
"""

import importlib
from importlib.metadata import PackageNotFoundError, version

# Bare loops, PyTorch's own, those made for one disk, those made for buckets, those reading one, ours.
SYSTEMS = {
    "from_numpy": ("plain", "FromNumpy"),
    "take": ("plain", "Take"),
    "take_clip": ("plain", "TakeClip"),
    "torch_batched": ("torchs", "Batched"),
    "torch_map": ("torchs", "MapStyle"),
    "torch_stateful": ("torchs", "Stateful"),
    "grain": ("grain", "Grain"),
    "hf_arrow": ("hf", "Arrow"),
    "hf_torch": ("hf", "TorchFormat"),
    "lance": ("lance", "Lance"),
    "tf_data": ("tfdata", "TfData"),
    "mosaic": ("mosaic", "Mosaic"),
    "litdata": ("litdata", "LitData"),
    "litdata_full": ("litdata", "LitDataFull"),
    "webdataset": ("webdataset", "WebDataset"),
    "mosaic_bucket": ("mosaic", "MosaicBucket"),
    "litdata_bucket": ("litdata", "LitDataBucket"),
    "litdata_full_bucket": ("litdata", "LitDataFullBucket"),
    "webdataset_bucket": ("webdataset", "WebDatasetBucket"),
    "hf_bucket": ("hf", "ParquetBucket"),
    "shardd": ("shardd_loader", "Shardd"),
    "shardd_in_torch": ("shardd_loader", "SharddInTorch"),
    "shardd_in_torch_1": ("shardd_loader", "SharddInTorch1"),
    "shardd_in_torch_2": ("shardd_loader", "SharddInTorch2"),
    "shardd_blocked": ("shardd_loader", "SharddBlocked"),
    "shardd_bucket": ("shardd_loader", "SharddBucket"),
    # For cold.py: they read, but are no loaders.
    "sequential": ("plain", "Sequential"),
    "random_8": ("disk", "Random8"),
    "random_32": ("disk", "Random32"),
    "random_64": ("disk", "Random64"),
    "shards_8": ("shardd_loader", "RandomOfShards8"),
    "shards_32": ("shardd_loader", "RandomOfShards32"),
}


LIMITS = ("sequential", "random_8", "random_32", "random_64", "shards_8", "shards_32")


class System:
    packages = ("torch",)
    settings = (0, 1, 2)
    streams = ""

    @classmethod
    def versions(cls):
        found = {}
        for package in cls.packages:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = "?"
        return found


def system(name):
    """The class of a system; imports its packages, which may not be installed."""
    module, cls = SYSTEMS[name]
    return getattr(importlib.import_module(f"systems.{module}"), cls)
