"""`shardctl runs summary`: Croissant metadata as mlcroissant reads it, from a real training."""

import json
import os
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(os.environ.get("SHARDD_BIN", ""))

ABOUT = """
[datasets.table]
source = "public"
license = "https://creativecommons.org/licenses/by/4.0/"
description = "Rows of numbers"
url = "https://example.org/table"
citation = "Example, 2026"
version = "1.0.0"
published = "2026-11-29"
"""


@pytest.mark.skipif(not (PROGRAMS / "shardtrain").is_file(), reason="SHARDD_BIN names no directory with shardtrain")
def test_mlcroissant_reads_the_metadata_of_what_a_training_read(tmp_path):
    mlcroissant = pytest.importorskip("mlcroissant")
    rows = [f"{n / 7},{n % 5},{n % 3}" for n in range(640)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    (tmp_path / "about.toml").write_text(ABOUT)
    shardctl = [PROGRAMS / "shardctl", "--store", tmp_path / "store"]
    subprocess.run([*shardctl, "ingest", "--name", "table", tmp_path / "table.csv"], check=True, capture_output=True)
    train = [PROGRAMS / "shardtrain", "--store", tmp_path / "store", "--dataset", "table", "--run", "first"]
    sizes = ["--global-batch-size", "64", "--epochs", "2", "--record", tmp_path / "kept"]
    subprocess.run([*train, *sizes], check=True, capture_output=True)

    summary = [*shardctl, "runs", "summary", "first", "--record", tmp_path / "kept", "--about", tmp_path / "about.toml"]
    facts = json.loads(subprocess.run([*summary, "--json"], check=True, capture_output=True).stdout)
    assert [epoch["samples"] for epoch in facts["trainings"][0]["epochs"]] == [640, 640]

    metadata = subprocess.run([*summary, "--format", "croissant"], check=True, capture_output=True).stdout
    (tmp_path / "croissant.json").write_bytes(metadata)
    dataset = mlcroissant.Dataset(str(tmp_path / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors and not dataset.metadata.ctx.issues.warnings
    types = {field.name: str(field.data_types[0]).rsplit("/", 1)[-1] for field in dataset.metadata.record_sets[0].fields}
    assert types == {"a": "Float", "b": "Integer", "label": "Integer"}
    assert dataset.metadata.license == ["https://creativecommons.org/licenses/by/4.0/"]
