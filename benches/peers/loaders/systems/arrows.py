"""Arrow tables of a source, for the formats that are made of those."""

import numpy as np
import pyarrow

from .batches import batch


def tables(source, nested):
    """The source as Arrow tables: rows as binary, or as the lists of numbers that format "torch" makes tensors of."""
    kind = source.kind
    for piece in source.pieces(16 << 20):
        numbers = pyarrow.array(source.numbers[piece])
        rows = [source.row(number) for number in source.numbers[piece]]
        if nested and kind.varied:
            offsets = np.cumsum([0] + [len(row) for row in rows], dtype=np.int32)
            x = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(np.concatenate(rows)))
        elif nested:
            x = pyarrow.FixedSizeListArray.from_arrays(np.concatenate(rows, axis=None), int(np.prod(kind.shape)))
        else:
            x = pyarrow.array([row.tobytes() for row in rows], pyarrow.large_binary())
        yield pyarrow.table({"x": x, "y": numbers})


def of_table(kind, table):
    """A batch of a table whose rows are binary."""
    rows = [row.as_buffer() for chunk in table["x"].chunks for row in chunk]
    return batch(kind, rows, table["y"].to_numpy())
