"""What an epoch is."""

import os
import warnings

import pytest
import torch

import shardd
from helpers import EVERY, PLAN, SAMPLES, ids, loader, picture


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 17, 59, 64, 500, 1003])
def test_an_epoch_has_every_sample_once_and_as_many_batches_as_its_length(store, batch_size, drop_last):
    own = loader(store, batch_size=batch_size, drop_last=drop_last)
    batches = [batch["id"] for batch in own]
    assert len(batches) == len(own)
    read = torch.cat(batches).tolist()
    assert len(set(read)) == len(read) == (SAMPLES // batch_size * batch_size if drop_last else SAMPLES)
    assert set(read) <= set(EVERY)
    assert all(len(batch) == batch_size for batch in batches[: SAMPLES // batch_size])


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_have_equally_many_batches_and_share_every_sample(store, world, drop_last):
    loaders = [loader(store, rank, world, batch_size=10, drop_last=drop_last) for rank in range(world)]
    # A rank that has nothing to read in the last step is given a stand-in, of no weight.
    batches = [[(batch, own.weight) for batch in own] for own in loaders]
    assert {len(own) for own in batches} == {len(own) for own in loaders} == {len(batches[0])}
    read = [number for own in batches for number in ids(batch for batch, weight in own if weight)]
    assert len(set(read)) == len(read) == (SAMPLES // (10 * world) * 10 * world if drop_last else SAMPLES)


def test_a_batch_is_what_was_ingested(store):
    for batch in loader(store):
        for number, image, label in zip(*batch.values()):
            assert (image.numpy() == picture(int(number))).all() and label == number % 10


@pytest.mark.parametrize("format", ["torch", "numpy", "arrow"])
def test_every_format_gives_the_same(store, format):
    dataset = shardd.StreamingDataset(store, **PLAN, format=format)
    batches = list(shardd.DataLoader(dataset, batch_size=64))
    reference = list(loader(store, batch_size=64))
    assert [batch["id"].tolist() for batch in batches] == [batch["id"].tolist() for batch in reference]
    images = batches[0]["image"]
    images = images.to_numpy_ndarray() if format == "arrow" else images
    assert (torch.as_tensor(images) == reference[0]["image"]).all()


def test_images_come_with_channels_first_and_as_floats_if_so_asked(store):
    dataset = shardd.StreamingDataset(store, image_layout="chw", image_dtype="float32")
    batch = next(iter(shardd.DataLoader(dataset, batch_size=5)))
    assert batch["image"].shape == (5, 3, 8, 8) and batch["image"].dtype == torch.float32
    first = torch.from_numpy(picture(int(batch["id"][0]))).permute(2, 0, 1) / 255
    assert torch.equal(batch["image"][0], first) and batch["label"].dtype == torch.int64


@pytest.mark.parametrize("layout", [None, "chw", "hwc"])
def test_images_that_are_stored_with_channels_first_are_images_too(tmp_path, layout):
    stored = [picture(number).transpose(2, 0, 1) for number in range(40)]
    shardd.from_iter(({"id": number, "image": stored[number]} for number in range(40)), str(tmp_path), name="first")
    dataset = shardd.StreamingDataset(str(tmp_path), image_layout=layout, image_dtype="float32")
    for batch in shardd.DataLoader(dataset, batch_size=8):
        for number, image in zip(batch["id"].tolist(), batch["image"]):
            wanted = torch.from_numpy(stored[number].copy()) / 255
            assert torch.equal(image, wanted.permute(1, 2, 0) if layout == "hwc" else wanted)


def test_columns_that_are_not_asked_for_are_not_given(store):
    dataset = shardd.StreamingDataset(store, columns=["label"])
    assert list(next(iter(shardd.DataLoader(dataset, batch_size=5)))) == ["label"]
    with pytest.raises(ValueError, match="no column 'lable'; there are id, image, label"):
        shardd.StreamingDataset(store, columns=["lable"])


def test_a_transform_and_a_collate_fn_see_single_samples(store):
    dataset = shardd.StreamingDataset(store, **PLAN)
    doubled = shardd.DataLoader(dataset, batch_size=64, transform=lambda sample: {"id": sample["id"] * 2})
    assert sorted(ids(doubled)) == [2 * number for number in EVERY]
    listed = shardd.DataLoader(dataset, batch_size=64, collate_fn=lambda samples: {"id": torch.stack([s["id"] for s in samples])})
    assert sorted(ids(listed)) == EVERY


def test_epochs_differ_and_advance_by_themselves(store):
    own = loader(store)
    first, second = ids(own), ids(own)
    assert first != second and sorted(first) == sorted(second) == EVERY
    again = loader(store)
    assert [ids(again), ids(again)] == [first, second]


def test_set_epoch_says_which_epoch_is_next_and_nothing_else(store):
    own = loader(store)
    epochs = [ids(own) for _ in range(3)]
    for epoch in (2, 0, 1):
        own.set_epoch(epoch)
        own.set_epoch(epoch)
        assert ids(own) == epochs[epoch]
    assert ids(own) == epochs[2]
    with pytest.raises(ValueError, match="no epoch -1"):
        own.set_epoch(-1)


def test_another_seed_or_share_is_another_order_and_none_repeats_it(store):
    orders = [ids(shardd.DataLoader(shardd.StreamingDataset(store, **how), batch_size=50)) for how in ({}, {}, {"shuffle_seed": 1}, {"partitions": 16})]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("q, least, most", [(0, 0, 0.005), (0.1, 0.01, 0.1), (0.5, 0.15, 0.35), (1, 0.4, 0.6)])
def test_what_a_rank_reads_changes_by_the_share_that_is_exchanged(store, q, least, most):
    """Half of what leaves a partition is dealt to another one of the same rank of two. Besides, equal shares of the last steps
    take a few rows of the other rank."""
    own = shardd.DataLoader(shardd.StreamingDataset(store, q=q, partitions=48, rank=0, world_size=2), batch_size=50)
    epochs = [set(ids(own)) for _ in range(4)]
    for before, after in zip(epochs, epochs[1:]):
        assert least <= len(before - after) / len(before) <= most


def test_a_loop_that_is_left_early_goes_on_with_the_next_epoch(store):
    reference = loader(store)
    epochs = [ids(reference) for _ in range(3)]
    own = loader(store)
    for number, _ in enumerate(own):
        if number == 3:
            break
    assert ids(own) == epochs[1]
    with pytest.raises(ZeroDivisionError):
        for _ in own:
            1 / 0
    assert sorted(ids(own)) == EVERY and own.state_dict()["epoch"] == 4


def test_two_loaders_of_one_process_do_not_disturb_each_other(store):
    alone = ids(loader(store))
    pairs = list(zip(loader(store), loader(store)))
    assert ids(a for a, _ in pairs) == ids(b for _, b in pairs) == alone


def test_a_loop_within_a_loop_over_the_same_loader_is_an_error_that_names_the_way_out(store):
    own = loader(store)
    read = 0
    with pytest.raises(RuntimeError, match="make a DataLoader each"):
        for _ in own:
            read += len(list(own))
    assert read == len(own), "the loop that was begun last reads its whole epoch"
    with pytest.raises(RuntimeError, match="another loop over this DataLoader has begun"):
        list(zip(own, own))
    # An iterator that is left alone disturbs no other.
    next(iter(own))
    assert sorted(ids(own)) == EVERY


def test_an_epoch_without_a_step_is_refused(store):
    with pytest.raises(ValueError, match="no step in an epoch: 1003 samples, steps of 2000"):
        iter(loader(store, batch_size=2000, drop_last=True))


def test_a_loader_knows_how_steps_are_put_together_of_micro_batches(store):
    own = loader(store, batch_size=10, virtual_ranks=3)
    weights: dict[int, float] = {}
    lasts = 0
    for batch in own:
        assert own.accumulation == 3 and own.positions[0] == own.step * 30
        share = len(batch["id"]) / (own.positions[1] - own.positions[0])
        assert own.weight == pytest.approx(share)
        weights[own.step] = weights.get(own.step, 0) + own.weight
        lasts += own.is_last_micro
    assert lasts == len(weights) == -(-SAMPLES // 30)
    assert list(weights.values()) == pytest.approx([1.0] * len(weights))


def test_a_global_batch_is_cut_alike_for_any_number_of_ranks(store):
    read = {}
    for world in (1, 2, 3, 4, 6, 8):
        steps = read.setdefault(world, {})
        for rank in range(world):
            dataset = shardd.StreamingDataset(store, partitions=48, rank=rank, world_size=world)
            own = shardd.DataLoader(dataset, global_batch_size=67)
            assert (own.virtual_ranks, own.batch_size, own.global_batch_size) == (8, 9, 67)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for batch in own:
                    steps.setdefault(own.step, []).append(batch["id"].tolist() if own.weight else [])
        sizes = [len(ids) for step in list(steps.values())[:-1] for ids in step]
        assert set(sizes) == {8, 9}
    assert all(steps == read[1] for steps in read.values()), "the same micro-batches, in the order of virtual ranks"
    with pytest.raises(ValueError, match="one of them"):
        shardd.DataLoader(dataset, 16, global_batch_size=64)
    with pytest.raises(ValueError, match="2 ranks cannot share 1 virtual ranks"):
        list(shardd.DataLoader(shardd.StreamingDataset(store, partitions=48, rank=0, world_size=2), global_batch_size=8))


def test_ranks_that_would_have_unequally_many_batches_are_refused_with_the_way_out(store):
    """In a loop that steps after each batch, a rank would wait for others that have no batch left."""
    def refused(world: int, message: str, **how) -> None:
        own = shardd.DataLoader(shardd.StreamingDataset(store, rank=0, world_size=world, **how), 10)
        for use in (iter, len, shardd.DataLoader.state_dict):
            if use is not iter and world <= own.dataset.partitions:
                assert use(own)  # a state that is loaded later may have virtual ranks that fit
                continue
            with pytest.raises(ValueError, match=f"{world} ranks cannot share .* partitions equally.*{message}"):
                use(own)

    refused(3, "pass partitions=48 to StreamingDataset.*virtual_ranks=4 or global_batch_size", partitions=16)
    refused(2, "pass partitions=2 to StreamingDataset, or another multiple of the number of ranks$", partitions=1)
    with pytest.raises(ValueError, match="3 ranks cannot share 16 partitions equally.*pass partitions=48 to Sampler"):
        shardd.Sampler(1000, 3, 0, partitions=16)
    ranks = [shardd.DataLoader(shardd.StreamingDataset(store, partitions=48, rank=rank, world_size=3), 10) for rank in range(3)]
    assert len({len(list(rank)) for rank in ranks}) == 1
    # A plan has no more partitions than grains, however few samples an epoch has.
    refused(5, "pass partitions=480 to StreamingDataset", partitions=96, limit=10)
    with pytest.raises(ValueError, match="only 12 grains"):
        shardd.StreamingDataset(store, grain_rows=64, partitions=1000)
    refused(8, "pass partitions=8 to", grain_rows=64, partitions=10)
    refused(13, "Use at most 12 ranks, or a smaller grain_rows", grain_rows=64, partitions=10)


def test_given_virtual_ranks_that_ranks_share_unequally_are_a_warning(store):
    dataset = shardd.StreamingDataset(store, partitions=8, rank=0, world_size=3)
    for how in ({"batch_size": 10, "virtual_ranks": 4}, {"global_batch_size": 64}):
        with pytest.warns(UserWarning, match="[48] virtual ranks for 3 ranks.*is_last_micro.*multiples of the number of ranks"):
            next(iter(shardd.DataLoader(dataset, **how)))


def test_peers_of_one_replica_get_the_same_batches(store):
    """Tensor- and pipeline-parallel ranks: 4 ranks, of which two each read the same."""
    def of(rank):
        dataset = shardd.StreamingDataset(store, rank=rank, world_size=4, replication=2, **PLAN)
        return ids(shardd.DataLoader(dataset, batch_size=10))

    read = [of(rank) for rank in range(4)]
    assert read[0] == read[1] and read[2] == read[3] and sorted(read[0] + read[2]) == EVERY
    assert read[0] == ids(loader(store, 0, 2, batch_size=10)), "replication does not change the order"


def test_ranks_are_found_in_the_environment_and_mistakes_in_it_named(store, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = shardd.StreamingDataset(store, **PLAN)
    assert dataset.ranks == shardd.Ranks(1, 2)
    assert ids(shardd.DataLoader(dataset, batch_size=8)) == ids(loader(store, 1, 2, batch_size=8))
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(ValueError, match='RANK="x" in the environment is not a whole number'):
        dataset.ranks
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="rank 2 is outside a world of 2"):
        dataset.ranks


def test_a_dataset_tells_what_it_is(dataset, store):
    assert dataset.columns == ["id", "image", "label"]
    assert dataset.class_to_idx == {name: number for number, name in enumerate("abcdefghij")}
    assert len(dataset) == dataset.num_samples == SAMPLES
    assert "1003 samples" in repr(dataset)
    with pytest.raises((FileNotFoundError, ValueError), match="cats"):
        shardd.StreamingDataset(store, dataset="cats")
    with pytest.raises(FileNotFoundError, match="no datasets there; fill it with"):
        shardd.StreamingDataset(os.path.join(store, "nowhere"))


def test_single_samples_are_shared_by_any_number_of_ranks(store):
    def read(world: int, limit: int) -> list[int]:
        ranks = [shardd.StreamingDataset(store, rank=rank, world_size=world, limit=limit, **PLAN) for rank in range(world)]
        return sorted(int(sample["id"]) for rank in ranks for sample in rank)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(5, SAMPLES) == EVERY
        assert read(5, 3) == read(1, 3), "without stand-ins"


def test_iterating_a_dataset_gives_samples_or_its_batches(store):
    assert sorted(int(sample["id"]) for sample in shardd.StreamingDataset(store)) == EVERY
    dataset = shardd.StreamingDataset(store, **PLAN, batch_size=16)
    reference = loader(store)
    assert [ids(dataset), ids(dataset)] == [ids(reference), ids(reference)]
    dataset.set_epoch(0)
    assert ids(dataset) == ids(loader(store)) and len(dataset) == len(loader(store))


def test_statistics_count_what_was_handed_out(store):
    own = loader(store)
    assert own.stats()["samples"] == 0
    list(own)
    assert own.stats()["samples"] >= SAMPLES and own.stats()["waited_s"] >= 0
