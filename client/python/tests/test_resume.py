"""Resuming where it ended: exactly, and with any number of ranks."""

import itertools
import json
import warnings

import pytest

import shardd
from helpers import EVERY, PLAN, SAMPLES, ids, loader


def assert_equal_output_after_checkpoint(make, batches: int) -> None:
    """For every k: a loader that is restored from the state after k batches gives what the first one gives after them."""
    own = make()
    states, given = [own.state_dict()], []
    epochs = iter(lambda: iter(own), None)
    for batch in itertools.islice(itertools.chain.from_iterable(epochs), batches):
        given.append(batch["id"].tolist())
        states.append(own.state_dict())
    for number, state in enumerate(states):
        restored = make()
        restored.load_state_dict(json.loads(json.dumps(state)))
        rest = itertools.chain.from_iterable(iter(lambda: iter(restored), None))
        tail = [batch["id"].tolist() for batch in itertools.islice(rest, min(batches - number, 9))]
        assert tail == given[number : number + 9], f"after {number} batches"
        restored.close()


@pytest.mark.parametrize("batch_size", [100, 59])
def test_a_restored_loader_gives_what_the_first_one_would_have_at_every_step(store, batch_size):
    assert_equal_output_after_checkpoint(lambda: loader(store, batch_size=batch_size), 25)


def test_a_restored_loader_of_one_rank_of_three_does_so_too_also_when_it_drops_the_rest(store):
    assert_equal_output_after_checkpoint(lambda: loader(store, 1, 3, batch_size=40, drop_last=True), 20)


def test_a_state_between_micro_batches_says_that_its_step_comes_again(store):
    own = loader(store, batch_size=128, virtual_ranks=6)
    given = []
    for batch in own:
        given.append(batch["id"].tolist())
        if len(given) == 3:
            break
    with pytest.warns(UserWarning, match="3 of 6 micro-batches .* epoch 0 position 0, and repeats 384 samples of this rank"):
        state = own.state_dict()
    assert (state["epoch"], state["position"], state["unfinished_step"]) == (0, 0, [3, 6])
    restored = loader(store, batch_size=128)
    restored.load_state_dict(state)
    again = iter(restored)
    assert [next(again)["id"].tolist() for _ in range(3)] == given
    for _ in range(3):
        next(again)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = restored.state_dict()
    assert restored.is_last_micro and state["position"] == 768 and "unfinished_step" not in state


@pytest.mark.parametrize("virtual_ranks", [1, 3, 4, 8, 16, 48])
def test_no_micro_batch_is_larger_than_the_batch_size_and_those_of_a_step_differ_by_one_at_most(store, virtual_ranks):
    own = loader(store, batch_size=7, virtual_ranks=virtual_ranks)
    steps: dict[int, list[int]] = {}
    for batch in own:
        steps.setdefault(own.step, []).append(len(batch["id"]) if own.weight else 0)
    assert sum(map(sum, steps.values())) == SAMPLES
    assert all(max(sizes) <= 7 and max(sizes) - min(sizes) <= 1 for sizes in steps.values())


def test_states_are_small_json_and_the_same_on_every_rank(store):
    loaders = [loader(store, rank, 3) for rank in range(3)]
    for batches in zip(*loaders):
        states = {json.dumps(own.state_dict()) for own in loaders}
        assert len(states) == 1 and len(states.pop()) < 300
    assert [own.state_dict()["epoch"] for own in loaders] == [1, 1, 1]


def test_a_state_counts_what_was_handed_out_and_not_what_was_read_ahead(store):
    own = loader(store, batch_size=10, num_workers=2, prefetch_factor=8)
    assert own.state_dict()["position"] == 0
    batches = iter(own)
    for number in range(1, 20):
        next(batches)
        assert own.state_dict()["position"] == 10 * number
    assert own.state_dict()["epoch"] == 0


def test_a_state_before_the_first_batch_and_after_the_last_one_are_beginnings_of_epochs(store):
    own = loader(store)
    first = own.state_dict()
    assert (first["epoch"], first["position"]) == (0, 0)
    batches = iter(own)
    for _ in range(len(own)):
        next(batches)
    assert (own.state_dict()["epoch"], own.state_dict()["position"]) == (1, 0), "before anybody asks for more"
    assert next(batches, None) is None
    restored = loader(store)
    restored.load_state_dict(own.state_dict())
    assert ids(restored) == ids(own)


def test_asking_a_loader_for_its_length_first_does_not_change_how_it_goes_on(store):
    before = loader(store, virtual_ranks=8)
    next(iter(before))
    plain, asked = loader(store), loader(store)
    assert len(asked) and asked.state_dict()
    for own in (plain, asked):
        own.load_state_dict(before.state_dict())
    assert plain.virtual_ranks == asked.virtual_ranks == 8
    assert ids(plain) == ids(asked)


