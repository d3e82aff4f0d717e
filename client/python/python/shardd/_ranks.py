"""Which rank this process is, of how many."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """A place in the data-parallel dimension: ranks that read the same data, such as the tensor- and pipeline-parallel peers
    of one replica, share it."""

    rank: int
    world: int

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} is outside a world of {self.world}")

    @classmethod
    def find(cls, rank: int | None = None, world: int | None = None, replication: int = 1) -> Ranks:
        """What is given, else what ``torch.distributed`` says if it is initialised, else ``RANK`` and ``WORLD_SIZE``, else one
        process alone. ``replication`` consecutive ranks read the same."""
        if (rank is None) != (world is None):
            raise ValueError("give both rank and world_size, or neither")
        if rank is None or world is None:
            group = cls.of_group()
            rank, world = (group.rank, group.world) if group is not None else _environment()
        if replication < 1 or world % replication != 0:
            raise ValueError(f"replication={replication} does not divide a world of {world}")
        return cls(rank // replication, world // replication)

    @classmethod
    def of_group(cls) -> Ranks | None:
        """What ``torch.distributed`` says, if it is initialised."""
        # Who has not imported torch has not initialised its process group either.
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())


def _environment() -> tuple[int, int]:
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None
