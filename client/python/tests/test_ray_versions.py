"""Versions that workers of Ray append, reshard, verify and read: as `shardctl` does, and as DuckDB counts."""

import json
import sys
from pathlib import Path

import engine_versions
import pytest
from helpers import one_ray, run


def test_what_ray_appends_reshards_verifies_and_filters_is_what_shardctl_and_duckdb_find(tmp_path):
    pytest.importorskip("ray.data")
    expected = engine_versions.prepare(tmp_path)
    script = Path(__file__).with_name("ray_versions.py")
    with one_ray():
        run([sys.executable, str(script), str(tmp_path)], timeout=900, env={"OMP_NUM_THREADS": "1"})
    made = json.loads((tmp_path / "made.json").read_text())
    engine_versions.assert_made(tmp_path, made, expected)
    assert "does not fit" in made["unfit"] and "has id, half" in made["unfit"]
