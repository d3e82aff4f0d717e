"""Trains a linear model with DistributedDataParallel and checkpoints, for torchrun and Ray Train.

    torchrun --nproc-per-node 2 --max-restarts 1 launcher_train.py '{"store": ..., "folder": ..., "dies_at": 20}'

At step `dies_at`, rank 1 of the first launch kills its own process.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed
from helpers import PLAN

import shardd

EPOCHS = 2
EVERY = 7


class Training:
    """What a checkpoint keeps: model, optimizer and loader."""

    def __init__(self, store: str) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(192, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9)
        # Neither a rank nor a world size is given.
        self.loader = shardd.DataLoader(shardd.StreamingDataset(store, **PLAN), batch_size=8)
        self.steps, self.resumed_at = 0, None

    def run(self, saves, dies_at: int | None, died: Path) -> None:
        """Trains to the end. `saves` is called with the step after every few of them."""
        while self.loader.epoch < EPOCHS:
            for batch in self.loader:
                self.optimizer.zero_grad()
                outputs = self.model(batch["image"].flatten(1).float())
                (torch.nn.functional.cross_entropy(outputs, batch["label"].long()) * self.loader.weight).backward()
                self.optimizer.step()
                self.steps += 1
                if self.steps % EVERY == 0:
                    saves(self)
                if self.steps == dies_at and torch.distributed.get_rank() == 1 and not died.exists():
                    died.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

    def state(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "loader": self.loader.state_dict(), "steps": self.steps}

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=False)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.steps = self.resumed_at = state["steps"]

    def report(self, folder: Path) -> None:
        ended = {"digest": self.digest(), "steps": self.steps, "resumed_at": self.resumed_at}
        (folder / "ended.json").write_text(json.dumps(ended))

    def digest(self) -> str:
        weights = hashlib.blake2b()
        for weight in self.model.state_dict().values():
            weights.update(weight.numpy().tobytes())
        return weights.hexdigest()


def by_torchrun(store: str, folder: Path, dies_at: int | None) -> None:
    # Restarted workers would find the addresses of those before them in the store of torchrun, which outlives them.
    store_of_all = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    own = torch.distributed.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store_of_all)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", store=own, rank=rank, world_size=world)
    training, newest = Training(store), folder / "newest.pt"
    is_first = rank == 0
    if newest.exists():
        training.load(newest)

    def save(training: Training) -> None:
        if is_first:
            torch.save(training.state(), folder / "new.pt")
            os.replace(folder / "new.pt", newest)
        torch.distributed.barrier()

    training.run(save, dies_at, folder / "died")
    if is_first:
        training.report(folder)
    torch.distributed.destroy_process_group()


def by_ray(how: dict) -> None:
    """The training function of Ray Train, which has initialised the process group."""
    import tempfile

    import ray.train

    folder = Path(how["folder"])
    training, is_first = Training(how["store"]), ray.train.get_context().get_world_rank() == 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            training.load(Path(directory) / "state.pt")

    def save(training: Training) -> None:
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if is_first:
                torch.save(training.state(), Path(directory) / "state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"steps": training.steps}, checkpoint=checkpoint)

    training.run(save, how["dies_at"], folder / "died")
    if is_first:
        training.report(folder)


if __name__ == "__main__":
    how = json.loads(sys.argv[1])
    by_torchrun(how["store"], Path(how["folder"]), how.get("dies_at"))
