"""Shards that are large, in a bucket: nobody waits for all of one who wants a row of it."""

import numpy as np
import pytest

import shardd

ROWS, ROW, SHARD = 160, 200_000, "8MiB"


def picture(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, ROW, dtype=np.uint8)


@pytest.fixture(scope="module")
def large(bucket):
    """The URL of a dataset of four shards of 8 MB in the bucket, and their keys."""
    url = "s3://data/large"
    shardd.from_iter(({"id": number, "picture": picture(number)} for number in range(ROWS)), url, name="large", shard_size=SHARD)
    keys = [key for key in bucket.objects if key.startswith("large/shards/") and key.endswith(".arrow")]
    assert len(keys) >= 4
    yield url, keys
    for key in [key for key in bucket.objects if key.startswith("large/")]:
        del bucket.objects[key]


def given(bucket, keys) -> int:
    return sum(bucket.given.get(key, 0) for key in keys)


def open_(url: str, local, **how) -> shardd.DataLoader:
    dataset = shardd.StreamingDataset(url, local=str(local), format="numpy", **how)
    return shardd.DataLoader(dataset, batch_size=4, num_workers=1, prefetch_factor=1)


def check(batches) -> None:
    numbers = []
    for batch in batches:
        for number, row in zip(batch["id"].tolist(), batch["picture"]):
            assert np.array_equal(row, picture(number)), number
            numbers.append(number)
    assert sorted(numbers) == list(range(ROWS))


def test_the_first_batch_does_not_wait_for_whole_shards(bucket, large, tmp_path):
    url, keys = large
    loader = open_(url, tmp_path)
    bucket.pause("/shards/", ".arrow", gives_parts=True)
    try:
        batches = iter(loader)
        first = next(batches)
    finally:
        bucket.go_on()
    check([first, *batches])
    # Meanwhile the shards came, each once.
    before = given(bucket, keys)
    check(open_(url, tmp_path))
    assert given(bucket, keys) == before


def test_a_loader_that_ends_early_waits_for_no_shard(bucket, large, tmp_path):
    url, _ = large
    bucket.pause("/shards/", ".arrow", gives_parts=True)
    try:
        loader = open_(url, tmp_path)
        next(iter(loader))
        loader.close()
    finally:
        bucket.go_on()


def test_a_sample_by_its_number_costs_little_more_than_itself(bucket, large, tmp_path):
    url, keys = large
    dataset = shardd.StreamingDataset(url, local=str(tmp_path), format="numpy")
    before = given(bucket, keys)
    for number in (7, 150):
        sample = dataset[number]
        assert np.array_equal(sample["picture"], picture(int(sample["id"])))
    # What lies between its columns is read as well, if it is less than a request would cost.
    assert given(bucket, keys) - before < 2 * 2**20
    assert not list((tmp_path / "shards").iterdir())


def test_a_cache_that_holds_a_part_of_the_data_is_no_reason_to_read_all_of_it_again_for_each_batch(bucket, large, tmp_path):
    url, keys = large
    whole = sum(len(bucket.objects[key]) for key in keys)
    before = given(bucket, keys)
    check(open_(url, tmp_path, cache_limit="20MB"))
    # A row and what lies between it and the next, four times: 40 batches of rows of all shards, of which two find room, would
    # have it read twenty times.
    assert given(bucket, keys) - before < 8 * whole
    assert sum(file.stat().st_size for file in (tmp_path / "shards").iterdir()) <= 20_000_000


def test_where_rows_cannot_be_found_shards_are_read_whole(bucket, large, tmp_path):
    url, keys = large
    sidecars = {key: body for key, body in bucket.objects.items() if key.startswith("large/shards/") and key.endswith(".rows")}
    assert len(sidecars) == len(keys)
    try:
        bucket.objects.update({key: body[:-9] + bytes(9) for key, body in sidecars.items()})
        check(open_(url, tmp_path))
    finally:
        bucket.objects.update(sidecars)


def test_rows_that_are_not_what_the_manifest_says_never_reach_a_batch(bucket, large, tmp_path):
    url, keys = large
    shards = {key: bucket.objects[key] for key in keys}
    try:
        bucket.objects.update({key: bytes(byte ^ 1 if place % 5000 == 0 else byte for place, byte in enumerate(body)) for key, body in shards.items()})
        with pytest.raises((OSError, RuntimeError, ValueError), match="corrupt"):
            check(open_(url, tmp_path))
    finally:
        bucket.objects.update(shards)
