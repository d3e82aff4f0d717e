"""What takes minutes: with SHARDD_WHOLE=1."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from helpers import WHOLE, run

PACKAGE = Path(__file__).parents[1]
REPOSITORY = PACKAGE.parents[1]

pytestmark = pytest.mark.skipif(not WHOLE, reason="takes minutes; set SHARDD_WHOLE=1")


def shardctl() -> str:
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    directory = Path(os.environ.get("SHARDD_BIN", target / "release"))
    found = directory / "shardctl"
    if not found.is_file():
        pytest.skip(f"no {found}: build it, or set SHARDD_BIN")
    return str(found)


def test_the_example_trains_cifar10_to_65_percent(tmp_path):
    images = Path(os.environ.get("SHARDD_SHARED", "/nowhere")) / "data" / "cifar10-jpeg.tar.gz"
    if not images.is_file():
        pytest.skip("SHARDD_SHARED has no data/cifar10-jpeg.tar.gz")
    store = str(tmp_path / "store")
    for split in ("train", "test"):
        run([shardctl(), "--store", store, "ingest", "--name", f"cifar10-{split}", "--under", split, "--decode", str(images)], timeout=300)
    example = str(PACKAGE / "examples" / "train_cifar10.py")
    said = run([sys.executable, example, store, "4"], timeout=1800, env={"OMP_NUM_THREADS": "2"}).stdout
    reached = [float(percent) for percent in re.findall(r"([\d.]+) %", said)]
    assert len(reached) == 4 and reached[-1] >= 65, said


def test_the_package_is_built_installed_and_imported_in_a_clean_environment(tmp_path):
    """As a user does: `pip install ./client/python`. Nothing else comes with it."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    how = dict(env=clean, cwd=tmp_path, check=True, timeout=1800, capture_output=True, text=True)
    subprocess.run([python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", str(PACKAGE)], **how)
    listed = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], **how).stdout.split()
    assert {line.split("==")[0] for line in listed} <= {"pip", "setuptools", "shardd"}
    said = subprocess.run([python, "-c", "import shardd, sys; print(shardd.__file__, 'torch' in sys.modules)"], **how).stdout
    assert said.startswith(str(tmp_path)) and said.endswith("False\n")
    shutil.rmtree(tmp_path / "venv")
