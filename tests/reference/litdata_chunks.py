"""Writes directories of chunks with LitData itself, and compares its samples with the rows that became of them.

    litdata_chunks.py write FOLDER                    writes each case into FOLDER/CASE; prints the cases
    litdata_chunks.py check FOLDER STORE VERSIONS     compares them with VERSIONS, which is JSON: {CASE: VERSION, ...}
    litdata_chunks.py run FOLDER SHARDCTL             does both, and ingests with SHARDCTL in between

Needs `pip install litdata==0.2.76 zstd pyarrow pillow` (LitData brings PyTorch), in an environment of its own. Nothing of
shardd is used by `check`: shards are found as docs/FORMAT.md says, and read by pyarrow.
"""

import io

import numpy as np
import torch
from litdata.streaming.item_loader import PyTreeLoader, TokensLoader
from litdata.streaming.writer import BinaryWriter
from PIL import Image

from ingested import main

ROWS = 60


def jpeg(row):
    file = io.BytesIO()
    Image.new("RGB", (6, 5), (row * 4, 90, 7)).save(file, "JPEG")
    return file.getvalue()


def picture(row):
    return Image.open(io.BytesIO(jpeg(row)))


def values(row):
    """A sample of every format that is read."""
    return {
        "bytes": bytes([row]) * (row % 5),
        "flag": row % 3 == 0,
        "id": row - 7,
        "lists": np.arange(row % 4, dtype="f4"),
        "matrix": np.full((2, 3), row, dtype="i2"),
        "nested": {"deep": (row, f"w{row}"), "tensor": torch.full((2, 2), row / 2, dtype=torch.float64)},
        "score": row / 8,
        "text": f"row {row} ü",
        "tokens": torch.arange(row % 6, dtype=torch.int64),
    }


def pictures(row):
    return {"image": picture(row), "label": row % 4}


def pair(row):
    return np.arange(3, dtype="u1") + row, row


def tokens(row):
    return torch.arange(row, row + 5 + row % 3, dtype=torch.int32)


def rows(row):
    """Plain values: they are written as an Arrow file."""
    return {"id": row, "tags": [f"t{at}" for at in range(row % 3)], "text": f"row {row}", "box": {"x": row / 2}}


class Case:
    def __init__(self, sample, expected, loader=PyTreeLoader, **options):
        self.sample, self.expected, self.loader, self.options = sample, expected, loader, options


def plain(value):
    """A value as pyarrow gives it: tensors are flat."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return np.asarray(value).ravel().tolist()
    return value


def of_values(row):
    sample = values(row)
    deep = sample.pop("nested")
    sample |= {"nested.deep.0": deep["deep"][0], "nested.deep.1": deep["deep"][1], "nested.tensor": deep["tensor"]}
    return {name: plain(value) for name, value in sample.items()}


def of_pictures(row):
    return {"image": jpeg(row), "label": row % 4}


def of_pair(row):
    return {"0": plain(pair(row)[0]), "1": row}


def of_tokens(row):
    return {"data": plain(tokens(row))}


WHOLE = {"compression": "zstd", "compression_level": "chunk"}
CASES = {
    "values": Case(values, of_values),
    "values-whole": Case(values, of_values, **WHOLE),
    "values-batch": Case(values, of_values, compression="zstd:3", compression_batch_size=7),
    "values-sample": Case(values, of_values, compression="zstd", compression_level="sample"),
    "pictures": Case(pictures, of_pictures),
    "pair": Case(pair, of_pair),
    "tokens": Case(tokens, of_tokens, TokensLoader),
    "tokens-whole": Case(tokens, of_tokens, TokensLoader, **WHOLE),
    "rows": Case(rows, rows),
    "rows-zstd": Case(rows, rows, compression="zstd"),
}


def write(root):
    for name, case in CASES.items():
        folder = root / name
        folder.mkdir(parents=True)
        writer = BinaryWriter(str(folder), chunk_bytes=2000, item_loader=case.loader(), **case.options)
        for row in range(ROWS):
            writer[row] = case.sample(row)
        writer.done()
        writer.merge()
        print(name, flush=True)


if __name__ == "__main__":
    main(write, {name: [case.expected(row) for row in range(ROWS)] for name, case in CASES.items()})
