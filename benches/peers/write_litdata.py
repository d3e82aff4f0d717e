"""write_litdata.py readme|generator SOURCE OUT: a directory of labelled JPEGs as chunks of LitData, by `optimize`.

`readme` is what the package's README does with images: a function from an input to a sample with a PIL image in it, which
LitData keeps encoded; a worker per core; chunks of 64 MB. `generator` is the fastest that was found in the documentation
of `optimize`: a function that yields the samples of 500 inputs, bytes as they are, ordered inputs (no queue between
workers), and processes that are forked. Neither compresses.
"""

import os
import sys

from litdata import optimize
from PIL import Image

import listing

GROUP = 500


def sample(item):
    path, label = item
    return {"image": Image.open(path), "class": label}


def samples(items):
    for path, label in items:
        with open(path, "rb") as file:
            yield {"image": file.read(), "class": label}


def readme(source, out):
    run(out, fn=sample, inputs=listing.images(source))


def generator(source, out):
    files = listing.images(source)
    groups = [files[start : start + GROUP] for start in range(0, len(files), GROUP)]
    run(out, fn=samples, inputs=groups, start_method="fork", keep_data_ordered=True)


def run(out, **settings):
    workers = len(os.sched_getaffinity(0))
    optimize(output_dir=out, num_workers=workers, chunk_bytes="64MB", verbose=False, **settings)


if __name__ == "__main__":
    way = {"readme": readme, "generator": generator}[sys.argv[1]]
    listing.measure(way, sys.argv[2:], lambda index: sum(chunk["chunk_size"] for chunk in index["chunks"]))
