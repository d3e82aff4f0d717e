"""The pages about moving from another loader, run as written: its files are ingested, the script trains, and resumes."""

import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
BINARIES = os.environ.get("SHARDD_BIN")
BLOCK = re.compile(r"^```(.+?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def jpeg(number):
    """A picture and its label."""
    out = io.BytesIO()
    Image.new("RGB", (32, 32), (60 * (number % 4), 40, number % 256)).save(out, "JPEG")
    return out.getvalue(), number % 4


def as_mds(folder, numbers):
    """As MosaicML's MDSWriter lays them out."""
    samples = [struct.pack("<I", len(image)) + image + struct.pack("<q", label) for image, label in map(jpeg, numbers)]
    ends = [4 + 4 * (len(samples) + 1)]
    for sample in samples:
        ends.append(ends[-1] + len(sample))
    shard = struct.pack(f"<I{len(ends)}I", len(samples), *ends) + b"".join(samples)
    (folder / "shard.00000.mds").write_bytes(shard)
    entry = {
        **{"format": "mds", "version": 2, "compression": None, "hashes": [], "samples": len(samples), "size_limit": 1 << 26},
        **{"column_names": ["image", "label"], "column_encodings": ["jpeg", "int"], "column_sizes": [None, 8]},
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}},
        "zip_data": None,
    }
    (folder / "index.json").write_text(json.dumps({"shards": [entry], "version": 2}))


def as_tar(folder, numbers):
    """As WebDataset's TarWriter."""
    with tarfile.open(folder / "part-000000.tar", "w") as tar:
        for number in numbers:
            image, label = jpeg(number)
            for suffix, data in (("cls", str(label).encode()), ("jpg", image)):
                member = tarfile.TarInfo(f"{number:06}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def as_folders(folder, numbers):
    """A directory for each class."""
    for number in numbers:
        image, label = jpeg(number)
        of_class = folder / "abcd"[label]
        of_class.mkdir(exist_ok=True)
        (of_class / f"{number:06}.jpg").write_bytes(image)


@pytest.mark.skipif(not BINARIES, reason="SHARDD_BIN, the directory of shardctl, is not set")
@pytest.mark.parametrize(
    ("page", "source", "write"),
    [
        ("from-mds", "pictures-mds", as_mds),
        ("from-webdataset", "pictures-wds", as_tar),
        ("from-litdata", "pictures", as_folders),
    ],
)
def test_the_commands_of_a_page_train_and_resume(tmp_path, page, source, write):
    for split, numbers in (("train", range(600)), ("test", range(600, 800))):
        folder = tmp_path / source / split
        folder.mkdir(parents=True)
        write(folder, numbers)
    commands = ""
    for kind, text in BLOCK.findall((PAGES / f"{page}.md").read_text()):
        if file := re.fullmatch(r'python title="(\w+\.py)"', kind):
            (tmp_path / file[1]).write_text(text)
        elif kind == f"sh {page}":
            commands += text
    assert "python train.py" in commands
    printed = run(tmp_path, commands)
    # The last checkpoint lies within the last epoch: its rest is read again, with the same result.
    [last] = re.findall("epoch 2: .*", printed)
    assert run(tmp_path, "python train.py").strip() == last


def run(folder, commands):
    path = os.pathsep.join([BINARIES, str(Path(sys.executable).parent), os.environ["PATH"]])
    script = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(script, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
