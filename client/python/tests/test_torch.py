"""Inside the loaders of PyTorch and torchdata, and in a process group."""

import copy
import itertools
import json
import multiprocessing
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import shardd
from shardd import _native
from helpers import EVERY, PLAN, SAMPLES, ids, in_ranks, loader

BATCH = 50
STEPS = -(-SAMPLES // BATCH)


def of(store: str, **how) -> shardd.StreamingDataset:
    return shardd.StreamingDataset(store, batch_size=BATCH, **PLAN, **how)


def epochs_of(batches, count: int) -> list[list[list[int]]]:
    return [[batch["id"].tolist() for batch in batches] for _ in range(count)]


@pytest.fixture(scope="module")
def expected(store) -> list[list[list[int]]]:
    """The batches of four epochs."""
    return epochs_of(loader(store, batch_size=BATCH), 4)


pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning", "ignore:.*set_vital.*:UserWarning")


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_workers_of_a_torch_loader_share_every_epoch_batch_by_batch(store, expected, workers):
    batches = DataLoader(of(store), batch_size=None, num_workers=workers)
    assert len(batches) == STEPS
    # Worker w yields the batches w, w + n, ...; PyTorch takes one of each in turn, and so has them in order.
    assert epochs_of(batches, 2) == expected[:2]


@pytest.fixture
def opened(monkeypatch) -> list[int]:
    """An item for each loader of the native part that this process opens."""
    opened, make = [], _native.Loader
    monkeypatch.setattr(_native, "Loader", lambda *order, **how: opened.append(1) or make(*order, **how))
    return opened


def test_iterations_without_workers_keep_threads_files_and_memory(store, expected, opened):
    batches = DataLoader(of(store), batch_size=None)
    assert epochs_of(batches, 4) == expected
    assert len(opened) == 1


def test_an_early_end_another_epoch_and_a_state_are_right_for_a_loader_that_is_kept(store, expected):
    dataset = of(store)
    batches = DataLoader(dataset, batch_size=None)
    assert [batch["id"].tolist() for batch in itertools.islice(batches, 3)] == expected[0][:3]
    assert epochs_of(batches, 1) == expected[1:2]
    dataset.set_epoch(0)
    assert epochs_of(batches, 2) == expected[:2]
    for batch in itertools.islice(batches, 4):
        state = dataset.state_dict()
    del batch
    assert epochs_of(batches, 1) == expected[3:4]
    dataset.load_state_dict(state)
    assert epochs_of(batches, 2) == [expected[2][4:], expected[3]]


def test_two_loops_over_one_dataset_read_two_epochs(store, expected):
    batches = DataLoader(of(store), batch_size=None)
    both = [(one["id"].tolist(), other["id"].tolist()) for one, other in zip(batches, batches)]
    assert both == list(zip(expected[0], expected[1]))
    assert epochs_of(batches, 1) == expected[2:3]


def test_persistent_workers_keep_their_turn_whatever_the_number_of_steps(store, expected):
    """21 steps: 3 workers begin each epoch with the steps of their own number, and 2 have to find them again."""
    for workers in (2, 3):
        batches = DataLoader(of(store), batch_size=None, num_workers=workers, persistent_workers=True)
        assert epochs_of(batches, 4) == expected


def test_each_worker_yields_the_batches_of_its_own_number(store, expected):
    def tagged(batch):
        return torch.utils.data.get_worker_info().id, batch["id"].tolist()

    got = list(DataLoader(of(store), batch_size=None, num_workers=3, collate_fn=tagged))
    assert got == [(step % 3, batch) for step, batch in enumerate(expected[0])]


def test_persistent_workers_go_on_with_the_next_epoch(store, expected):
    batches = DataLoader(of(store), batch_size=None, num_workers=2, persistent_workers=True)
    assert epochs_of(batches, 3) == expected[:3]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_are_left_early_go_on_with_the_next_epoch(store, expected, persistent):
    batches = DataLoader(of(store), batch_size=None, num_workers=2, persistent_workers=persistent)
    assert [batch["id"].tolist() for batch in itertools.islice(batches, 3)] == expected[0][:3]
    assert epochs_of(batches, 1) == expected[1:2]


def test_workers_that_are_no_copies_of_this_process_do_as_forked_ones(store, expected):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "helpers"])
    batches = DataLoader(of(store), batch_size=None, num_workers=2, multiprocessing_context=context)
    assert epochs_of(batches, 2) == expected[:2]


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_reaches_workers(store, expected, workers):
    dataset = of(store)
    batches = DataLoader(dataset, batch_size=None, num_workers=workers)
    for epoch in (2, 0, 3):
        dataset.set_epoch(epoch)
        assert epochs_of(batches, 1) == [expected[epoch]]


