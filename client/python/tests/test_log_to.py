"""`shardtrain --log-to` with MLflow, Weights & Biases and Trackio. Their own clients log, and read the logs back."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import helpers
import shardd

SYSTEMS = ["mlflow", "wandb", "trackio"]
# Steps of an epoch of the table, for trainings that are interrupted.
MANY = 40


def has(system):
    return importlib.util.find_spec(system) is not None


def need(system):
    if not has(system):
        pytest.skip(f"{system} is not installed: see requirements.txt")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder where all systems keep their runs."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def env(home):
    return {
        "SHARDD_PYTHON": sys.executable,
        "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_MODE": "offline",
        **{f"WANDB_{name}": str(home) for name in ("DIR", "CONFIG_DIR", "CACHE_DIR", "DATA_DIR")},
        "TRACKIO_DIR": str(home / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }


def command(table, *arguments, steps=10):
    return ["--store", table, "--dataset", "table", "--global-batch-size", str(640 // steps), *arguments]


@dataclass
class Logged:
    """A run as its system has it: its facts as texts, the points of each curve, and how it ended."""

    id: str
    facts: dict
    curves: dict
    end: object


def runs_of(system, project, env):
    """The runs of a project, read by the system's own client in a process of its own, which has the environment of the training."""
    code = f"import json, test_log_to; print(json.dumps(test_log_to.{system}_runs({project!r})))"
    done = helpers.run([sys.executable, "-c", code], env=env, timeout=300)
    return [Logged(*run) for run in json.loads(done.stdout.splitlines()[-1])]


def mlflow_runs(experiment):
    import mlflow

    client, runs = mlflow.MlflowClient(), []
    for run in client.search_runs([mlflow.get_experiment_by_name(experiment).experiment_id]):
        tags = {name.removeprefix("shardd."): value for name, value in run.data.tags.items() if name.startswith("shardd.")}
        histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        curves = {name: sorted((point.step, point.value) for point in history) for name, history in histories.items()}
        runs.append((tags["id"], run.data.params | tags, curves, run.info.status))
    return runs


def wandb_runs(project):
    """From the files that Weights & Biases writes offline: records in the log format of LevelDB, in the protocol's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs = {}
    for file in sorted(Path(os.environ["WANDB_DIR"]).glob("wandb/offline-run-*/*.wandb")):
        id = None
        for data in leveldb_records(file.read_bytes()):
            record = Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run" and record.run.project == project:
                id = record.run.run_id
                runs.setdefault(id, (id, {}, {}, [None]))
            if id is None:
                continue
            _, facts, curves, end = runs[id]
            for config in (record.run.config, record.config):
                for item in config.update:
                    value = json.loads(item.value_json)
                    facts[item.key or item.nested_key[0]] = value if isinstance(value, str) else json.dumps(value)
            if kind == "history":
                values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                for name in set(values) - {"train/step"}:
                    if "/" in name:
                        curves.setdefault(name, []).append((values["train/step"], values[name]))
            if kind == "exit":
                end[0] = record.exit.exit_code
    return [(id, facts, curves, end[0]) for id, facts, curves, end in runs.values()]


def leveldb_records(data):
    """Records in blocks of 32 KiB, after a header of 7 bytes: checksum, length, and whether it is whole (1), first, middle or last (4)."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def trackio_runs(project):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    runs = []
    for run in trackio.Api().runs(project):
        curves = {}
        for point in SQLiteStorage.get_logs(project, run.name, run_id=run.id):
            for name, value in point.items():
                if "/" in name:
                    curves.setdefault(name, []).append((point["step"], value))
        facts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in run.config.items()}
        runs.append((run.name, facts, curves, [alert["title"] for alert in run.alerts()]))
    return runs


