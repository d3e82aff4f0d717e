"""CIFAR-10 brought to 16x16, as `.npz` that `shardctl ingest` takes. Everything comes out of `shardctl`, so the pixels, and with
them versions, plans and weights, are the same on every machine: it decodes the JPEGs to tensors and exports those; here four
pixels become their rounded mean, colours become channels, and 128 is taken off, so that grey is 0 (signed bytes; the trainer
divides them by 127)."""

import os
import subprocess
import tarfile
import tempfile
import zipfile
from collections import Counter
from operator import add
from pathlib import Path

SIDE = 32
HEADER = 128  # of a small .npy


def pooled(pixels):
    """32x32 pixels of red, green, blue to three channels of 16x16: mean of 2x2, a half rounded up, less 128."""
    channels = []
    for colour in range(3):
        plane = pixels[colour::3]
        pairs = list(map(add, plane[0::2], plane[1::2]))  # 32 rows of 16
        half = SIDE // 2
        upper = [sum_ for row in range(0, SIDE, 2) for sum_ in pairs[row * half : (row + 1) * half]]
        lower = [sum_ for row in range(1, SIDE, 2) for sum_ in pairs[row * half : (row + 1) * half]]
        channels.append(bytes((a + b + 2) >> 2 ^ 0x80 for a, b in zip(upper, lower)))
    return b"".join(channels)


def npy(kind, shape, body):
    """Bytes as a NumPy array of them, signed (`i1`) or not (`u1`)."""
    header = f"{{'descr': '|{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(HEADER - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + header.encode() + body


def decoded(shardctl, archive, folder, work):
    """(label, pixels) of every image of a folder of the archive, class by class."""
    store, out = work / f"{folder}-store", work / f"{folder}-tensors"
    take = ["--under", folder, "--name", folder, "--mix", "sequential", "--decode"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([shardctl, "--json", "--store", store, "ingest", archive, *take], **quiet)
    subprocess.run([shardctl, "--json", "--store", store, "export", folder, out, "--format", "webdataset"], **quiet)
    for tar in sorted(out.glob("*.tar")):
        pixels = None
        with tarfile.open(tar) as members:
            for member in members:
                if member.name.endswith(".image.npy"):
                    pixels = members.extractfile(member).read()[-3 * SIDE * SIDE :]
                elif member.name.endswith(".label.cls"):
                    yield int(members.extractfile(member).read()), pixels


def make(shardctl, archive, folder, per_class, path):
    """Writes the first images of each class, sorted by class."""
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        write(decoded(shardctl, archive, folder, Path(work)), per_class, path)


def write(rows, per_class, path):
    taken, images, labels = Counter(), [], bytearray()
    for label, pixels in rows:
        if taken[label] < per_class:
            taken[label] += 1
            images.append(pooled(pixels))
            labels.append(label)
    assert sorted(labels) == list(labels), "an ingest in sequence is class by class"
    unfinished = path.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w") as arrays:  # with dates of its own: the same bytes each time
        arrays.writestr(zipfile.ZipInfo("image.npy"), npy("i1", (len(images), 3, SIDE // 2, SIDE // 2), b"".join(images)))
        arrays.writestr(zipfile.ZipInfo("label.npy"), npy("u1", (len(labels),), bytes(labels)))
    os.replace(unfinished, path)
