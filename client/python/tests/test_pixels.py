"""Pixels that `shardctl ingest --decode` stores, beside those of Pillow."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardd

BINARIES = os.environ.get("SHARDD_BIN")
pytestmark = pytest.mark.skipif(not BINARIES, reason="SHARDD_BIN, the directory of shardctl, is not set")

Y, X = np.mgrid[0:48, 0:64]
PICTURES = {
    "smooth": np.stack([X * 4, Y * 5, X + Y], -1),
    "waves": np.stack([127 + 120 * np.sin(X / 3), 127 + 120 * np.sin(Y / 5), 127 + 120 * np.cos((X + Y) / 7)], -1),
    "edges": np.stack([X // 8 % 2 * 255, Y // 4 % 2 * 255, (X + Y) // 6 % 2 * 255], -1),
    "noise": np.random.default_rng(1).integers(0, 256, (48, 64, 3)),
}


def differences(tmp_path, written):
    """For each file of `written`, by its name and the arguments of `Image.save`: how far pixels are from Pillow's."""
    folder, store = tmp_path / "pictures", tmp_path / "store"
    folder.mkdir()
    for name, (pixels, how) in written.items():
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name, **how)
    ingest = ["ingest", folder, "--name", "pictures", "--decode", "--mix", "sequential"]
    subprocess.run([Path(BINARIES) / "shardctl", "--store", store, *ingest], check=True, capture_output=True)
    dataset = shardd.StreamingDataset(str(store), format="numpy")
    samples = [dataset[number] for number in range(dataset.num_samples)]
    assert {sample["path"] for sample in samples} == set(written)
    for sample in samples:
        pillow = np.asarray(Image.open(folder / sample["path"]).convert("RGB"))
        yield sample["path"], np.abs(np.asarray(sample["image"]).astype(int) - pillow)


def test_pixels_of_a_png_are_those_of_pillow(tmp_path):
    for name, difference in differences(tmp_path, {f"{kind}.png": (pixels, {}) for kind, pixels in PICTURES.items()}):
        assert difference.max() == 0, name


def test_pixels_of_a_jpeg_are_within_five_of_those_of_pillow(tmp_path):
    written = {
        f"{kind}-{quality}-{subsampling}.jpg": (pixels, {"quality": quality, "subsampling": subsampling})
        for kind, pixels in PICTURES.items()
        for quality in (50, 75, 95)
        for subsampling in ("4:4:4", "4:2:0")
    }
    for name, difference in differences(tmp_path, written):
        print(f"{name}: at most {difference.max()}, {difference.mean():.3f} in the mean")
        assert difference.max() <= 5, name
        assert difference.mean() < (0.5 if "4:2:0" in name else 0.1), name
