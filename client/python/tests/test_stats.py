"""What a loader says it waits for."""

import time

import pytest

import shardd
from shardd import _stats
from helpers import PLAN, SAMPLES, loader

COUNTS = dict.fromkeys([*_stats.COUNTED, "python_s", "user_s"], 0.0)


@pytest.mark.parametrize(
    "counts, said",
    [
        ({}, "nothing"),
        ({"waited_s": 1, "network_s": 3, "disk_s": 2, "decode_s": 1, "user_s": 5}, "network"),
        ({"waited_s": 1, "network_s": 2, "disk_s": 3, "decode_s": 1, "user_s": 5}, "disk"),
        # Two threads that wait for each other's work in turn: the one that is busy longer is waited for.
        ({"waited_s": 1, "network_s": 2, "disk_s": 3, "decode_s": 6, "user_s": 5}, "decode"),
        ({"waited_s": 1, "network_s": 2, "disk_s": 3, "decode_s": 4, "user_s": 5}, "disk"),
        ({"waited_s": 1, "python_s": 2, "network_s": 9, "user_s": 5}, "python"),
        ({"waited_s": 1, "network_s": 9, "user_s": 9}, "nothing"),
        ({"waited_s": 1, "network_s": 9, "user_s": 8}, "network"),
    ],
)
def test_what_is_waited_for_follows_from_where_the_time_goes(counts, said):
    assert _stats.waits_for({**COUNTS, **counts}) == said
    assert _stats.told({**COUNTS, **counts}, None, has_processes=False)["advice"] == _stats.ADVICE[said]
    more = "processes" if said == "python" else said
    assert _stats.told({**COUNTS, **counts}, None, has_processes=True)["advice"] == _stats.ADVICE[more]


def test_a_loader_of_a_bucket_that_answers_late_waits_for_the_network(bucket, tmp_path):
    dataset = shardd.StreamingDataset(bucket.url, local=str(tmp_path), **PLAN)
    own = shardd.DataLoader(dataset, batch_size=64)
    bucket.lateness = 0.1
    try:
        list(own)
    finally:
        bucket.lateness = 0
    stats = own.stats()
    assert stats["waits_for"] == "network" and "cache_limit" in stats["advice"]
    assert stats["network_s"] >= 0.1 and stats["waited_s"] >= 0.1
    # Present batches are not waited for again.
    own.close()
    list(own)
    assert own.stats(since=stats)["network_s"] < stats["network_s"] and own.stats()["samples"] >= 2 * SAMPLES


def test_a_loader_with_a_slow_transform_waits_for_python(store):
    def slow(sample):
        time.sleep(0.001)
        return sample

    own = loader(store, batch_size=64, transform=slow)
    list(own)
    stats = own.stats()
    assert stats["waits_for"] == "python" and "transform_processes" in stats["advice"]
    assert stats["python_s"] >= SAMPLES * 0.001


def test_a_loop_that_takes_its_time_waits_for_nothing(store):
    own = loader(store, batch_size=64)
    batches = iter(own)
    next(batches)
    begun = own.stats()
    count = 0
    for count, _ in enumerate(batches, 1):
        time.sleep(0.05)
    stats = own.stats(since=begun)
    assert stats["waits_for"] == "nothing" and stats["user_s"] >= count * 0.05
    assert stats["kept_s"] > stats["waited_s"], "the next one lay there"


def test_times_are_kept_when_threads_end_and_counted_apart_since_then(store):
    own = loader(store, batch_size=64)
    list(own)
    before = own.stats()
    own.close()
    after = own.stats()
    assert all(after[name] == before[name] for name in ("samples", "steps", "waited_s", "user_s"))
    # Threads were reading ahead meanwhile.
    assert after["disk_s"] >= before["disk_s"] > 0 and after["decode_s"] >= before["decode_s"] > 0
    list(own)
    since = own.stats(since=before)
    assert since["samples"] >= SAMPLES and own.stats()["samples"] >= before["samples"] + SAMPLES
    assert own.stats(since=own.stats())["waits_for"] == "nothing"


# --- the exchange
# --------------------------------------------------------------------------------------------------------


def test_without_nodes_the_plan_says_what_moves_and_it_is_what_partitions_read(store):
    """Every partition has a virtual rank of its own, so what moves shows as what ranks read."""
    how = {"q": 0.5, "partitions": 48}
    ranks = [
        shardd.DataLoader(shardd.StreamingDataset(store, rank=rank, world_size=48, **how), batch_size=4, num_workers=1) for rank in range(48)
    ]
    assert ranks[0].exchange_stats() == {"nodes": 0, "epochs": []}
    epochs = []
    for _ in range(3):
        where = {}
        for rank, own in enumerate(ranks):
            for batch in own:
                where |= {number: rank for number in batch["id"].tolist()} if own.weight else {}
            own.close()
        epochs.append(where)
    told = ranks[0].exchange_stats()
    assert told["nodes"] == 0 and [moved["epoch"] for moved in told["epochs"]] == [0, 1, 2]
    for moved, before, after in zip(told["epochs"], epochs, epochs[1:]):
        assert len(before) == len(after) == SAMPLES
        assert moved["samples"] == sum(before[number] != after[number] for number in before)
        assert moved["share"] == moved["samples"] / SAMPLES and 0.4 < moved["share"] < 0.6
        assert moved["bytes"] >= moved["samples"] * 200
    stored = shardd.DataLoader(shardd.StreamingDataset(store, shuffle=False), 64)
    list(stored)
    assert stored.exchange_stats() == {"nodes": 0, "epochs": []}
