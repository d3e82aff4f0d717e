"""`shardtrain --log-to tensorboard:DIR`, read by TensorBoard itself."""

import json
import os
import subprocess
from pathlib import Path

import pytest


PROGRAMS = Path(os.environ.get("SHARDD_BIN", ""))


def train(store, directory, *arguments):
    command = [PROGRAMS / "shardtrain", "--store", store, "--dataset", "table", "--run", "curve", "--global-batch-size", "64"]
    subprocess.run([*command, "--log-to", f"tensorboard:{directory}", *arguments], check=True, capture_output=True)


@pytest.fixture
def table(tmp_path):
    """A store with a table of 640 rows."""
    rows = [f"{n % 3 + n % 7 / 10},{n % 5},{n % 3}" for n in range(640)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    ingest = [PROGRAMS / "shardctl", "--store", tmp_path / "store", "ingest", "--name", "table", tmp_path / "table.csv"]
    subprocess.run(ingest, check=True, capture_output=True)
    return str(tmp_path / "store")


@pytest.mark.skipif(not (PROGRAMS / "shardtrain").is_file(), reason="SHARDD_BIN names no directory with shardtrain")
def test_tensorboard_reads_the_curves_and_the_ids_of_a_training_that_resumed(table, tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log, progress = tmp_path / "log", tmp_path / "progress"
    kept = ["--checkpoints", tmp_path / "kept", "--progress", progress]
    train(table, log, "--epochs", "1", *kept)
    losses = [json.loads(line)["loss"] for line in progress.read_text().splitlines()]
    train(table, log, "--epochs", "3", *kept)
    losses += [json.loads(line)["loss"] for line in progress.read_text().splitlines()]

    files = sorted(os.listdir(log / "curve"))
    assert len(files) == 2 and all(name.startswith("events.out.tfevents.") for name in files)
    events = event_accumulator.EventAccumulator(str(log / "curve"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    curve = events.Scalars("train/loss")
    assert [point.step for point in curve] == list(range(30))
    assert [point.value for point in curve] == pytest.approx(losses, rel=1e-6)
    tags = set(events.Tags()["scalars"])
    assert {"train/learning_rate", "train/gradient_norm", "train/samples_per_second", "seconds/computing"} <= tags
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert (texts["run"], texts["dataset"]) == ("curve", "table")
    assert len(texts["plan"]) == len(texts["version"]) == 64


@pytest.mark.skipif(not (PROGRAMS / "shardtrain").is_file(), reason="SHARDD_BIN names no directory with shardtrain")
def test_a_log_that_is_none_is_refused_before_the_training(table, tmp_path):
    command = [PROGRAMS / "shardtrain", "--store", table, "--dataset", "table", "--epochs", "1"]
    refused = subprocess.run([*command, "--log-to", "mlflow:x"], capture_output=True, text=True)
    assert refused.returncode == 2 and "use tensorboard:DIR" in refused.stderr
    (tmp_path / "file").write_text("")
    refused = subprocess.run([*command, "--log-to", f"tensorboard:{tmp_path}/file"], capture_output=True, text=True)
    assert refused.returncode != 0 and "cannot write" in refused.stderr