@pytest.fixture(scope="module")
def losses(table, home, env):
    """Those of a training of one epoch, which then resumed for two more, with all logs that are installed."""
    logs = [argument for system in SYSTEMS if has(system) for argument in ("--log-to", f"{system}:curves")]
    losses = []
    for epochs in ("1", "3"):
        kept = ["--checkpoints", home / "kept", "--progress", home / "progress", "--log-to", f"tensorboard:{home}/events"]
        done = helpers.shardtrain(*command(table, "--run", "curve", "--epochs", epochs, "--lr", "0.05", *kept, *logs), env=env)
        assert "not complete" not in done.stderr and "dropped" not in done.stderr
        losses += [json.loads(line)["loss"] for line in (home / "progress").read_text().splitlines()]
    return losses


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_training_that_resumed_is_one_run_with_the_curves_of_tensorboard_and_the_ids(system, table, home, env, losses):
    need(system)
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (run,) = runs_of(system, "curves", env)
    assert run.curves["train/loss"] == [[step, loss] for step, loss in enumerate(losses)] and len(losses) == 30
    events = event_accumulator.EventAccumulator(str(home / "events/curve"), size_guidance={"scalars": 0})
    events.Reload()
    assert set(run.curves) == set(events.Tags()["scalars"])
    for name, points in run.curves.items():
        assert [(point.step, point.value) for point in events.Scalars(name)] == [
            (step, pytest.approx(value, rel=1e-6, nan_ok=True)) for step, value in points
        ]
    dataset = shardd.StreamingDataset(table)
    facts = shardd.DataLoader(dataset, global_batch_size=64).facts()
    shared = ["dataset", "version", "plan", "q", "plan_seed", "samples", "virtual_ranks", "global_batch_size"]
    assert {name: run.facts[name] for name in shared} == {name: str(facts[name]) for name in shared}
    wanted = {"run": "curve", "epochs": "3", "lr": "0.05", "optimizer": "sgd", "augment": "False" if system == "mlflow" else "false"}
    assert {name: run.facts[name] for name in wanted} == wanted
    assert run.id.startswith("curve-")
    assert run.end == {"mlflow": "FINISHED", "wandb": 0, "trackio": []}[system]


def test_trainings_without_checkpoints_are_runs_of_their_own(table, env):
    need("trackio")
    for _ in range(2):
        helpers.shardtrain(*command(table, "--epochs", "1", "--log-to", "trackio:apart"), env=env)
    runs = runs_of("trackio", "apart", env)
    assert [len(run.curves["train/loss"]) for run in runs] == [10, 10] and len({run.id for run in runs}) == 2


def test_of_several_ranks_the_first_logs(table, env):
    need("trackio")
    helpers.shardtrain("run", "--nproc", "2", "--", *command(table, "--epochs", "1", "--log-to", "trackio:ranks"), env=env)
    (run,) = runs_of("trackio", "ranks", env)
    assert [step for step, _ in run.curves["train/loss"]] == list(range(10))


def test_ranks_that_stay_continue_their_run(table, tmp_path, env):
    """The rank that logs stays, and the other one dies."""
    need("trackio")
    progress = tmp_path / "progress"
    ranks = command(table, "--epochs", "40", "--log-to", "trackio:stay", "--progress", progress, steps=MANY)
    launcher = start("run", "--nproc", "2", "--elastic", "--", *ranks, env=env)
    wait_for_a_step(launcher, progress)
    (other,) = [rank for rank in children(launcher.pid) if not children(rank)]
    with stopped(other, progress, 40 * MANY):
        os.kill(other, signal.SIGKILL)
    _, err = launcher.communicate(timeout=300)
    assert launcher.returncode == 0 and "continuing with 1 rank" in err, err
    (run,) = runs_of("trackio", "stay", env)
    assert {step for step, _ in run.curves["train/loss"]} == set(range(40 * MANY))


# --- what is refused
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlflow:", "comet:x", "wandb", ":x", ""])
def test_a_place_that_is_none_is_refused_with_the_choices(name, table):
    refused = helpers.shardtrain(*command(table, "--log-to", name), check=False)
    assert refused.returncode == 2
    assert "use tensorboard:DIR, mlflow:EXPERIMENT, wandb:PROJECT or trackio:PROJECT" in refused.stderr


