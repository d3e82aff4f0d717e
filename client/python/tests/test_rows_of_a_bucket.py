"""Shards that are large, in a bucket: a reader of a row does not wait for the whole shard."""

import numpy as np
import pytest

import shardd

ROW = 200_000


def picture(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, ROW, dtype=np.uint8)


def made(bucket, name: str, rows: int, shard_size: str):
    """The URL of a dataset in the bucket, the keys of its shards, and how many rows it has."""
    url = f"s3://data/{name}"
    shardd.from_iter(({"id": number, "picture": picture(number)} for number in range(rows)), url, name=name, shard_size=shard_size)
    yield url, [key for key in bucket.objects if key.startswith(f"{name}/shards/") and key.endswith(".arrow")], rows
    for key in [key for key in bucket.objects if key.startswith(f"{name}/")]:
        del bucket.objects[key]


@pytest.fixture(scope="module")
def large(bucket):
    yield from made(bucket, "large", 160, "8MiB")


@pytest.fixture(scope="module")
def many(bucket):
    """More shards than are brought at once."""
    yield from made(bucket, "many", 480, "8MiB")


def given(bucket, keys) -> int:
    return sum(bucket.given.get(key, 0) for key in keys)


def open_(url: str, local, batch_size: int = 4, **how) -> shardd.DataLoader:
    dataset = shardd.StreamingDataset(url, local=str(local), format="numpy", **how)
    return shardd.DataLoader(dataset, batch_size=batch_size, num_workers=1, prefetch_factor=1)


def check(batches, rows: int) -> None:
    numbers = []
    for batch in batches:
        for number, row in zip(batch["id"].tolist(), batch["picture"]):
            assert np.array_equal(row, picture(number)), number
            numbers.append(number)
    assert sorted(numbers) == list(range(rows))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_first_batch_does_not_wait_for_whole_shards(bucket, many, tmp_path, monkeypatch, host):
    # Names are looked up by threads that others may keep busy.
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.environment["AWS_ENDPOINT_URL"].replace("127.0.0.1", host))
    url, keys, rows = many
    assert len(keys) > 10
    loader = open_(url, tmp_path, batch_size=20)
    bucket.pause("/shards/", ".arrow", gives_parts=True)
    try:
        batches = iter(loader)
        first = next(batches)
    finally:
        bucket.go_on()
    check([first, *batches], rows)
    # Once they are here, nothing more is read.
    check(open_(url, tmp_path), rows)
    before = given(bucket, keys)
    check(open_(url, tmp_path), rows)
    assert given(bucket, keys) == before


def test_a_loader_that_ends_early_waits_for_no_shard(bucket, many, tmp_path):
    url, *_ = many
    bucket.pause("/shards/", ".arrow", gives_parts=True)
    try:
        loader = open_(url, tmp_path, batch_size=20)
        next(iter(loader))
        loader.close()
    finally:
        bucket.go_on()


def test_a_limited_epoch_fetches_no_whole_shards(bucket, many, tmp_path):
    url, keys, _ = many
    before = given(bucket, keys)
    loader = open_(url, tmp_path, limit=4)
    assert sum(len(batch["id"]) for batch in loader) == 4
    loader.close()
    assert given(bucket, keys) - before < sum(len(bucket.objects[key]) for key in keys) / 2
    assert not list((tmp_path / "shards").iterdir())


def test_a_sample_by_its_number_costs_little_more_than_itself(bucket, large, tmp_path):
    url, keys, rows = large
    dataset = shardd.StreamingDataset(url, local=str(tmp_path), format="numpy")
    before = given(bucket, keys)
    for number in (7, 150):
        sample = dataset[number]
        assert np.array_equal(sample["picture"], picture(int(sample["id"])))
    # What lies between its columns is read as well, if it is less than a request would cost.
    assert given(bucket, keys) - before < 2 * 2**20
    assert not list((tmp_path / "shards").iterdir())


def test_a_cache_that_holds_a_part_of_the_data_is_no_reason_to_read_all_of_it_again_for_each_batch(bucket, large, tmp_path):
    url, keys, rows = large
    whole = sum(len(bucket.objects[key]) for key in keys)
    before = given(bucket, keys)
    check(open_(url, tmp_path, cache_limit="20MB"), rows)
    # A row and what lies between it and the next, four times: 40 batches of rows of all shards, of which two find room, would
    # have it read twenty times.
    assert given(bucket, keys) - before < 8 * whole
    assert sum(file.stat().st_size for file in (tmp_path / "shards").iterdir()) <= 20_000_000


def test_where_rows_cannot_be_found_shards_are_read_whole(bucket, large, tmp_path):
    url, keys, rows = large
    sidecars = {key: body for key, body in bucket.objects.items() if key.startswith("large/shards/") and key.endswith(".rows")}
    assert len(sidecars) == len(keys)
    try:
        bucket.objects.update({key: body[:-9] + bytes(9) for key, body in sidecars.items()})
        check(open_(url, tmp_path), rows)
    finally:
        bucket.objects.update(sidecars)


def test_rows_that_are_not_what_the_manifest_says_never_reach_a_batch(bucket, large, tmp_path):
    url, keys, rows = large
    shards = {key: bucket.objects[key] for key in keys}
    try:
        bucket.objects.update({key: bytes(byte ^ 1 if place % 5000 == 0 else byte for place, byte in enumerate(body)) for key, body in shards.items()})
        with pytest.raises((OSError, RuntimeError, ValueError), match="corrupt"):
            check(open_(url, tmp_path), rows)
    finally:
        bucket.objects.update(shards)
