"""What several tests need."""

import contextlib
import fcntl
import multiprocessing
import os
import subprocess
import tempfile
import traceback
from pathlib import Path

import numpy as np
import pytest

import shardd

SAMPLES = 1003
EVERY = list(range(SAMPLES))
WHOLE = os.environ.get("SHARDD_WHOLE") == "1"


def picture(number: int) -> np.ndarray:
    return (np.arange(8 * 8 * 3, dtype=np.int64).reshape(8, 8, 3) * 7 + number * 13).astype(np.uint8)


def rows(count: int = SAMPLES):
    return ({"id": number, "image": picture(number), "label": number % 10} for number in range(count))


def ids(batches) -> list[int]:
    """The numbers of all samples of some batches; of a loader, without those that stand in for none."""
    return [number for batch in batches if getattr(batches, "weight", 1) for number in batch["id"].tolist()]


PLAN = {"q": 0.5, "partitions": 48}


def loader(store: str, rank: int = 0, world: int = 1, *, batch_size: int = 16, **how) -> shardd.DataLoader:
    """What rank `rank` of `world` reads of the plan that most tests follow."""
    dataset = shardd.StreamingDataset(store, rank=rank, world_size=world, **PLAN)
    return shardd.DataLoader(dataset, batch_size=batch_size, **how)


def own_threads() -> set[str]:
    """The threads of this process."""
    return set(os.listdir("/proc/self/task"))


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie. One may end between the opening of its file and the reading of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run(command: list[str], *, timeout: float = 60, env: dict[str, str] | None = None, check: bool = True) -> subprocess.CompletedProcess:
    """Runs a command to its end, and shows its output if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
    if check and done.returncode != 0:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


@contextlib.contextmanager
def one_ray():
    """Waits until no other test has a cluster of Ray: each takes the whole machine."""
    with open(Path(tempfile.gettempdir()) / f"shardd-tests-ray-{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def shardctl(*arguments: object) -> str:
    """The output of `shardctl`, whose directory is in SHARDD_BIN. Without it, the test is skipped."""
    binaries = os.environ.get("SHARDD_BIN")
    if not binaries:
        pytest.skip("SHARDD_BIN, the directory of shardctl, is not set")
    return run([os.path.join(binaries, "shardctl"), *map(str, arguments)]).stdout


def shardtrain(*arguments: object, env: dict[str, str] | None = None, check: bool = True) -> subprocess.CompletedProcess:
    """Runs `shardtrain`, which lies beside `shardctl`."""
    return run([shardtrain_program(), *map(str, arguments)], timeout=300, env=env, check=check)


def shardtrain_program() -> str:
    """Where `shardtrain` is. Without SHARDD_BIN, the test is skipped."""
    program = Path(os.environ.get("SHARDD_BIN", "")) / "shardtrain"
    if not program.is_file():
        pytest.skip("SHARDD_BIN names no directory with shardtrain")
    return str(program)


def ingest(store: Path | str, name: str, path: Path | str, *flags: str) -> None:
    """Makes a dataset of a file with `shardctl`."""
    shardctl("--store", store, "ingest", path, "--name", name, *flags)


def in_ranks(function, world: int, *arguments, timeout: float = 150) -> list:
    """What `function(rank, world, *arguments)` gives in each process of a gloo group. If it raises, its error as text."""
    context = multiprocessing.get_context("forkserver")
    # Torch is loaded once, and forked.
    context.set_forkserver_preload(["torch", "torch.distributed", "helpers"])
    with tempfile.TemporaryDirectory() as directory:
        ends = [context.Pipe(duplex=False) for _ in range(world)]
        processes = [
            context.Process(target=_rank, args=(function, rank, world, f"file://{directory}/group", into, arguments))
            for rank, (_, into) in enumerate(ends)
        ]
        for process in processes:
            process.start()
        for _, into in ends:
            into.close()
        try:
            return [_receive(out, rank, timeout) for rank, (out, _) in enumerate(ends)]
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()


def _receive(out, rank: int, timeout: float):
    if not out.poll(timeout):
        raise AssertionError(f"rank {rank} says nothing within {timeout} s")
    try:
        return out.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died") from None


def _rank(function, rank: int, world: int, group: str, into, arguments) -> None:
    import torch.distributed

    # What torchrun says; the group itself meets at a file.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=world)
    try:
        into.send(function(rank, world, *arguments))
    except Exception:
        into.send(traceback.format_exc())
        return
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
