"""tf.data over TFRecord files: a shuffle buffer of 10,000 rows over interleaved files, batched and decoded a batch at a time,
with as many threads as it likes (AUTOTUNE). Its tensors are handed to PyTorch through NumPy."""

import math
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow
import torch

from . import System
from .batches import batch

BUFFER = 10_000


class TfData(System):
    title = "tf.data"
    format = "tfrecord"
    packages = ("tensorflow-cpu", "torch")
    settings = (0,)

    @staticmethod
    def prepare(source, folder):
        kind = source.kind
        files = max(4, math.ceil(kind.rows * kind.row_bytes / (64 << 20)))
        per_file = math.ceil(kind.rows / files)
        for start in range(0, kind.rows, per_file):
            with tensorflow.io.TFRecordWriter(str(folder / f"{start // per_file:03}.tfrecord")) as writer:
                for number in range(start, min(start + per_file, kind.rows)):
                    writer.write(source.numbers[number].tobytes() + source.row(number).tobytes())

    def __init__(self, place, _setting):
        self.kind = kind = place.kind
        files = sorted(str(path) for path in place.folder.glob("*.tfrecord"))
        auto = tensorflow.data.AUTOTUNE
        rows = (
            tensorflow.data.Dataset.from_tensor_slices(files)
            .shuffle(len(files), seed=1)
            .interleave(tensorflow.data.TFRecordDataset, cycle_length=len(files), num_parallel_calls=auto)
            .shuffle(BUFFER, seed=1)  # in another order each epoch
            .batch(kind.batch)
        )
        if not kind.varied:
            rows = rows.map(self.decoded, num_parallel_calls=auto)
        self.batches = rows.prefetch(auto)

    def decoded(self, records):
        numbers = tensorflow.io.decode_raw(tensorflow.strings.substr(records, 0, 8), tensorflow.int64)
        bytes_of = tensorflow.strings.substr(records, 8, self.kind.row_bytes)
        return tensorflow.io.decode_raw(bytes_of, self.kind.dtype), numbers

    def epoch(self, _seed):
        for records in self.batches:
            if self.kind.varied:
                records = records.numpy()
                numbers = [int.from_bytes(record[:8], "little") for record in records]
                yield batch(self.kind, [np.frombuffer(record, np.uint8)[8:] for record in records], numbers)
            else:
                x, numbers = (torch.from_numpy(tensor.numpy()) for tensor in records)
                yield x.reshape(-1, *self.kind.shape), numbers.flatten()
