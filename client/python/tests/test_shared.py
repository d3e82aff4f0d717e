"""Batches that workers of PyTorch's loader hand over in shared memory."""

import gc
import itertools
import mmap
import multiprocessing
import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader

import shardd
from shardd import _native
from helpers import EVERY, PLAN, ids, loader, picture

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning", "ignore:.*worker processes.*:UserWarning")

# Steps that a worker may have on their way, and those that it reads ahead, of two columns each.
IN_FLIGHT = 40


def of(store: str, **how) -> shardd.StreamingDataset:
    return shardd.StreamingDataset(store, batch_size=16, **PLAN, **how)


def memory_of(dataset: shardd.StreamingDataset) -> tuple[int, int]:
    """Blocks of the memory, and those in use."""
    gc.collect()
    return dataset._batches._map()[1].counts()


@pytest.fixture
def of_pytorch(monkeypatch) -> list:
    """An item for each storage that PyTorch hands over in its own way, to this process."""
    seen, make = [], torch.UntypedStorage._new_shared_fd_cpu
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_fd_cpu", lambda *how: seen.append(how) or make(*how))
    return seen


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_arrive_as_they_were_and_their_memory_is_used_again(store, of_pytorch, method, persistent):
    dataset = of(store)
    if method == "forkserver":
        multiprocessing.get_context(method).set_forkserver_preload(["torch", "torch.distributed", "helpers"])
    batches = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent, multiprocessing_context=method)
    for _ in range(3):
        for batch, expected in zip(batches, loader(store), strict=True) if _ == 0 else ((batch, None) for batch in batches):
            assert expected is None or all(torch.equal(batch[name], expected[name]) for name in expected)
            assert (batch["image"].numpy() == [picture(number) for number in batch["id"].tolist()]).all()
            batch["image"].zero_()  # it is the receiver's alone
        del batch
        assert memory_of(dataset)[0] <= 2 * 3 * IN_FLIGHT
    if not persistent:
        assert memory_of(dataset)[1] <= 2 * 3 * IN_FLIGHT
    assert not of_pytorch


def test_a_batch_that_is_kept_is_not_written_to(store):
    batches = list(DataLoader(of(store), batch_size=None, num_workers=2))
    again = list(DataLoader(of(store), batch_size=None, num_workers=2))
    assert sorted(ids(batches)) == EVERY == sorted(ids(again))
    for batch in batches:
        assert (batch["image"].numpy() == [picture(number) for number in batch["id"].tolist()]).all()


def test_memory_of_an_epoch_that_was_kept_is_given_back(tmp_path):
    """64 batches of 256 KiB are kept at once: afterwards few of them have pages."""
    rows = ({"id": n, "x": torch.full((4096,), n, dtype=torch.float32)} for n in range(1024))
    shardd.from_iter(rows, str(tmp_path), name="rows")
    dataset = shardd.StreamingDataset(str(tmp_path), batch_size=16)
    batches = DataLoader(dataset, batch_size=None, num_workers=1)
    kept = list(batches)
    assert pages_of(dataset) > 14 << 20
    del kept
    for batch in batches:
        assert (batch["x"].amax(1) == batch["id"]).all()
    assert pages_of(dataset) < 10 << 20


def pages_of(dataset: shardd.StreamingDataset) -> int:
    """The bytes of memory that its shared memory takes."""
    gc.collect()
    return os.fstat(dataset._batches._file.fileno()).st_blocks * 512


def test_what_dead_workers_have_left_is_used_again(store):
    dataset = of(store)
    most = 0
    for _ in range(8):
        batches = iter(DataLoader(dataset, batch_size=None, num_workers=2))
        assert len(list(itertools.islice(batches, 3))) == 3
        del batches
        most = most or memory_of(dataset)[0]
    assert memory_of(dataset)[0] <= 2 * most


