"""Values that differ in length: binaries, and lists of numbers."""

import gc
import pickle

import numpy as np
import pyarrow.parquet
import pytest
import torch

import shardd
from shardd import _device
from helpers import ingest
from test_device import Watched

COUNT = 60


def binary(number: int) -> bytes | None:
    return None if number % 7 == 3 else bytes([number]) * (number * 37 % 50)


def tokens(number: int) -> list[int] | None:
    return None if number % 11 == 5 else list(range(number, number + number % 5))


@pytest.fixture(scope="module", params=["32", "64"])
def store(request, tmp_path_factory) -> str:
    """With offsets of 32 bits, or 64."""
    folder = tmp_path_factory.mktemp("ragged")
    large = request.param == "64"
    rows = [{"id": n, "binary": binary(n), "tokens": tokens(n), "text": f"row {n}"} for n in range(COUNT)]
    schema = pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("binary", pyarrow.large_binary() if large else pyarrow.binary()),
            ("tokens", pyarrow.large_list(pyarrow.int32()) if large else pyarrow.list_(pyarrow.int32())),
            ("text", pyarrow.string()),
        ]
    )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), folder / "rows.parquet")
    ingest(folder / "store", "rows", folder / "rows.parquet")
    return str(folder / "store")


def opened(store: str, format: str = "torch", batch_size: int = 16, **how) -> shardd.DataLoader:
    return shardd.DataLoader(shardd.StreamingDataset(store, format=format), batch_size, **how)


def is_right(values: shardd.Ragged, expected: list) -> bool:
    got = [value if value is None or isinstance(value, bytes) else value.tolist() for value in values]
    one_by_one = [value if value is None or isinstance(value, bytes) else value.tolist() for value in map(values.__getitem__, range(len(values)))]
    return got == one_by_one == values.to_list() == expected


@pytest.mark.parametrize("format", ["torch", "numpy"])
def test_binaries_and_lists_lie_one_after_the_other(store, format):
    kind = torch.Tensor if format == "torch" else np.ndarray
    seen = []
    for batch in opened(store, format):
        numbers = batch["id"].tolist()
        for name, of, dtype in (("binary", binary, "uint8"), ("tokens", tokens, "int32")):
            values = batch[name]
            assert isinstance(values, shardd.Ragged) and is_right(values, [of(number) for number in numbers])
            assert isinstance(values.values, kind) and str(values.values.dtype).endswith(dtype)
            assert isinstance(values.offsets, kind) and str(values.offsets.dtype).endswith("int64")
            assert int(values.offsets[0]) == 0 and int(values.offsets[-1]) == len(values.values)
            assert values.nulls == {at for at, number in enumerate(numbers) if of(number) is None}
        assert batch["text"] == [f"row {number}" for number in numbers]
        seen += numbers
    assert sorted(seen) == list(range(COUNT))


def test_a_slice_looks_at_the_same_values(store):
    batch = next(iter(opened(store)))
    for name, of in (("binary", binary), ("tokens", tokens)):
        values = batch[name]
        expected = [of(number) for number in batch["id"].tolist()]
        for part in (slice(3, 9), slice(None, 1), slice(-4, None), slice(5, 5), slice(9, 2), slice(99, None)):
            assert is_right(values[part], expected[part])
        assert is_right(values[2:12][3:5], expected[5:7])
        full = next(at for at, value in enumerate(expected) if value)
        assert values[full:].values.data_ptr() == values.values.data_ptr() + sum(map(len, filter(None, expected[:full]))) * values.values.itemsize
        assert values[-1] == values[len(values) - 1] or torch.equal(values[-1], values[len(values) - 1])
        for wrong in (len(values), -len(values) - 1):
            with pytest.raises(IndexError, match=f"no value {wrong} of 16"):
                values[wrong]
        with pytest.raises(ValueError, match="leave out the step"):
            values[::2]