def test_a_state_that_changes_the_steps_of_a_loader_is_taken_and_the_first_iteration_warns(store):
    two, one = loader(store, 0, 2), loader(store)
    one.load_state_dict(two.state_dict())
    with pytest.warns(UserWarning, match="the state is of 2 virtual ranks, and without it .* have 1. It keeps 2: .* 32 samples, and 2 micro-batches.*is_last_micro"):
        iter(one)
    assert one.virtual_ranks == 2
    more = loader(store, 0, 2)
    more.load_state_dict(loader(store).state_dict())
    with pytest.warns(UserWarning, match="the state is of 1 virtual ranks, too few for 2 ranks.* has 2, .* now has 32 samples"):
        iter(more)
    wide = loader(store, batch_size=None, global_batch_size=128)
    wide.load_state_dict(loader(store).state_dict())
    with pytest.warns(UserWarning, match="the state is of 1 virtual ranks, and without it .* have 8. It keeps 1: .* 128 samples, and 1 micro-batches.*virtual_ranks=8"):
        iter(wide)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for own in (one, more, wide):
            iter(own)  # the first iteration has warned
        # The next state counts, and not the one before it.
        one.load_state_dict(loader(store).state_dict())
        assert one.virtual_ranks == 1
        given = loader(store, virtual_ranks=1)
        given.load_state_dict(two.state_dict())
        other = loader(store, 1, 2)
        other.load_state_dict(two.state_dict())
        same = loader(store, 0, 2, batch_size=None, global_batch_size=128)
        same.load_state_dict(loader(store, batch_size=None, global_batch_size=128).state_dict())
        for own in (one, given, other, same):
            iter(own)
    assert len(one) == len(list(one))


