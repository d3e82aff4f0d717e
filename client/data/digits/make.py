"""Makes train.parquet and test.parquet from scikit-learn's copy of the digits data set.

    pip download --no-deps scikit-learn==1.9.1
    unzip scikit_learn-*.whl sklearn/datasets/data/digits.csv.gz
    python make.py sklearn/datasets/data/digits.csv.gz    # needs numpy and pyarrow (made with 26.0.1)

A row goes to the test set by the SHA-256 of its number, a fixed share of each digit; nothing else is drawn.
"""

import gzip
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIGEST = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
TEST_ROWS = 360


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    packed = Path(path).read_bytes()
    found = hashlib.sha256(packed).hexdigest()
    if found != DIGEST:
        sys.exit(f"{path}: sha256 {found}, expected {DIGEST}")
    rows = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",").astype(np.int64)
    images, labels = rows[:, :64], rows[:, 64]
    assert rows.shape == (1797, 65) and images.min() == 0 and images.max() == 16
    return images.astype(np.uint8), labels


def test_rows(labels: np.ndarray) -> np.ndarray:
    """The same share of every digit, exactly TEST_ROWS in all (largest remainders round up)."""
    counts = np.bincount(labels)
    shares = counts * TEST_ROWS
    take = shares // len(labels)
    for digit in sorted(range(10), key=lambda digit: -(shares[digit] % len(labels)))[: TEST_ROWS - take.sum()]:
        take[digit] += 1
    chosen = np.zeros(len(labels), bool)
    for digit in range(10):
        rows = sorted(np.flatnonzero(labels == digit), key=lambda row: hashlib.sha256(b"digits %d" % row).digest())
        chosen[rows[: take[digit]]] = True
    return chosen


def write(name: str, images: np.ndarray, labels: np.ndarray) -> None:
    values = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 64)
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), [1, 8, 8]), values)
    classes = json.dumps([str(digit) for digit in range(10)], separators=(",", ":"))
    schema = pa.schema(
        [
            pa.field("image", tensors.type, nullable=False),
            pa.field("label", pa.int64(), nullable=False, metadata={"shardd.classes": classes}),
        ]
    )
    table = pa.Table.from_arrays([tensors, pa.array(labels)], schema=schema)
    pq.write_table(table, Path(__file__).with_name(name), compression="zstd")


images, labels = read(sys.argv[1])
test = test_rows(labels)
write("train.parquet", images[~test], labels[~test])
write("test.parquet", images[test], labels[test])