def test_values_can_be_changed_sent_and_kept(store):
    loader = opened(store)
    kept = []
    for batch in loader:
        values = batch["binary"]
        again = pickle.loads(pickle.dumps(values))
        assert again.to_list() == values.to_list()
        moved = _device.apply(lambda tensor: tensor + 1, batch)["tokens"]
        assert torch.equal(moved.values, batch["tokens"].values + 1)
        kept.append((batch["id"].tolist(), values))
        del batch, values
    loader.close()
    del loader
    gc.collect()
    assert all(is_right(values, [binary(number) for number in numbers]) for numbers, values in kept)


def test_pinned_binaries_lie_in_what_pytorch_has_allocated(tmp_path, monkeypatch):
    shardd.from_iter(({"id": n, "binary": bytes([n]) * n} for n in range(COUNT)), str(tmp_path), name="binaries")
    watched = Watched()
    monkeypatch.setattr(_device, "find_pinned", lambda: watched)
    for batch in opened(str(tmp_path), pin_memory=True):
        assert batch["binary"].values.data_ptr() in watched.addresses
        assert is_right(batch["binary"], [bytes([number]) * number for number in batch["id"].tolist()])


def size_of(sample: dict) -> dict:
    return {"id": sample["id"], "bytes": len(sample["binary"] or b""), "tokens": 0 if sample["tokens"] is None else int(sample["tokens"].sum())}


@pytest.mark.parametrize("processes", [0, 2])
def test_a_transform_sees_bytes_and_tensors(store, processes):
    total = {}
    for batch in opened(store, transform=size_of, transform_processes=processes):
        total |= {n: (b, t) for n, b, t in zip(batch["id"].tolist(), batch["bytes"].tolist(), batch["tokens"].tolist())}
    assert total == {n: (len(binary(n) or b""), sum(tokens(n) or [])) for n in range(COUNT)}


def test_a_sample_by_its_number_has_bytes_and_a_tensor(store):
    dataset = shardd.StreamingDataset(store)
    for number in range(COUNT):
        sample = dataset[number]
        n = int(sample["id"])
        assert sample["binary"] == binary(n)
        assert sample["tokens"] is None if tokens(n) is None else sample["tokens"].tolist() == tokens(n)
    batch = dataset[10:20]
    assert batch["binary"].to_list() == [binary(n) for n in batch["id"].tolist()]


def test_a_short_last_step_has_a_stand_in(store):
    """57 samples of 4 ranks: the last step has one, and three ranks are given one to stand in."""
    for rank in range(4):
        dataset = shardd.StreamingDataset(store, rank=rank, world_size=4, limit=COUNT - 3, partitions=4)
        *_, last = shardd.DataLoader(dataset, 14)
        assert len(last["binary"]) == len(last["id"]) == 1


class Lengths(torch.nn.Module):
    """Notes its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: dict[int, bytes | None] = {}

    def forward(self, batch) -> torch.Tensor:
        assert isinstance(batch["binary"], shardd.Ragged) and isinstance(batch["tokens"], shardd.Ragged)
        self.seen |= dict(zip(batch["id"].tolist(), batch["binary"]))
        return self.weight * batch["tokens"].values.float().sum()


EVERY_BINARY = {number: binary(number) for number in range(COUNT)}


def test_lightning_moves_them_as_they_are(store, tmp_path):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Lengths()

        def training_step(self, batch, _):
            return self.model(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path
    )
    trainer.fit(module, opened(store))
    assert module.model.seen == EVERY_BINARY


@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_loader_gives_them_as_they_are(store, workers):
    dataset = shardd.StreamingDataset(store, batch_size=16)
    model = Lengths()
    for batch in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context="forkserver" if workers else None):
        model(batch)
    assert model.seen == EVERY_BINARY


def test_accelerate_moves_them(store):
    import accelerate.utils
    batch = next(iter(opened(store)))
    moved = accelerate.utils.send_to_device(batch, "meta")
    assert moved["id"].device.type == moved["binary"].values.device.type == moved["tokens"].offsets.device.type == "meta"
