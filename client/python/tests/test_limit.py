"""Epochs that end early: the same samples for any number of ranks, in any pieces."""

import itertools
import json

import pytest

import shardd
from helpers import PLAN, SAMPLES, ids, loader

LIMIT = 250


def limited(store, rank=0, world=1, *, limit=LIMIT, shuffle=True, **how) -> shardd.DataLoader:
    dataset = shardd.StreamingDataset(store, rank=rank, world_size=world, limit=limit, shuffle=shuffle, **PLAN)
    return shardd.DataLoader(dataset, **{"batch_size": 16, **how})


def test_an_epoch_is_the_beginning_of_the_plans_and_the_next_one_of_its_next(store):
    whole, short = loader(store), limited(store)
    for _ in range(3):
        assert ids(short) == ids(whole)[:LIMIT]
    assert short.dataset.num_samples == LIMIT and "250 in an epoch" in repr(short.dataset)
    assert len(short) == -(-LIMIT // 16)


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("last_batch", ["short", "drop", "carry"])
def test_worlds_of_any_size_share_the_same_samples(store, world, last_batch):
    def read(world, epochs=2):
        loaders = [limited(store, rank, world, last_batch=last_batch, virtual_ranks=24, batch_size=2) for rank in range(world)]
        return [sorted(itertools.chain.from_iterable(ids(own) for own in loaders)) for _ in range(epochs)]

    assert read(world) == read(1)


def test_the_samples_as_they_are_stored_are_the_first_ones(store):
    own = limited(store, shuffle=False)
    assert ids(own) == own.dataset[:LIMIT]["id"].tolist()


def test_a_limited_loader_goes_on_exactly_in_a_world_of_another_size(store):
    whole = ids(limited(store, virtual_ranks=12, batch_size=3))
    for steps in (1, 4, 6, 7):
        read, states = [], []
        for rank in range(4):
            own = limited(store, rank, 4, virtual_ranks=12, batch_size=3)
            for batch in own:
                read += ids([batch]) if own.weight else []
                if own.is_last_micro and own.step + 1 >= steps:
                    break
            states.append(json.dumps(own.state_dict()))
        assert len(set(states)) == 1 and len(states[0]) < 300
        rest = []
        for rank in range(3 * (steps < 7)):
            own = limited(store, rank, 3, batch_size=3)
            own.load_state_dict(json.loads(states[0]))
            rest += ids(own)
        assert sorted(read + rest) == sorted(whole), f"after {steps} steps"


def test_a_state_of_another_limit_is_refused_by_name_unless_forced(store):
    own = limited(store)
    next(iter(own))
    state = own.state_dict()
    assert state["limit"] == LIMIT
    for other in (loader(store), limited(store, limit=100)):
        with pytest.raises(shardd.StateMismatch, match="saved with limit=250.*has limit=(None|100).*force=True"):
            other.load_state_dict(state)
        other.load_state_dict(state, force=True)
        assert ids(other) == ids(loader(store))[16 : other.dataset.num_samples]
    with pytest.raises(shardd.StateMismatch, match="saved with limit=None.*has limit=250"):
        own.load_state_dict(loader(store).state_dict())
    # A limit that leaves nothing out is none.
    limited(store, limit=SAMPLES).load_state_dict(loader(store).state_dict())
    assert ids(limited(store, limit=10**9)) == ids(loader(store))


def test_workers_of_a_torch_loader_read_limited_epochs(store):
    from torch.utils.data import DataLoader

    dataset = shardd.StreamingDataset(store, limit=100, batch_size=16, **PLAN)
    own = DataLoader(dataset, batch_size=None, num_workers=2)
    expected = limited(store, limit=100)
    assert [sorted(ids(own)), sorted(ids(own))] == [sorted(ids(expected)), sorted(ids(expected))]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_nothing_is_refused(store, limit):
    with pytest.raises(ValueError, match=f"limit={limit} leaves no samples"):
        shardd.StreamingDataset(store, limit=limit)
