"""What scripts share that compare the samples of other programs with the rows that became of them.

Nothing of shardd is used: shards are found as docs/FORMAT.md says, and read by pyarrow.
"""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa


def rows_of(store, version):
    """The rows of a version, as a table."""
    manifest = pa.ipc.open_file(pa.memory_map(str(store / "manifests" / f"{version}.arrow"))).read_all()
    names = [entry.hex() for entry in manifest["shard"].to_pylist()]
    paths = [store / "shards" / name[:2] / f"{name}.arrow" for name in names]
    return pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths)


def check(expected, store, versions):
    """Compares versions with the rows that are expected of each; exits with 1 if some differ."""
    wrong = 0
    for name, version in versions.items():
        found, wanted = rows_of(store, version).to_pylist(), expected[name]
        differing = [row for row, pair in enumerate(zip(wanted, found)) if pair[0] != pair[1]]
        if len(found) != len(wanted) or differing:
            wrong += 1
            row = differing[0] if differing else 0
            print(f"{name}: {len(found)} rows, {len(differing)} differ: {found[row]} is not {wanted[row]}", file=sys.stderr)
        else:
            print(f"{name}: {len(wanted)} rows are equal")
    sys.exit(wrong > 0)


def main(write, expected):
    """The verbs `write FOLDER`, `check FOLDER STORE VERSIONS` and `run FOLDER SHARDCTL`. `write` makes each case in a folder, and
    `expected` has the rows of each by its name."""
    verb, root = sys.argv[1], Path(sys.argv[2])
    if verb != "check":
        write(root)
    if verb == "check":
        check(expected, Path(sys.argv[3]), json.loads(sys.argv[4]))
    elif verb == "run":
        store, versions = root / "store", {}
        for name in expected:
            ingest = ["ingest", str(root / name), "--name", name.split(".")[0], "--mix", "sequential"]
            command = [sys.argv[3], "--store", str(store), "--json", *ingest]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            versions[name] = json.loads(printed.splitlines()[-1])["version"]
        check(expected, store / "store", versions)