def test_seeding_torch_alike_before_every_epoch_does_not_repeat_an_epoch(store, expected):
    """What PyTorch tells its workers apart by is then the same each time."""
    batches = DataLoader(of(store), batch_size=None, num_workers=2)
    for epoch in range(3):
        torch.manual_seed(0)
        assert epochs_of(batches, 1) == [expected[epoch]]


def test_more_workers_than_batches_are_no_error(store):
    dataset = shardd.StreamingDataset(store, batch_size=600, **PLAN)
    assert sorted(ids(DataLoader(dataset, batch_size=None, num_workers=3))) == EVERY


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_any_loader_is_gone_on_with_by_workers(store, expected, workers):
    own = loader(store, batch_size=BATCH)
    for _ in itertools.islice(own, 5):
        pass
    dataset = of(store)
    dataset.load_state_dict(json.loads(json.dumps(own.state_dict())))
    batches = DataLoader(dataset, batch_size=None, num_workers=workers)
    assert epochs_of(batches, 2) == [expected[0][5:], expected[1]]


def test_samples_are_given_without_workers_and_refused_with_them(store):
    dataset = shardd.StreamingDataset(store, **PLAN)
    assert isinstance(dataset, IterableDataset) and not isinstance(3, IterableDataset)
    assert isinstance(dataset, Dataset) and isinstance(dataset, shardd.StreamingDataset)
    assert sorted(ids(DataLoader(dataset, batch_size=10))) == EVERY
    with pytest.raises(RuntimeError, match="make it with batch_size=.*batch_size=None.*shardd.DataLoader"):
        list(DataLoader(dataset, batch_size=10, num_workers=2))
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(dataset, shuffle=True)
    with pytest.raises(RuntimeError, match="cannot say which of them were used"):
        dataset.state_dict()


class Named(shardd.StreamingDataset):
    """A user's own."""


def test_a_copy_of_a_dataset_has_its_type_and_is_one_of_pytorchs(store, expected):
    for kind in (shardd.StreamingDataset, Named):
        dataset = kind(store, batch_size=BATCH, **PLAN)
        for again in (pickle.loads(pickle.dumps(dataset)), copy.copy(dataset)):
            assert type(again) is kind and isinstance(again, Dataset) and isinstance(again, kind)
            assert epochs_of(again, 1) == expected[:1]
        assert isinstance(dataset, Named) == (kind is Named)


@pytest.mark.parametrize("workers, persistent", [(0, False), (1, False), (2, False), (3, False), (1, True), (3, True)])
def test_a_stateful_loader_is_restored_exactly(store, expected, workers, persistent):
    def make():
        return StatefulDataLoader(of(store), batch_size=None, num_workers=workers, persistent_workers=persistent)

    for at in (1, 10, STEPS - 1):
        first = make()
        batches = iter(first)
        given = [next(batches)["id"].tolist() for _ in range(at)]
        state = json.loads(json.dumps(first.state_dict(), default=str)) if not workers else first.state_dict()
        del batches, first
        restored = make()
        restored.load_state_dict(state)
        rest = epochs_of(restored, 2)
        assert given + rest[0] == expected[0], at
        assert rest[1] == expected[1], "the epoch after that"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_whose_epoch_is_over_goes_on_with_the_next_one(store, expected, workers):
    first = StatefulDataLoader(of(store), batch_size=None, num_workers=workers)
    assert epochs_of(first, 1) == expected[:1]
    restored = StatefulDataLoader(of(store), batch_size=None, num_workers=workers)
    restored.load_state_dict(first.state_dict())
    assert epochs_of(restored, 2) == expected[1:3]
    assert epochs_of(first, 1) == expected[1:2]


