"""Logs a training with the client of MLflow, Weights & Biases or Trackio.

``shardtrain --log-to SYSTEM:NAME`` runs this as a child process. It writes a JSON object a line to its input, first
``{"begin": {"id", "name", "facts"}}``, then ``{"facts": {...}}`` and ``{"point": {"step", "values"}}``, and at last
``{"end": "trained" | "stopped" | "failed"}``. If the input ends without a last line, the training was killed. The answers are
``"open"``, once the run is open, and ``{"failed": REASON}``, after which the process ends.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any, BinaryIO, Callable, Iterator, NamedTuple, Protocol

# The most lines that wait for the client here, and the most that it gets at once: MLflow takes 1,000 values.
WAITING, TOGETHER = 1_000, 80
# Seconds that a client may spend once the training has ended.
LEFT_S = 60
# Seconds for Weights & Biases to open a run: less than `shardtrain` waits, so that its own message is the one that you see.
OPENING_S = 50
# Facts that lead from a model to its data: tags in MLflow, which can be searched for.
IDS = ("run", "dataset", "version", "plan")


class Point(NamedTuple):
    """Values of a step, and the time of the step in milliseconds since 1970."""

    step: int
    values: dict[str, float]
    time_ms: int


class Run(Protocol):
    """A run that is open in one of the systems. A training that resumes opens the run of its first start."""

    def describe(self, facts: dict[str, Any]) -> None: ...

    def log(self, points: list[Point]) -> None: ...

    def end(self, how: str) -> None: ...


class Mlflow:
    def __init__(self, mlflow: Any, experiment: str, id: str, name: str, facts: dict[str, Any]) -> None:
        self._entities = importlib.import_module("mlflow.entities")
        self._client = mlflow.MlflowClient()
        experiment_id = mlflow.set_experiment(experiment).experiment_id
        earlier = self._client.search_runs([experiment_id], f"tags.`shardd.id` = '{id}'", max_results=1)
        self._params: dict[str, str] = {}
        if earlier:
            self._run, self._params = earlier[0].info.run_id, dict(earlier[0].data.params)
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {"shardd.id": id, "mlflow.source.name": "shardtrain"}
            self._run = self._client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
        self.describe(facts)

    def describe(self, facts: dict[str, Any]) -> None:
        texts = {name: str(value) for name, value in facts.items()}
        # MLflow refuses another value of a parameter: the first one stays, and a tag has the latest.
        changed = {name for name, text in texts.items() if self._params.get(name, text) != text}
        tags = [self._entities.RunTag(f"shardd.{name}", text) for name, text in texts.items() if name in IDS or name in changed]
        new = {name: text for name, text in texts.items() if name not in self._params}
        params = [self._entities.Param(name, text) for name, text in new.items()]
        self._client.log_batch(self._run, params=params, tags=tags)
        self._params |= new

    def log(self, points: list[Point]) -> None:
        metric = self._entities.Metric
        metrics = [metric(name, value, point.time_ms, point.step) for point in points for name, value in point.values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, how: str) -> None:
        self._client.set_tag(self._run, "shardd.end", how)
        status = {"trained": "FINISHED", "failed": "FAILED"}.get(how, "KILLED")
        self._client.set_terminated(self._run, status)


class Wandb:
    def __init__(self, wandb: Any, project: str, id: str, name: str, facts: dict[str, Any]) -> None:
        entity, _, project = project.rpartition("/")
        settings = wandb.Settings(init_timeout=OPENING_S, console="off")
        self._run = wandb.init(entity=entity or None, project=project, id=id, name=name, resume="allow", settings=settings)
        # The own steps of Weights & Biases only increase; those of a training that resumes from a checkpoint may repeat.
        self._run.define_metric("train/step")
        self._run.define_metric("*", step_metric="train/step")
        self.describe(facts)

    def describe(self, facts: dict[str, Any]) -> None:
        self._run.config.update(facts, allow_val_change=True)

    def log(self, points: list[Point]) -> None:
        for point in points:
            self._run.log({"train/step": point.step, **point.values})

    def end(self, how: str) -> None:
        self._run.summary["end"] = how
        self._run.finish(exit_code=0 if how == "trained" else 1)


class Trackio:
    def __init__(self, trackio: Any, project: str, id: str, name: str, facts: dict[str, Any]) -> None:
        # Its runs are found by their names, so the name is the id, which begins with the name.
        self._run = trackio.init(project=project, name=id, config=facts, resume="allow")

    def describe(self, facts: dict[str, Any]) -> None:
        # It is sent with the first values.
        self._run.config.update(facts)

    def log(self, points: list[Point]) -> None:
        for point in points:
            self._run.log(point.values, step=point.step)

    def end(self, how: str) -> None:
        # Its runs have no status.
        if how != "trained":
            self._run.alert(f"the training was {how}" if how != "failed" else "the training failed")
        self._run.finish()


CLIENTS: dict[str, Callable[..., Run]] = {"mlflow": Mlflow, "wandb": Wandb, "trackio": Trackio}


def main(lines: BinaryIO, system: str, name: str) -> None:
    """Logs what the lines say, and ends the process."""
    answers = os.fdopen(os.dup(1), "w")
    # Clients print, and start programs that inherit these.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()
    code = 1
    try:
        begin = json.loads(lines.readline())["begin"]
        module = importlib.import_module(system)
        run = CLIENTS[system](module, name, **begin)
        answer("open")
        _follow(run, lines)
        code = 0
    except ImportError as error:
        remedy = f"`pip install {system}` there, or name a Python that has it in SHARDD_PYTHON"
        answer({"failed": f"{sys.executable} cannot import {system} ({error}): {remedy}"})
    except (Exception, SystemExit) as error:
        answer({"failed": f"{system}: {type(error).__name__}: {error}"})
    finally:
        sys.stderr.flush()
        # Threads that a client has left behind keep no process.
        os._exit(code)


def _follow(run: Run, lines: BinaryIO) -> None:
    how = "killed"
    for batch in _batches(lines):
        points = []
        for line, time_ms in batch:
            if "point" in line:
                values = {name: float(value) for name, value in line["point"]["values"].items()}
                points.append(Point(line["point"]["step"], values, time_ms))
            elif "facts" in line:
                run.describe(line["facts"])
            else:
                how = line["end"]
        if points:
            run.log(points)
    run.end(how)


def _batches(lines: BinaryIO) -> Iterator[list[tuple[Any, int]]]:
    """The lines with their times. Those that have come while a client was busy are one batch."""
    waiting: queue.Queue[tuple[Any, int] | None] = queue.Queue(WAITING)
    threading.Thread(target=_read, args=(lines, waiting), daemon=True).start()
    while (line := waiting.get()) is not None:
        batch = [line]
        while len(batch) < TOGETHER and not waiting.empty():
            if (line := waiting.get()) is None:
                yield batch
                return
            batch.append(line)
        yield batch


def _read(lines: BinaryIO, waiting: queue.Queue[tuple[Any, int] | None]) -> None:
    for line in lines:
        if not line.endswith(b"\n"):
            break  # the training was killed while it wrote
        waiting.put((json.loads(line), time.time_ns() // 1_000_000))
    waiting.put(None)


def _end_after(parent: int) -> None:
    """Ends this process some time after its parent: a client may wait longer for a server that is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(LEFT_S)
    os._exit(1)
