#!/usr/bin/env python3
"""What every step of a plan must deliver, by code that shares nothing with shardd's: the Python reference gives the order,
pyarrow reads the shards.

    steps.py STORE PLAN FIRST_EPOCH END_EPOCH GLOBAL_BATCH

Prints "epoch step samples sum" for each step: the sum, modulo 2^128, of a digest of (position, row digest) of every sample.
Rows have the columns image (binary), label (int64) and path (text).
"""
import json
import os
import struct
import sys

import pyarrow as pa
from blake3 import blake3

from plan import Plan


def rows_of(path):
    """The row digests of a shard, in order."""
    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all()
        columns = [table.column(name).to_pylist() for name in ("image", "label", "path")]
    digests = []
    for image, label, name in zip(*columns):
        name = name.encode()
        row = b"".join([
            b"\x01", struct.pack("<I", len(image)), image,
            b"\x01", struct.pack("<q", label),
            b"\x01", struct.pack("<I", len(name)), name,
        ])
        digests.append(blake3(row, derive_key_context="shardfmt 2026 row v1").digest()[:16])
    return digests


def main(store, plan_id, first, end, global_batch):
    with open(os.path.join(store, "plans", plan_id + ".json")) as file:
        document = json.load(file)
    with pa.memory_map(os.path.join(store, "manifests", document["version"] + ".arrow")) as source:
        shards = pa.ipc.open_file(source).read_all().to_pylist()
    ids = [shard["shard"].hex() for shard in shards]
    digests = [rows_of(os.path.join(store, "shards", name[:2], name + ".arrow")) for name in ids]
    plan = Plan(document, [len(rows) for rows in digests])
    for epoch, table in zip(range(end), plan.tables()):
        if epoch < first:
            continue
        step, samples, total = 0, 0, 0
        for position, (shard, row) in enumerate(plan.order(epoch, table)):
            entry = struct.pack("<Q", position) + digests[shard][row]
            total += int.from_bytes(blake3(entry).digest()[:16], "little")
            samples += 1
            if samples == global_batch:
                print(epoch, step, samples, f"{total % 2**128:032x}")
                step, samples, total = step + 1, 0, 0
        if samples:
            print(epoch, step, samples, f"{total % 2**128:032x}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
