"""Writes TFRecord files with the package `tfrecord`, and compares their features with the rows that became of them.

    tfrecords.py write FOLDER                    writes each case into FOLDER/CASE; prints the cases
    tfrecords.py check FOLDER STORE VERSIONS     compares them with VERSIONS, which is JSON: {CASE: VERSION, ...}
    tfrecords.py run FOLDER SHARDCTL             does both, and ingests with SHARDCTL in between

Needs `pip install tfrecord==1.14.6 pyarrow`. Nothing of shardd is used by `check`: shards are found as docs/FORMAT.md says,
and read by pyarrow.
"""

import gzip

import tfrecord

from ingested import main

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


if __name__ == "__main__":
    main(write, {name: [expected(row) for row in range(ROWS)] for name, (_, expected) in CASES.items()})
