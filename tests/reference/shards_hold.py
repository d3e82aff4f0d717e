#!/usr/bin/env python3
"""Opens the shards of a store's dataset with pyarrow and looks for every image of an archive in them: its bytes, its label.

    shards_hold.py STORE VERSION ARCHIVE.tar.gz FOLDER     prints how many were found; fails if one is missing or left over
"""
import json
import os
import sys
import tarfile

import pyarrow as pa


def main(store, version, archive, folder):
    with pa.memory_map(os.path.join(store, "manifests", version + ".arrow")) as source:
        shards = pa.ipc.open_file(source).read_all().to_pylist()
    held = {}
    for shard in shards:
        name = shard["shard"].hex()
        with pa.memory_map(os.path.join(store, "shards", name[:2], name + ".arrow")) as source:
            table = pa.ipc.open_file(source).read_all()
            classes = json.loads(table.schema.field("label").metadata[b"shardd.classes"])
            for row in table.to_pylist():
                assert row["path"] not in held, f"{row['path']} twice"
                held[row["path"]] = (row["image"], classes[row["label"]])
    found = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = member.name.removeprefix("./").split("/")
            if member.isfile() and len(parts) == 3 and parts[0] == folder:
                image, label = held.pop("/".join(parts))
                assert image == tar.extractfile(member).read(), f"{member.name} has other bytes"
                assert label == parts[1], f"{member.name} has label {label}"
                found += 1
    assert not held, f"{len(held)} samples that are not in the archive"
    print(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