def collate(batch):
    """Tensors that lie elsewhere, and values that are no tensors."""
    image = batch["image"]
    return {
        "id": batch["id"], "float": image.float().permute(0, 3, 1, 2), "part": image[:, 2:4, ::2], "one": image[:1].expand(64, -1, -1, -1),
        "none": image[:0], "bool": image > 7, "sparse": (image[:, 0, 0] > 9).to_sparse(), "grad": image.float().requires_grad_(), "text": "text",
    }


def test_what_a_collate_function_makes_arrives_as_well(store):
    for batch, other in zip(DataLoader(of(store), batch_size=None, num_workers=2, collate_fn=collate), loader(store), strict=True):
        for name, expected in collate(other).items():
            got = batch[name]
            if name == "text":
                assert got == "text"
            elif name == "sparse":
                assert torch.equal(got.to_dense(), expected.to_dense())
            else:
                assert torch.equal(got, expected) and got.dtype == expected.dtype and got.requires_grad == expected.requires_grad
                assert not got.numel() or name == "one" or got.stride() == expected.stride()


def test_without_room_pytorch_hands_batches_over(store, of_pytorch, monkeypatch):
    monkeypatch.setattr(shardd._shared, "_SIZE", 1 << 18)
    assert sorted(ids(DataLoader(of(store), batch_size=None, num_workers=2))) == EVERY
    assert of_pytorch


def test_a_batch_is_a_message_for_the_process_that_has_the_memory(store):
    """A copy for a file or a third process has the values themselves."""
    batch = next(iter(DataLoader(of(store), batch_size=None, num_workers=1)))
    again = pickle.loads(pickle.dumps(batch))
    assert torch.equal(again["image"], batch["image"])


def test_a_message_is_received_once_and_its_block_is_free_with_the_last_tensor():
    blocks = _native.SharedBlocks(mmap.mmap(-1, 1 << 20))
    values = torch.arange(100)
    number, uses, offset = blocks.send(values.data_ptr(), 800)
    assert (offset, blocks.counts()) == (0, (1, 1))
    received = torch.from_dlpack(blocks.receive(number, uses))
    part = received[8:16].view(torch.int64)
    with pytest.raises(RuntimeError, match="block 0 of a batch was received before"):
        blocks.receive(number, uses)
    del received
    assert blocks.counts() == (1, 1) and part.tolist() == [1]
    del part
    assert blocks.counts() == (1, 0) and blocks.send(values.data_ptr(), 8) == (0, uses + 1, 0), "used again"
    with pytest.raises(RuntimeError, match="its sender is gone and the block is in use again"):
        blocks.receive(0, uses)  # an earlier use
    assert blocks.send(values.data_ptr(), 1 << 20) is None, "no room"
    with pytest.raises(ValueError, match="there is no block 7 of 1"):
        blocks.receive(7, 1)
    with pytest.raises(ValueError, match="4096 bytes cannot be shared"):
        _native.SharedBlocks(mmap.mmap(-1, 4096))


def test_a_block_has_one_tensor_at_a_time_whatever_threads_do():
    blocks = _native.SharedBlocks(mmap.mmap(-1, 4 << 20))

    def round_trips(seed: int) -> int:
        draw = random.Random(seed)
        held: list[tuple[int, torch.Tensor]] = []
        for number in range(300):
            value = seed * 1000 + number
            values = torch.full((draw.randrange(1, 2000),), value)
            found = blocks.send(values.data_ptr(), values.nbytes)
            if found is not None:
                held.append((value, torch.from_dlpack(blocks.receive(*found[:2]))[: values.nbytes].view(torch.int64)))
            draw.shuffle(held)
            for value, received in held[5:]:
                assert (received == value).all()
            del held[5:]
        return len(held)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(round_trips, range(4))) == [5] * 4
    gc.collect()
    assert blocks.counts()[1] == 0


def test_a_message_without_its_memory_is_refused():
    with pytest.raises(RuntimeError, match="does not have the memory of its StreamingDataset: keep the dataset"):
        shardd._shared._receive(0, 1, 1, 0, torch.uint8, (1,), (1,))
