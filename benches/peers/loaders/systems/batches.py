"""What most systems need to make a batch of rows: tensors of one shape, or binaries one after the other."""

import numpy as np
import torch


def joined(rows):
    """Arrays of bytes of any length, as all bytes in one tensor and the offset of each."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(offsets)


def batch(kind, rows, numbers):
    """`rows` as arrays, or as bytes-like objects of the kind's type."""
    if not isinstance(rows[0], np.ndarray):
        rows = [np.frombuffer(row, dtype=kind.dtype) for row in rows]
    numbers = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
    if kind.varied:
        return joined(rows), numbers
    return torch.from_numpy(np.stack(rows).reshape(len(rows), *kind.shape)), numbers
