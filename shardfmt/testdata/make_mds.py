"""Makes the MosaicML shards beside it: pip install mosaicml-streaming==0.13.0; python make_mds.py. The tests
know their contents."""

import io
import pathlib
import shutil
from decimal import Decimal

import numpy as np
from PIL import Image
from streaming import MDSWriter

COLUMNS = {
    "bytes": "bytes", "text": "str", "int": "int", "u8": "uint8", "i16": "int16", "f16": "float16", "f32": "float32", "f64": "float64",
    "u64": "uint64", "decimal": "str_decimal", "big": "str_int", "real": "str_float", "json": "json", "jpeg": "jpeg", "png": "png",
    "fixed": "ndarray:float32:2,3", "alike": "ndarray", "ragged": "ndarray:int64", "mixed": "ndarray", "views": "list[jpeg]",
}


def encoded(shade, format):
    out = io.BytesIO()
    Image.new("RGB", (6, 5), (shade, 40, 50)).save(out, format)
    return out.getvalue()


def picture(shade, format):
    return Image.open(io.BytesIO(encoded(shade, format)))


def sample(i):
    return {
        "bytes": bytes([i, 255 - i]), "text": f"sample {i} ü", "int": -i, "u8": i, "i16": -1000 * i, "f16": i / 2, "f32": i / 4, "f64": i / 8,
        "u64": 2**63 + i, "decimal": Decimal(i) / 8, "big": 10**30 + i, "real": i + 0.5, "json": {"i": i, "half": [i / 2, None]},
        "jpeg": picture(i, "JPEG"), "png": picture(i, "PNG"), "fixed": np.full((2, 3), i, np.float32), "alike": np.full((3, 2), i, np.uint8),
        "ragged": np.arange(1, i + 2), "mixed": np.ones((1, i + 1), np.int16 if i % 2 else np.float64), "views": [picture(i, "JPEG")] * (i % 3),
    }


if __name__ == "__main__":
    root = pathlib.Path(__file__).parent / "mds"
    shutil.rmtree(root, ignore_errors=True)
    for name, compression, hashes in [("plain", None, ["sha1", "xxh64"]), ("zstd", "zstd:7", ["xxh64"]), ("gz", "gz", [])]:
        with MDSWriter(columns=COLUMNS, out=str(root / name), compression=compression, hashes=hashes, size_limit=8000) as out:
            for i in range(7):
                out.write(sample(i))
    with MDSWriter(columns={"raw": "pil", "label": "int"}, out=str(root / "pil")) as out:
        for i, mode in enumerate(["RGB", "L", "RGBA"]):
            out.write({"raw": Image.new("RGB", (4, 2), (10, 20, 30 + i)).convert(mode), "label": i})
    with MDSWriter(columns={"code": "pkl", "label": "int"}, out=str(root / "pickled")) as out:
        out.write({"code": [1, 2], "label": 7})
