"""`shardctl runs summary`: Croissant metadata as mlcroissant reads it, from a real training."""

import json

import pytest

import helpers

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


def test_mlcroissant_reads_the_metadata_of_what_a_training_read(table, tmp_path):
    mlcroissant = pytest.importorskip("mlcroissant")
    (tmp_path / "about.toml").write_text(ABOUT)
    train = ["--store", table, "--dataset", "table", "--run", "first", "--global-batch-size", 64, "--epochs", 2]
    helpers.shardtrain(*train, "--record", tmp_path / "kept")

    summary = ["--store", table, "runs", "summary", "first", "--record", tmp_path / "kept", "--about", tmp_path / "about.toml"]
    facts = json.loads(helpers.shardctl(*summary, "--json"))
    assert [epoch["samples"] for epoch in facts["trainings"][0]["epochs"]] == [640, 640]

    (tmp_path / "croissant.json").write_text(helpers.shardctl(*summary, "--format", "croissant"))
    dataset = mlcroissant.Dataset(str(tmp_path / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors and not dataset.metadata.ctx.issues.warnings
    types = {field.name: str(field.data_types[0]).rsplit("/", 1)[-1] for field in dataset.metadata.record_sets[0].fields}
    assert types == {"a": "Float", "b": "Integer", "label": "Integer"}
    assert dataset.metadata.license == ["https://creativecommons.org/licenses/by/4.0/"]