def test_a_workers_state_is_refused_elsewhere_by_name(store):
    dataset = of(store)
    state = {**dataset.state_dict(), "worker": [1, 2]}
    with pytest.raises(shardd.StateMismatch, match="of worker 1 of 2, and this is none: keep num_workers"):
        dataset.load_state_dict(state)


# --- process groups -------------------------------------------------------------------------------------------------------


def train(rank: int, world: int, store: str, virtual_ranks: int | None):
    """Two epochs of DistributedDataParallel; the numbers that were read, by epoch, and how many steps were made."""
    own = shardd.DataLoader(shardd.StreamingDataset(store, **PLAN), batch_size=10, virtual_ranks=virtual_ranks)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(192, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    epochs, steps = [], 0
    for _ in range(2):
        read = []
        for batch in own:
            loss = torch.nn.functional.cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"])
            (loss * own.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            read += ids([batch]) if own.weight else []
            steps += 1
        epochs.append(read)
    parameters = [parameter.sum().item() for parameter in model.parameters()]
    return own.ranks == shardd.Ranks(rank, world), epochs, steps, parameters, own.state_dict()


@pytest.mark.parametrize("virtual_ranks", [None, 4])
def test_ddp_reads_an_epoch_once_in_equally_many_steps(store, virtual_ranks):
    one, other = in_ranks(train, 2, store, virtual_ranks)
    assert isinstance(one, tuple), one
    assert isinstance(other, tuple), other
    assert one[0] and other[0], "the process group says which rank it is"
    for first, second in zip(one[1], other[1]):
        assert not set(first) & set(second) and sorted(first + second) == EVERY
    assert one[2:] == other[2:]


def differ(rank: int, world: int, store: str):
    dataset = shardd.StreamingDataset(store, shuffle_seed=rank, **PLAN)
    try:
        next(iter(shardd.DataLoader(dataset, batch_size=10)))
    except shardd.StateMismatch as refused:
        return dataset.plan, str(refused)
    return dataset.plan, "not refused"


def test_ranks_of_different_plans_are_refused_at_the_start_on_every_rank(store):
    answers = in_ranks(differ, 2, store)
    plans = [plan for plan, _ in answers]
    for _, said in answers:
        assert "ranks do not read the same" in said and all(plan in said for plan in plans)


def validate(rank: int, world: int, store: str):
    """Rank 0 alone reads a loader that was given its ranks."""
    if rank == 1:
        return 0
    return len(ids(loader(store, batch_size=50)))


def test_a_rank_that_reads_a_loader_of_its_own_waits_for_nobody(store):
    assert in_ranks(validate, 2, store) == [SAMPLES, 0]


def with_workers(rank: int, world: int, store: str):
    dataset = shardd.StreamingDataset(store, batch_size=10, **PLAN)
    # A process that is no copy of this one is in no process group.
    told = pickle.loads(pickle.dumps(dataset))._given_ranks
    return ids(DataLoader(dataset, batch_size=None, num_workers=2)), told


def test_workers_of_a_rank_read_the_ranks_share(store):
    (one, told), (other, other_told) = in_ranks(with_workers, 2, store)
    assert not set(one) & set(other) and sorted(one + other) == EVERY
    assert (told[:2], other_told[:2]) == ((0, 2), (1, 2))
