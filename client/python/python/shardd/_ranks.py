"""Which rank this process is, of how many."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _native

# The largest common multiple of partitions and ranks that is proposed as a number of partitions.
_MANY = 1024

# What the dimensions of a mesh are called that all read different samples.
_DATA_PARALLEL = {"dp", "ddp", "fsdp", "data", "batch", "dp_replicate", "dp_shard", "replicate", "shard"}


@dataclass(frozen=True)
class Ranks:
    """A place in the data-parallel dimension: ranks that read the same data, such as the tensor- and pipeline-parallel peers
    of one replica, share it."""

    rank: int
    world: int

    @classmethod
    def find(
        cls, rank: int | None = None, world: int | None = None, replication: int | None = None, mesh: tuple[int, int] | None = None
    ) -> Ranks:
        """The given values, else those of ``torch.distributed`` if it is initialised, else those of a worker of Ray Train, else
        those in the environment of a launcher (torchrun, Slurm, MPI), else one process alone. ``replication`` consecutive ranks
        read the same; or those do that have the same index in ``mesh``, the index along the data-parallel dimension and its size."""
        if (rank is None) != (world is None):
            raise ValueError("give both rank and world_size, or neither")
        for name, value in (("rank", rank), ("world_size", world), ("replication", replication)):
            if value is not None and value < 0:
                raise ValueError(f"{name} {value} is less than 0")
        if rank is None and (group := cls.of_group() or cls.of_ray()) is not None:
            rank, world = group.rank, group.world
        return cls(*_native.data_rank(os.environ.get, rank=rank, world=world, replication=replication, mesh=mesh))

    @classmethod
    def of_group(cls) -> Ranks | None:
        """What ``torch.distributed`` says, if it is initialised."""
        # Who has not imported torch has not initialised its process group either.
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    @classmethod
    def of_ray(cls) -> Ranks | None:
        """The place of a worker of Ray Train, if this process is one."""
        # A worker has imported ray.train before it runs the training function.
        if (ray := sys.modules.get("ray")) is None or "ray.train" not in sys.modules or not ray.is_initialized():
            return None
        try:
            context = ray.train.get_context()
            rank, world = context.get_world_rank(), context.get_world_size()
        except RuntimeError:
            return None  # a driver, or a task of another kind
        # The first version of Ray Train warns there instead, and says that it is the only one.
        is_second = type(context).__module__.startswith("ray.train.v2")
        return cls(rank, world) if is_second or world > 1 else None


def refuse_unequal(world: int, virtual: int, partitions: int, grains: Callable[[], int], where: str) -> None:
    """Refuses virtual ranks that ``world`` ranks cannot share equally, and names partitions that they can. A plan has no more
    partitions than ``grains``."""
    if virtual % world == 0:
        return
    most = grains()
    if fitting := _fitting(world, partitions, most):
        remedy = f"pass partitions={fitting} to {where}, or another multiple of the number of ranks"
    else:
        remedy = f"each rank needs a grain, and there are {most}. Use at most {most} ranks, or a smaller grain_rows if it is above 1"
    raise ValueError(f"{_cannot_share(world, partitions)}: {remedy}{_or_more_micro_batches(world, virtual)}")


def refuse_unequal_resumed(world: int, virtual: int, partitions: int) -> None:
    """Does so for a loader that has a state: this is of a plan, whose partitions stay."""
    if virtual % world == 0:
        return
    divisors = [number for number in range(1, partitions + 1) if partitions % number == 0]
    near = [max(number for number in divisors if number < world), *[number for number in divisors if number > world][:1]]
    raise ValueError(
        f"{_cannot_share(world, partitions)}. The state is of a plan with {partitions} partitions, so keep these, and use "
        f"{' or '.join(map(str, near))} ranks{_or_more_micro_batches(world, virtual)}"
    )


def _cannot_share(world: int, partitions: int) -> str:
    return f"{world} ranks cannot share {partitions} partitions equally, and some would have more batches than others"


def _or_more_micro_batches(world: int, virtual: int) -> str:
    if virtual < world:
        return ""  # more ranks than partitions
    return (
        f". If your loop makes one step for several micro-batches, you can pass virtual_ranks={virtual} or global_batch_size in place "
        "of that"
    )


def _fitting(world: int, partitions: int, grains: int) -> int | None:
    """Partitions for as many grains that ``world`` ranks can share; `None` if there are too few grains."""
    common, most = math.lcm(partitions, world), grains // world * world
    if common <= min(most, _MANY):
        return common
    return min(-(-partitions // world) * world, most) or None


@dataclass
class Taken:
    """The virtual ranks of a state, for a loader whose user gave none."""

    virtual_ranks: int
    # An iteration has warned if steps are others than those of a loader without the state.
    is_reported: bool = False


def place_in(mesh: Any) -> tuple[int, int] | None:
    """The index along the data-parallel dimension, and its size: given as such, or by a ``DeviceMesh`` of PyTorch that has this
    dimension alone (``mesh["dp"]``), or it and others that read different samples (``mesh["dp_replicate", "dp_shard"]``)."""
    if mesh is None:
        return None
    if isinstance(mesh, tuple | list):
        if len(mesh) != 2 or any(not isinstance(number, int) or number < 0 for number in mesh):
            raise ValueError(f"mesh={mesh!r}: give the index along the data-parallel dimension, from 0, and the size of it")
        return mesh[0], mesh[1]
    names, coordinate = mesh.mesh_dim_names or (), mesh.get_coordinate()
    if mesh.ndim > 1 and not (names and set(names) <= _DATA_PARALLEL):
        raise ValueError(
            f"a mesh of dimensions {', '.join(names) or mesh.ndim} does not say which ranks read the same: give its data-parallel part, such "
            'as mesh["dp"]'
        )
    if coordinate is None:
        raise ValueError("this rank is not in the mesh")
    index, size = 0, 1
    for at, length in zip(coordinate, mesh.shape):
        index, size = index * length + at, size * length
    return index, size