def test_a_place_that_is_given_twice_is_refused(table, tmp_path):
    place = f"tensorboard:{tmp_path}"
    refused = helpers.shardtrain(*command(table, "--log-to", place, "--log-to", place), check=False)
    assert refused.returncode == 2 and f"--log-to {place} is given twice" in refused.stderr


@pytest.fixture
def bare(tmp_path):
    """A Python without packages, in a folder with one that only looks like a client, as clients leave folders of their name."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_client_that_is_missing_is_refused_before_the_first_step(system, table, bare, tmp_path, env):
    progress = tmp_path / "progress"
    (tmp_path / system).mkdir()
    run = [helpers.shardtrain_program(), *command(table, "--log-to", f"{system}:x", "--progress", progress)]
    refused = subprocess.run(run, capture_output=True, text=True, env={**os.environ, **env, "SHARDD_PYTHON": bare}, cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert f"cannot import {system}" in refused.stderr and f"`pip install {system}`" in refused.stderr
    assert not progress.exists()


def test_a_python_that_is_missing_is_refused_by_name(table, env):
    refused = helpers.shardtrain(*command(table, "--log-to", "wandb:x"), env={**env, "SHARDD_PYTHON": "/no/python"}, check=False)
    assert refused.returncode == 2
    assert "cannot start /no/python" in refused.stderr and "`pip install wandb`" in refused.stderr


def test_the_reason_of_a_client_that_refuses_is_printed(table, env):
    need("wandb")
    refused = helpers.shardtrain(*command(table, "--log-to", "wandb:a#b"), env=env, check=False)
    assert refused.returncode == 2 and "--log-to wandb:a#b: wandb: UsageError" in refused.stderr


# --- what must not end a training
# --------------------------------------------------------------------------------------------------------------------


def test_a_launcher_counts_its_restarts_as_torchrun_does(tmp_path):
    count = 'echo $RANK $TORCHELASTIC_RESTART_COUNT >>"$0"; [ $RANK = 1 ] && exit 1; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3'
    helpers.shardtrain("run", "--nproc", "2", "--program", "/bin/sh", "--", "-c", count, tmp_path / "counts")
    assert sorted((tmp_path / "counts").read_text().splitlines()) == ["0 0", "0 1", "1 0"]


@pytest.mark.parametrize("python", ["bare", "none"])
def test_a_training_that_is_started_again_continues_without_its_log(python, table, bare, env):
    python = bare if python == "bare" else "/no/python"
    again = {**env, "SHARDD_PYTHON": python, "TORCHELASTIC_RESTART_COUNT": "1"}
    done = helpers.shardtrain(*command(table, "--epochs", "1", "--log-to", "wandb:x"), env=again)
    assert "trained 1 epoch" in done.stdout and "`pip install wandb`" in done.stderr


def start(*arguments, env):
    program = [helpers.shardtrain_program(), *map(str, arguments)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})


def wait_for(condition, what, limit=120):
    """Waits until a condition holds."""
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, f"no {what}"
        time.sleep(0.02)


def wait_for_a_step(training, progress):
    is_there = lambda: progress.exists() and progress.stat().st_size > 0
    wait_for(lambda: is_there() or training.poll() is not None, "step")
    assert is_there(), training.communicate()


def children(pid):
    """The processes that a process has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


@contextmanager
def stopped(pid, progress, steps):
    """A process of a training does not run, and not all steps are done."""
    os.kill(pid, signal.SIGSTOP)
    assert len(progress.read_text().splitlines()) < steps, "the training is over"
    yield
    os.kill(pid, signal.SIGCONT)


