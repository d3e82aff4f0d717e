"""Trainings by torchrun and Ray Train: a worker that is killed, and the weights of a training that nothing happened to."""

import json
import sys
from pathlib import Path

import pytest
from helpers import EVERY, one_ray, run

TRAIN = Path(__file__).with_name("launcher_train.py")
DIES_AT = 40


def ended(folder: Path) -> dict:
    return json.loads((folder / "ended.json").read_text())


def by_torchrun(store: str, folder: Path, dies_at: int | None = None) -> dict:
    folder.mkdir()
    how = json.dumps({"store": store, "folder": str(folder), "dies_at": dies_at})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", str(TRAIN), how]
    run(command, timeout=480, env={"OMP_NUM_THREADS": "1"})
    return ended(folder)


def by_ray(store: str, folder: Path, dies_at: int) -> dict:
    folder.mkdir()
    how = json.dumps({"store": store, "folder": str(folder), "dies_at": dies_at})
    script = Path(__file__).with_name("ray_train.py")
    with one_ray():
        run([sys.executable, str(script), how], timeout=600, env={"RAY_TRAIN_V2_ENABLED": "1", "OMP_NUM_THREADS": "1"})
    return ended(folder)


@pytest.fixture(scope="module")
def undisturbed(store, tmp_path_factory) -> dict:
    return by_torchrun(store, tmp_path_factory.mktemp("launchers") / "undisturbed")


def assert_same(undisturbed: dict, disturbed: dict) -> None:
    assert undisturbed["resumed_at"] is None
    assert 0 < disturbed["resumed_at"] < DIES_AT
    assert disturbed["digest"] == undisturbed["digest"]
    assert disturbed["steps"] == undisturbed["steps"]


def test_torchrun_restarts_a_killed_worker_to_the_same_weights(undisturbed, store, tmp_path):
    assert_same(undisturbed, by_torchrun(store, tmp_path / "killed", DIES_AT))


def test_ray_train_restarts_a_killed_worker_to_the_same_weights(undisturbed, store, tmp_path):
    pytest.importorskip("ray.train")
    assert_same(undisturbed, by_ray(store, tmp_path / "killed", DIES_AT))
    # Workers without a process group of PyTorch, before.
    read = [json.loads(path.read_text()) for path in sorted((tmp_path / "killed").glob("rank-*.json"))]
    assert len(read) == 2
    assert sorted(read[0] + read[1]) == EVERY
