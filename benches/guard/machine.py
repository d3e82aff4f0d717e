"""The machine and the versions that a document of figures is of."""

import json
import os
import platform
import re
import shutil
import subprocess
import tomllib
from datetime import datetime, timezone
from pathlib import Path

from programs import ROOT, environment, git

# Crates whose version changes figures.
CRATES = ["arrow", "axum", "blake3", "burn", "parquet", "quinn", "shardd", "sled", "tokio"]


def now():
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def lines(document):
    """The JSON of a document, with a line for each of its runs."""
    head = {key: value for key, value in document.items() if key != "runs"}
    runs = ",\n".join(json.dumps(run) for run in document["runs"])
    return json.dumps(head)[:-1] + f', "runs": [\n{runs}\n]}}\n'


def machine():
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.M)
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    directory = environment().get("TMPDIR", "/tmp")
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(memory[1]) * 1024,
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": disk(directory),
        "load": os.getloadavg()[0],
    }


def disk(directory):
    """The kind of file system and of disk that temporary files are on."""
    asked = subprocess.run(["df", "--output=fstype,source", directory], capture_output=True, text=True)
    kind, source = asked.stdout.splitlines()[1].split(None, 1)
    block = Path("/sys/class/block") / Path(source.strip()).name
    block = block if (block / "queue").is_dir() else block.resolve().parent
    turning = block / "queue/rotational"
    if kind == "tmpfs" or not turning.is_file():
        return kind
    return f"{kind} on {'a rotating disk' if turning.read_text().strip() == '1' else 'a solid-state disk'}"


def versions(peers):
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    found = {package["name"]: package["version"] for package in lock["package"] if package["name"] in CRATES}
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True).stdout.strip() if shutil.which("rustc") else ""
    return {
        "commit": git("rev-parse", "HEAD"),
        "changed": bool(git("status", "--porcelain")),
        "rustc": rustc or "unknown",
        "crates": found,
        "peers": peers,
    }
