"""`shardtrain --log-to tensorboard:DIR`, read by TensorBoard itself."""

import json
import os

import pytest

import helpers


def train(store, directory, *arguments):
    command = ["--store", store, "--dataset", "table", "--run", "curve", "--global-batch-size", "64"]
    helpers.shardtrain(*command, "--log-to", f"tensorboard:{directory}", *arguments)


def events_of(log):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = event_accumulator.EventAccumulator(str(log / "curve"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def texts_of(events):
    return {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}


def test_tensorboard_reads_the_curves_and_the_ids_of_a_training_that_resumed(table, tmp_path):
    log, progress = tmp_path / "log", tmp_path / "progress"
    kept = ["--checkpoints", tmp_path / "kept", "--progress", progress]
    train(table, log, "--epochs", "1", *kept)
    losses = [json.loads(line)["loss"] for line in progress.read_text().splitlines()]
    first = texts_of(events_of(log))
    train(table, log, "--epochs", "3", *kept)
    losses += [json.loads(line)["loss"] for line in progress.read_text().splitlines()]

    files = sorted(os.listdir(log / "curve"))
    assert len(files) == 2 and all(name.startswith("events.out.tfevents.") for name in files)
    events = events_of(log)
    curve = events.Scalars("train/loss")
    assert [point.step for point in curve] == list(range(30))
    assert [point.value for point in curve] == pytest.approx(losses, rel=1e-6)
    tags = set(events.Tags()["scalars"])
    assert {"train/learning_rate", "train/gradient_norm", "train/samples_per_second", "seconds/computing"} <= tags
    texts = texts_of(events)
    assert (texts["run"], texts["dataset"], texts["epochs"], first["epochs"]) == ("curve", "table", "3", "1")
    assert len(texts["plan"]) == len(texts["version"]) == 64
    assert {**first, "epochs": "3"} == texts


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(table, tmp_path):
    (tmp_path / "file").write_text("")
    where = ["--store", table, "--dataset", "table", "--log-to", f"tensorboard:{tmp_path}/file"]
    refused = helpers.shardtrain(*where, check=False)
    assert refused.returncode == 1 and "cannot write" in refused.stderr