def test_a_training_survives_its_client_with_a_warning(table, tmp_path, env):
    need("trackio")
    progress, epochs = tmp_path / "progress", 40
    arguments = ["--epochs", epochs, "--log-to", "trackio:killed", "--progress", progress]
    training = start(*command(table, *arguments, steps=MANY), env=env)
    wait_for_a_step(training, progress)
    (client,) = children(training.pid)
    with stopped(training.pid, progress, epochs * MANY):
        os.kill(client, signal.SIGKILL)
    out, err = training.communicate(timeout=300)
    assert training.returncode == 0 and f"trained {epochs} epochs" in out, err
    assert err.count("nothing more can be logged to trackio:killed, and the training continues") == 1, err
    assert "its client has ended (signal: 9 (SIGKILL))" in err


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGTERM with checkpoints", "failed"])
def test_the_run_of_a_training_that_does_not_end_well_has_its_status(how, table, tmp_path, env):
    need("mlflow")
    progress, experiment = tmp_path / "progress", how.replace(" ", "-")
    arguments = ["--epochs", 10_000, "--progress", progress, "--log-to", f"mlflow:{experiment}"]
    if how == "failed":
        arguments += ["--lr", "1e30"]
    elif how.endswith("checkpoints"):
        arguments += ["--checkpoints", tmp_path / "kept"]
    training = start(*command(table, *arguments, steps=MANY), env=env)
    wait_for(lambda: children(training.pid), "client")
    (client,) = children(training.pid)
    if how != "failed":
        wait_for_a_step(training, progress)
        training.send_signal(getattr(signal, how.split()[0]))
    out, err = training.communicate(timeout=300)
    wait_for(lambda: not helpers.runs(client), "end of the client")
    (run,) = runs_of("mlflow", experiment, env)
    end = {"failed": "failed", "SIGTERM with checkpoints": "stopped"}.get(how, "killed")
    assert (run.end, run.facts["end"]) == ("FAILED" if how == "failed" else "KILLED", end), err
    code = {"failed": 1, "SIGTERM with checkpoints": 0}.get(how, -getattr(signal, how.split()[0], 0))
    assert training.returncode == code, (out, err)


# --- loops in Python
# --------------------------------------------------------------------------------------------------------------------


def test_facts_of_a_loader_lead_to_its_data(store, env):
    loader = helpers.loader(store, 1, 2, batch_size=16)
    facts, dataset = loader.facts(), loader.dataset
    assert facts == {
        "dataset": "digits",
        "version": dataset.version,
        "plan": loader.state_dict()["plan"],
        "q": "0.5",
        "plan_seed": 0,
        "samples": helpers.SAMPLES,
        "virtual_ranks": 2,
        "global_batch_size": 32,
        "world_size": 2,
    }
    stored = shardd.StreamingDataset(store, dataset=f"digits@{dataset.version[:8]}", q=[1.0, 0.25], limit=100, run="r")
    facts = shardd.DataLoader(stored, batch_size=4).facts()
    assert (facts["q"], facts["limit"], facts["run"], facts["version"]) == ("1,0.25", 100, "r", dataset.version)
    need("mlflow")
    code = (
        "import json, sys, mlflow; mlflow.set_experiment('facts'); run = mlflow.start_run(); "
        "mlflow.log_params(json.loads(sys.argv[1])); print(json.dumps(mlflow.get_run(run.info.run_id).data.params))"
    )
    done = helpers.run([sys.executable, "-c", code, json.dumps(facts)], env=env, timeout=300)
    assert json.loads(done.stdout.splitlines()[0]) == {name: str(fact) for name, fact in facts.items()}


def test_facts_of_streams_name_the_version_of_each(store):
    streams = [shardd.Stream(store, proportion=0.25), shardd.Stream(store, proportion=0.75)]
    loader = shardd.DataLoader(shardd.StreamingDataset(streams=streams, epoch_size=100), batch_size=10)
    facts, version = loader.facts(), shardd.StreamingDataset(store).version
    assert (facts["stream_0"], facts["stream_1"]) == (f"digits@{version}", f"digits@{version}")
    assert facts["plan"] == loader.state_dict()["plan"] and "version" not in facts
