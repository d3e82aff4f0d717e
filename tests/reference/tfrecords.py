"""Writes TFRecord files with the package `tfrecord`, and compares their features with the rows that became of them.

    tfrecords.py write FOLDER                    writes each case into FOLDER/CASE; prints the cases
    tfrecords.py check FOLDER STORE VERSIONS     compares them with VERSIONS, which is JSON: {CASE: VERSION, ...}
    tfrecords.py run FOLDER SHARDCTL             does both, and ingests with SHARDCTL in between

Needs `pip install tfrecord==1.14.6 pyarrow`. Nothing of shardd is used by `check`: shards are found as docs/FORMAT.md says,
and read by pyarrow.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import tfrecord

ROWS = 100


def features(row):
    return {
        "box": ([row / 2, 0.5, -1.0, 3.25], "float"),
        "id": (row * 10**12 - 7, "int"),
        "image": (bytes([row]) * (row % 5 + 1), "byte"),
        "tags": (list(range(row % 4)), "int"),
        "words": ([b"a", b"b" * (row % 3)], "byte"),
    }


def of_features(row):
    return {name: value for name, (value, _) in features(row).items()}


def context(row):
    return {"label": (row, "int")}


def lists(row):
    return {
        "frames": ([[bytes([at])] for at in range(row % 3)], "byte"),
        "points": ([[float(at), row / 4] for at in range(row % 4)], "float"),
    }


def of_sequence(row):
    steps = lists(row)
    frames = [step[0] for step in steps["frames"][0]]
    return {"frames": frames, "label": row, "points": steps["points"][0]}


def examples(path):
    writer = tfrecord.TFRecordWriter(str(path))
    for row in range(ROWS):
        writer.write(features(row))
    writer.close()


def parts(path):
    path.mkdir()
    for part in range(4):
        writer = tfrecord.TFRecordWriter(str(path / f"x.tfrecord-0000{part}-of-00004"))
        for row in range(part * ROWS // 4, (part + 1) * ROWS // 4):
            writer.write(features(row))
        writer.close()


def compressed(path):
    plain = path.with_suffix("")
    examples(plain)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def sequences(path):
    writer = tfrecord.TFRecordWriter(str(path))
    for row in range(ROWS):
        writer.write(context(row), lists(row))
    writer.close()


CASES = {
    "all.tfrecord": (examples, of_features),
    "parts": (parts, of_features),
    "zipped.tfrecord.gz": (compressed, of_features),
    "sequences.tfrecord": (sequences, of_sequence),
}


def write(root):
    root.mkdir(parents=True, exist_ok=True)
    for name, (make, _) in CASES.items():
        make(root / name)
        print(name, flush=True)


def rows_of(store, version):
    manifest = pa.ipc.open_file(pa.memory_map(str(store / "manifests" / f"{version}.arrow"))).read_all()
    names = [entry.hex() for entry in manifest["shard"].to_pylist()]
    paths = [store / "shards" / name[:2] / f"{name}.arrow" for name in names]
    return pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths)


def check(root, store, versions):
    wrong = 0
    for name, version in versions.items():
        found, expected = rows_of(store, version).to_pylist(), [CASES[name][1](row) for row in range(ROWS)]
        differing = [row for row, pair in enumerate(zip(expected, found)) if pair[0] != pair[1]]
        if len(found) != ROWS or differing:
            wrong += 1
            row = differing[0] if differing else 0
            print(f"{name}: {len(found)} rows, {len(differing)} differ: {found[row]} is not {expected[row]}", file=sys.stderr)
        else:
            print(f"{name}: {ROWS} rows are equal")
    sys.exit(wrong > 0)


def run(root, shardctl):
    write(root)
    store, versions = root / "store", {}
    for name in CASES:
        command = [shardctl, "--store", str(store), "--json", "ingest", str(root / name), "--name", name.split(".")[0], "--mix", "sequential"]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        versions[name] = json.loads(printed.splitlines()[-1])["version"]
    check(root, store / "store", versions)


if __name__ == "__main__":
    verb, root = sys.argv[1], Path(sys.argv[2])
    if verb == "write":
        write(root)
    elif verb == "check":
        check(root, Path(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        run(root, sys.argv[3])
