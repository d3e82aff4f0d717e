"""What the scripts beside this one share: which images there are, and a clock that starts after the imports."""

import json
import os
import time


def images(root):
    """Path and class number of every image in `root/SPLIT/CLASS/`, sorted."""
    found = []
    for split in ("test", "train"):
        folder = os.path.join(root, split)
        for label, name in enumerate(sorted(os.listdir(folder))):
            directory = os.path.join(folder, name)
            found += [(os.path.join(directory, file), label) for file in sorted(os.listdir(directory))]
    return found


def measure(convert, arguments, count):
    """Runs `convert(source, out)` and prints, as a line of JSON, the seconds it took and the samples its index counts."""
    source, out = arguments
    began = time.perf_counter()
    convert(source, out)
    seconds = time.perf_counter() - began
    with open(os.path.join(out, "index.json")) as file:
        samples = count(json.load(file))
    print(json.dumps({"seconds": seconds, "samples": samples}))
