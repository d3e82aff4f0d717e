"""`shardd.Sampler` where `DistributedSampler` stands."""

import itertools
import json

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import shardd


class Squares(Dataset):
    def __len__(self) -> int:
        return 1003

    def __getitem__(self, index: int) -> int:
        return index


def sampler(rank: int = 0, world: int = 1, **how) -> shardd.Sampler:
    return shardd.Sampler(Squares(), world, rank, **{"partitions": 48, "q": 0.5, "batch_size": 10, "drop_last": False, **how})


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_every_index_once_and_a_sampler_knows_its_length(world, drop_last):
    ranks = [sampler(rank, world, drop_last=drop_last) for rank in range(world)]
    lengths = [len(own) for own in ranks]
    given = [list(own) for own in ranks]
    assert [len(own) for own in given] == lengths
    read = sorted(itertools.chain(*given))
    if drop_last:
        assert len(set(lengths)) == 1 and len(read) == len(set(read)) > 1003 - 48 - 10 * world
    else:
        assert read == list(range(1003)) and max(lengths) - min(lengths) <= 10


@pytest.mark.parametrize("workers", [0, 2])
def test_it_stands_where_a_distributed_sampler_stood(workers):
    """The loop of every tutorial, with one line changed."""
    ranks = [sampler(rank, 2) for rank in range(2)]
    epochs = []
    for epoch in range(2):
        read = []
        for own in ranks:
            own.set_epoch(epoch)
            batches = DataLoader(Squares(), batch_size=10, sampler=own, num_workers=workers)
            assert len(batches) == -(-len(own) // 10)
            read.append(torch.cat(list(batches)).tolist())
        assert sorted(read[0] + read[1]) == list(range(1003))
        epochs.append(read)
    assert epochs[0][0] != epochs[1][0] and set(epochs[0][0]) != set(epochs[1][0]), "shares change, too"


def test_a_step_has_the_same_samples_in_a_world_of_any_size():
    first, again, other = list(sampler()), list(sampler()), list(sampler(seed=1))
    assert first == again != other
    steps = [sorted(first[start : start + 40]) for start in range(0, 960, 40)]
    ranks = [list(sampler(rank, 4)) for rank in range(4)]
    # Of 48 partitions with 20 samples or more, 960 positions are read before one runs out.
    alone = list(sampler(virtual_ranks=4))
    got = [sorted(itertools.chain(*(own[step * 10 : step * 10 + 10] for own in ranks))) for step in range(24)]
    assert got == steps == [sorted(alone[start : start + 40]) for start in range(0, 960, 40)]


@pytest.mark.parametrize("at", [0, 1, 7, 99, 100])
def test_its_state_goes_on_in_a_world_of_any_size(at):
    own = sampler(virtual_ranks=16, batch_size=1)
    given = list(itertools.islice(own, 16 * min(at, 62)))
    state = json.loads(json.dumps(own.state_dict()))
    assert len(json.dumps(state)) < 300
    rest = []
    for rank in range(3):
        part = sampler(rank, 3, virtual_ranks=16, batch_size=1)
        part.load_state_dict(state)
        rest += list(part)
    assert sorted(given + rest) == list(range(1003))


def test_epochs_advance_by_themselves_and_a_step_is_given_with_its_last_index():
    own = sampler()
    epochs = [list(own) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    own.set_epoch(1)
    indices = iter(own)
    taken = [next(indices) for _ in range(30)]
    assert own.state_dict()["position"] == 30
    again = sampler()
    again.load_state_dict(own.state_dict())
    assert taken + list(again) == epochs[1]
    assert own.state_dict(samples=10)["position"] == 10, "of a loader that reads ahead"


def test_a_state_of_other_data_is_refused_by_name():
    state = shardd.Sampler(1000, 1, 0).state_dict()
    with pytest.raises(shardd.StateMismatch, match="this sampler of 1003 samples follows plan"):
        sampler().load_state_dict(state)
    with pytest.raises(ValueError, match="1003 samples do not fill a step of 2000"):
        sampler(batch_size=2000, drop_last=True)
    with pytest.raises(ValueError, match="give both"):
        shardd.Sampler(1000, 2)


def test_a_last_step_that_leaves_ranks_idle_is_refused_unless_you_choose():
    """As `DistributedDataParallel` would wait forever for those that make a step less."""
    with pytest.raises(ValueError, match=r"has 3 of the 323 samples and none for 5 of 8 ranks.*pass drop_last=True"):
        shardd.Sampler(8 * 40 + 3, 8, 0, batch_size=10, partitions=8)
    steps = []
    for drop_last in (True, False):
        ranks = [shardd.Sampler(8 * 40 + 3, 8, rank, batch_size=10, partitions=8, drop_last=drop_last) for rank in range(8)]
        steps.append({-(-len(list(rank)) // 10) for rank in ranks})
    assert steps == [{4}, {4, 5}]
    assert len(shardd.Sampler(8 * 40 + 3, 1, 0, batch_size=10, partitions=8)) == 323, "one rank waits for nobody"
    assert {-(-len(shardd.Sampler(8 * 40 + 8, 8, rank, batch_size=10, partitions=8)) // 10) for rank in range(8)} == {5}
