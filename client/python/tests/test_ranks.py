"""Which part of the data a rank reads: one decision for all callers."""

import pytest

import shardd
from helpers import EVERY, PLAN, ids, in_ranks, loader


def read(store, **how) -> list[int]:
    return ids(shardd.DataLoader(shardd.StreamingDataset(store, **PLAN, **how), 10))


def test_a_place_in_a_mesh_says_who_reads_the_same(store):
    assert read(store, mesh=(1, 3)) == ids(loader(store, 1, 3, batch_size=10))
    # Six ranks, of which those that follow each other by three are peers.
    peers = [read(store, rank=rank, world_size=6, mesh=(rank % 3, 3)) for rank in range(6)]
    assert peers[:3] == peers[3:] and sorted(sum(peers[:3], [])) == EVERY
    sampler = shardd.Sampler(100, 6, 4, mesh=(1, 3), partitions=12)
    assert sampler.ranks == shardd.Ranks(1, 3) and list(sampler) == list(shardd.Sampler(100, 3, 1, partitions=12))


@pytest.mark.parametrize(
    "how, said",
    [
        ({"rank": 4, "world_size": 4}, "rank 4 is outside a world of 4"),
        ({"rank": -1, "world_size": 4}, "rank -1 is less than 0"),
        ({"rank": 0}, "give both rank and world_size"),
        ({"rank": 0, "world_size": 4, "replication": 3}, "replication 3 does not divide 4 ranks into groups: use 2 or 4"),
        ({"rank": 0, "world_size": 4, "replication": 2, "mesh": (0, 2)}, "are both given"),
        ({"rank": 0, "world_size": 4, "mesh": (0, 3)}, "data-parallel index 0 of 3 does not fit a world of 4"),
        ({"mesh": (3, 3)}, "data-parallel index 3 of 3"),
        ({"mesh": (3,)}, "give the index along the data-parallel dimension"),
    ],
)
def test_ranks_that_fit_no_run_are_refused_with_what_would(store, how, said):
    with pytest.raises(ValueError, match=said):
        shardd.StreamingDataset(store, **how).ranks


def test_half_of_what_a_launcher_sets_is_refused(dataset, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="RANK is set in the environment, but WORLD_SIZE is not"):
        dataset.ranks


def in_mesh(rank: int, world: int, store: str):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    try:
        shardd.StreamingDataset(store, mesh=mesh)
        refused = "not refused"
    except ValueError as error:
        refused = str(error)
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    places = shardd.StreamingDataset(store, mesh=mesh["dp"]).ranks, shardd.StreamingDataset(store, mesh=both).ranks
    return refused, places, read(store, mesh=mesh["dp"])


def test_the_data_parallel_part_of_a_device_mesh_is_taken(store):
    told = in_ranks(in_mesh, 4, store)
    assert all(isinstance(one, tuple) for one in told), told
    assert all("dimensions dp, tp does not say which ranks read the same" in refused for refused, _, _ in told)
    assert [places[0] for _, places, _ in told] == [shardd.Ranks(rank // 2, 2) for rank in range(4)]
    assert [places[1] for _, places, _ in told] == [shardd.Ranks(rank, 4) for rank in range(4)]
    own = [numbers for _, _, numbers in told]
    assert own[0] == own[1] and own[2] == own[3] and sorted(own[0] + own[2]) == EVERY
