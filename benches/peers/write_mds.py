"""write_mds.py converter|parallel SOURCE OUT: a directory of labelled JPEGs as MosaicML Streaming's MDS.

`converter` does what the converter for ImageNet that comes with the package does (streaming/vision/convert/imagenet.py,
its defaults): one process opens every file with PIL, writes in a random order and has shards hashed with SHA-1 and
XXH64. `parallel` is the fastest that the documentation has ("Parallel dataset conversion", second way): every process
writes its part of the files to a directory of its own, bytes as they are, nothing looked at or hashed; then the indexes
are merged. Both keep the encoded images and leave compression off.
"""

import multiprocessing
import os
import sys

import numpy as np
from PIL import Image
from streaming import MDSWriter
from streaming.base.util import merge_index

import listing


def converter(source, out):
    files = listing.images(source)
    columns = {"i": "int", "x": "jpeg", "y": "int"}
    with MDSWriter(out=out, columns=columns, hashes=["sha1", "xxh64"]) as writer:
        for index in np.random.permutation(len(files)):
            path, label = files[index]
            writer.write({"i": int(index), "x": Image.open(path), "y": label})


def write_part(out, files):
    with MDSWriter(out=out, columns={"x": "bytes", "y": "int"}) as writer:
        for path, label in files:
            with open(path, "rb") as file:
                writer.write({"x": file.read(), "y": label})


def parallel(source, out):
    files = listing.images(source)
    workers = len(os.sched_getaffinity(0))
    parts = [(os.path.join(out, str(worker)), files[worker::workers]) for worker in range(workers)]
    with multiprocessing.Pool(workers) as pool:
        pool.starmap(write_part, parts)
    merge_index(out, keep_local=True)


if __name__ == "__main__":
    way = {"converter": converter, "parallel": parallel}[sys.argv[1]]
    listing.measure(way, sys.argv[2:], lambda index: sum(shard["samples"] for shard in index["shards"]))
