"""Loaders of other projects beside shardd's, as ratios: from the lines of benches/peers/loaders/measure.py."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from programs import ROOT, CannotRun
from registry import Bench

RUN = ROOT / "benches" / "peers" / "loaders" / "run"
RESULTS = RUN.with_name("loaders.jsonl")
KINDS = {"A": "samples of 784 B", "B": "samples of 3 KB", "C": "samples of 150 KB", "X": "binaries of 50 to 150 KB", "E": "sequences of tokens"}
# What `--full` measures: the limit, PyTorch's own, and those that read more than this machine's disk.
SYSTEMS = (
    "from_numpy,take_clip,torch_batched,grain,mosaic,litdata,litdata_full,webdataset,mosaic_bucket,litdata_bucket,litdata_full_bucket,"
    "shardd,shardd_bucket"
)
LOOPS = {"take_clip": "np.take loop", "from_numpy": "from_numpy loop"}
OPTIONS = ["--kinds", "ABC", "--rows", "C=1500"]


def measured():
    """The lines of a run. The first one downloads the packages."""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "loaders.jsonl"
        command = [RUN, *OPTIONS, "--systems", SYSTEMS, "--json", file]
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode:
            needs = "6 GB, cifar10-jpeg.tar.gz in the shared folder, and a package index for the first time"
            raise CannotRun(f"{RUN.relative_to(ROOT)} failed: it needs {needs}")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["what"] == "failed":
            print(f"not measured: {line['system']}, {KINDS[line['kind']]}: {line['reason']}", file=sys.stderr)
    return lines


def versions(lines):
    found = {}
    for line in lines:
        if line["what"] == "first":
            found.update(line["versions"])
    return found


def ours(name):
    """Those that read a bucket are compared with the loader that does."""
    return "shardd_bucket" if name.endswith("_bucket") else "shardd"


def pairs(lines):
    """By kind and system: (shardd's rate, the peer's) in each round that has both."""
    rates = {}
    for line in lines:
        if line["what"] == "round":
            rates.setdefault((line["kind"], line["system"]), {})[line["round"]] = line["samples"] / line["seconds"]
    found = {}
    for (kind, name), of_system in rates.items():
        own = rates.get((kind, ours(name)), {})
        both = [(own[number], rate) for number, rate in of_system.items() if number in own]
        if both and not name.startswith("shardd"):
            found[kind, name] = both
    return found


def entries(lines, entry):
    """As the other benchmarks of a document."""
    titles = {(line["kind"], line["system"]): line["title"] for line in lines if line["what"] == "first"}
    found = []
    for (kind, name), seen in pairs(lines).items():
        source = Bench(name, KINDS[kind] + (" from a bucket" if name.endswith("_bucket") else ""), titles[kind, name], "of the peer's speed", "higher")
        samples = [{"ours": one, "yardstick": other, "ratio": one / other} for one, other in seen]
        found.append(entry(f"loaders/{kind}/{name}", source, samples))
    return found


def page_rows(lines):
    """Rows of docs/PERFORMANCE.md: medians of the rounds, first epochs beside those from buckets and PyTorch's, and its first batch."""
    firsts = {(line["kind"], line["system"]): line for line in lines if line["what"] == "first"}
    mixed = {(line["kind"], line["system"]): line["mixed"] for line in lines if line["what"] == "check"}
    found = {"later": [], "first": [], "batch": []}
    for (kind, name), seen in pairs(lines).items():
        if name == "take":
            continue  # slower than `take_clip`
        title = LOOPS.get(name, firsts[kind, name]["title"])
        peer = title + ("" if mixed.get((kind, name), True) else ", mixes too little")
        bucket = name.endswith("_bucket")
        rates = [statistics.median(side) for side in zip(*seen)]
        found["later"].append(row(KINDS[kind] + (", bucket, later epochs" if bucket else ""), peer, "samples/s", "higher", *rates))
        pair = [firsts[kind, one] for one in (ours(name), name)]
        if bucket or name == "torch_batched":
            speeds = [first["samples"] / first["seconds"] for first in pair]
            found["first"].append(row(f"{KINDS[kind]}{', bucket' if bucket else ''}, first epoch", peer, "samples/s", "higher", *speeds))
        if name == "torch_batched":
            found["batch"].append(row(f"first batch, {KINDS[kind]}", peer, "ms", "lower", *(first["first_ms"] for first in pair)))
    return [one for rows in found.values() for one in rows]


def row(what, peer, unit, better, shardd, other):
    section = "loaders-beside-their-peers"
    return {"section": section, "what": what, "peer": peer, "unit": unit, "better": better, "ours": f"{shardd:,.0f}", "theirs": f"{other:,.0f}"}