def test_a_state_that_is_loaded_before_the_ranks_are_known_is_no_reason_for_a_warning(store, monkeypatch):
    dataset = shardd.StreamingDataset(store, **PLAN)
    early = shardd.DataLoader(dataset, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        early.load_state_dict(loader(store, 0, 2).state_dict())
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        iter(early)
    assert early.virtual_ranks == 2
    # Nor for virtual ranks that are too few for them.
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    early.load_state_dict(loader(store, 0, 2).state_dict())
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(ValueError, match="5 ranks cannot share 48 partitions equally"):
        iter(early)


def test_more_ranks_than_a_state_has_are_refused_with_what_its_plan_allows(store):
    """Another number of partitions would be another plan, which refuses the state."""
    state = loader(store, 0, 4).state_dict()
    own = loader(store, 0, 5)
    dataset = shardd.StreamingDataset(store, batch_size=16, rank=0, world_size=5, **PLAN)
    for refusing in (own, dataset):
        with pytest.raises(ValueError, match="use 4 or 6 ranks.* pass virtual_ranks=6 or global_batch_size") as error:
            refusing.load_state_dict({**state, "position": 64})
        assert "partitions=" not in str(error.value)
        assert refusing.state_dict()["position"] == 0, "nothing has changed"
    with pytest.raises(ValueError, match="use 48 ranks$"):
        loader(store, 0, 49).load_state_dict(state)
    for how in ({"virtual_ranks": 6}, {"batch_size": None, "global_batch_size": 64}):
        taken = loader(store, 0, 5, **how)
        with pytest.warns(UserWarning, match="virtual ranks for 5 ranks"):
            taken.load_state_dict(state)
            next(iter(taken))
    shardd.StreamingDataset(store, rank=0, world_size=5, **PLAN).load_state_dict(state)
    # And the virtual ranks of a state may make a number of ranks possible.
    own = loader(store, 0, 5)
    assert len(own)
    own.load_state_dict(loader(store, virtual_ranks=48).state_dict())
    with pytest.warns(UserWarning, match="48 virtual ranks for 5 ranks"):
        assert len(own) == len(list(own))


def test_a_dataset_takes_the_virtual_ranks_of_each_state_and_warns_like_a_loader(store):
    dataset = shardd.StreamingDataset(store, batch_size=16, **PLAN)
    for virtual_ranks in (8, 2):
        dataset.load_state_dict(loader(store, virtual_ranks=virtual_ranks).state_dict())
        assert dataset.virtual_ranks is None and dataset.state_dict()["virtual_ranks"] == virtual_ranks
        with pytest.warns(UserWarning, match=f"the state is of {virtual_ranks} virtual ranks, and without it .* have 1"):
            assert ids(dataset) == ids(loader(store, virtual_ranks=virtual_ranks))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ids(dataset)  # the first iteration has warned
    given = shardd.StreamingDataset(store, batch_size=16, virtual_ranks=4, **PLAN)
    given.load_state_dict(loader(store, virtual_ranks=8).state_dict())
    assert given.state_dict()["virtual_ranks"] == 4


def test_the_length_is_that_of_a_whole_epoch_and_steps_count_from_its_beginning(store):
    own = loader(store)
    for _ in itertools.islice(own, 7):
        pass
    restored = loader(store)
    restored.load_state_dict(own.state_dict())
    assert len(restored) == len(loader(store))
    steps = [restored.step for _ in restored]
    assert steps == list(range(7, len(restored)))


def part(store: str, world: int, virtual_ranks: int, state, steps: int | None):
    """The samples that ranks of a world of that size read from a state on, in `steps` steps or to the end of
    the epoch; and the state then."""
    read, states = [], []
    for rank in range(world):
        own = loader(store, rank, world, batch_size=3, virtual_ranks=virtual_ranks)
        if state is not None:
            own.load_state_dict(state)
        for batch in own:
            read += ids([batch]) if own.weight else []
            if own.is_last_micro and steps is not None and own.step + 1 >= steps:
                break
        states.append(own.state_dict())
        own.close()
    assert all(state == states[0] for state in states)
    return read, states[0]


@pytest.mark.parametrize("virtual_ranks", [16, 48])
def test_worlds_of_any_size_go_on_with_each_others_states(store, virtual_ranks):
    steps = -(-SAMPLES // (3 * virtual_ranks))
    read, state = [], None
    for world, until in ((8, steps // 4), (2, steps // 2), (8, steps - 1), (3, None)):
        some, state = part(store, world, virtual_ranks, state, until)
        assert not set(some) & set(read)
        read += some
    assert sorted(read) == EVERY and (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("virtual_ranks", [16, 48])
def test_a_step_has_the_same_samples_in_a_world_of_any_size(store, virtual_ranks):
    def steps(world):
        every = {}
        for rank in range(world):
            own = loader(store, rank, world, batch_size=3, virtual_ranks=virtual_ranks)
            for batch in own:
                every.setdefault(own.step, []).extend(ids([batch]) if own.weight else [])
            own.close()
        return {step: sorted(read) for step, read in every.items()}

    reference = steps(1)
    assert sorted(itertools.chain(*reference.values())) == EVERY
    for world in (2, 3, 6, 8, 16):
        assert steps(world) == reference, world


@pytest.mark.parametrize("before, after", [(1, 12), (4, 2), (3, 6), (12, 1), (2, 16)])
def test_resuming_pairs_are_disjoint_and_complete_at_the_edges_of_an_epoch(store, before, after):
    steps = -(-SAMPLES // 48)
    for until in (1, steps - 1):
        first, state = part(store, before, 16, None, until)
        rest, _ = part(store, after, 16, state, None)
        assert not set(first) & set(rest) and sorted(first + rest) == EVERY


def test_a_state_of_another_plan_is_refused_by_name_unless_forced(store):
    other = shardd.DataLoader(shardd.StreamingDataset(store, q=0.25), batch_size=16)
    next(iter(other))
    own = loader(store)
    state = other.state_dict()
    with pytest.raises(shardd.StateMismatch, match=f"of plan {other.dataset.plan[:12]}, and .* follows plan {own.dataset.plan[:12]}"):
        own.load_state_dict(state)
    assert own.state_dict()["position"] == 0
    own.load_state_dict(state, force=True)
    assert own.state_dict()["position"] == 16


@pytest.mark.filterwarnings("ignore:shuffle=False:UserWarning")
@pytest.mark.parametrize("was", [True, False])
def test_a_state_of_the_other_shuffle_is_refused_for_that_reason(store, was):
    before, now = (shardd.StreamingDataset(store, shuffle=shuffle, batch_size=16, **PLAN) for shuffle in (was, not was))
    message = f": the state was saved with shuffle={was}, and is loaded with shuffle={not was}. Open the data of the state with shuffle={was}, or"
    for load in (now.load_state_dict, shardd.DataLoader(now).load_state_dict):
        with pytest.raises(shardd.StateMismatch, match=message):
            load(shardd.DataLoader(before).state_dict())
        load(shardd.DataLoader(before).state_dict(), force=True)


@pytest.mark.parametrize(
    "damage, message",
    [
        ({"shardd": 2}, "format 2, and this release reads 1; upgrade"),
        ({"shardd": None}, "format None"),
        ({"epoch": -1}, "damaged"),
        ({"position": "x"}, "damaged"),
        ({"position": SAMPLES + 1}, "beyond the 1003 samples"),
        ({"virtual_ranks": 0}, "damaged"),
        ({"worker": [0, 2]}, "of worker 0 of 2"),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_is_changed(store, damage, message):
    own = loader(store)
    with pytest.raises(shardd.StateMismatch, match=message):
        own.load_state_dict({**own.state_dict(), **damage})
    with pytest.raises(shardd.StateMismatch, match="not the state of a shardd loader"):
        own.load_state_dict({"epoch": 1})
    assert sorted(ids(own)) == EVERY


def test_set_epoch_of_the_epoch_that_a_state_is_inside_keeps_the_rest_of_it(store):
    own = loader(store)
    first = ids(itertools.islice(own, 5))
    state = own.state_dict()
    restored = loader(store)
    restored.load_state_dict(state)
    restored.set_epoch(0)
    assert sorted(first + ids(restored)) == EVERY
    restored.load_state_dict(state)
    restored.set_epoch(3)
    assert sorted(ids(restored)) == EVERY and restored.state_dict()["epoch"] == 4


def test_resuming_reads_nothing_of_what_was_before(store):
    """No replay: of a state near the end, only the rest is read."""
    own = loader(store, batch_size=1)
    own.load_state_dict({**own.state_dict(), "epoch": 1000, "position": SAMPLES - 3})
    batches = iter(own)
    assert len([next(batches) for _ in range(3)]) == 3
    assert own.stats()["samples"] == 3 and own.state_dict()["epoch"] == 1001
