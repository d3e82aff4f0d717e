"""Batches in memory that PyTorch allocates, and on their way to a device."""

import gc
import random
import warnings
import weakref
from collections import namedtuple

import numpy as np
import pytest
import torch

import shardd
from shardd import _device
from helpers import EVERY, PLAN, SAMPLES, ids, loader, own_threads, picture

CUDA = torch.cuda.is_available()


class Watched:
    """Stands in for pinned memory: plain memory of PyTorch's, of which it is known when it has no user any
    more; then it is written over."""

    def __init__(self) -> None:
        self.allocated = self.returned = 0
        self.addresses: set[int] = set()

    def allocate(self, bytes: int) -> torch.Tensor:
        own = np.empty(bytes + 64, np.uint8)
        start = -own.ctypes.data % 64
        memory = own[start : start + bytes]
        # The storage that PyTorch makes of it keeps `memory`, and nothing else does.
        tensor = torch.from_numpy(memory)
        weakref.finalize(memory, self._spoil, own)
        self.allocated += 1
        self.addresses.add(tensor.data_ptr())
        return tensor

    def _spoil(self, own: np.ndarray) -> None:
        own.fill(0xEE)
        self.returned += 1

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@pytest.fixture
def watched(monkeypatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(_device, "find_pinned", lambda: watched)
    return watched


def test_batches_lie_in_what_pytorch_has_allocated(store, watched):
    own = loader(store, batch_size=64, pin_memory=True)
    reference = loader(store, batch_size=64)
    for batch, other in zip(own, reference, strict=True):
        assert all(torch.equal(batch[name], other[name]) and batch[name].dtype == other[name].dtype for name in other)
        assert {values.data_ptr() for values in batch.values()} <= watched.addresses
    own.close()
    del own, batch
    gc.collect()
    assert watched.allocated == watched.returned, "all of it went back"


@pytest.mark.parametrize("batch_size, batches", [(1, 10_000), (400, 1_000)])
def test_no_batch_is_written_over_while_anything_looks_at_it(store, watched, batch_size, batches):
    own = loader(store, batch_size=batch_size, pin_memory=True)
    chance = random.Random(1)
    kept: list[tuple[int, torch.Tensor]] = []
    count = 0
    while count < batches:
        for batch in own:
            count += 1
            at = chance.randrange(len(batch["id"]))
            number, image = int(batch["id"][at]), batch["image"]
            if chance.random() < 0.1:
                kept.append((number, chance.choice([image[at], image[at].permute(2, 0, 1).permute(1, 2, 0), image[at:][0]])))
            del batch, image
            if len(kept) > 20:
                number, view = kept.pop(chance.randrange(len(kept)))
                assert (view.numpy() == picture(number)).all()
                del view
    own.close()
    gc.collect()
    assert all((view.numpy() == picture(number)).all() for number, view in kept), "also when the loader is closed"
    kept.clear()
    del own
    gc.collect()
    assert watched.allocated == watched.returned >= batches


def test_what_a_batch_lies_in_stays_when_loader_and_dataset_are_gone(store, watched):
    own = loader(store, batch_size=64, pin_memory=True)
    batch = next(iter(own))
    image, numbers = batch["image"][5:9], batch["id"].tolist()[5:9]
    del own, batch
    gc.collect()
    assert all((one.numpy() == picture(number)).all() for one, number in zip(image, numbers))


def test_a_loader_that_is_lost_while_threads_ask_for_memory_ends(store, watched):
    before = own_threads()
    for _ in range(20):
        own = loader(store, batch_size=8, pin_memory=True, num_workers=4, prefetch_factor=8)
        next(iter(own))
        del own
    gc.collect()
    assert own_threads() <= before


def test_memory_that_is_not_to_be_had_is_an_error_of_the_loop(store, watched, monkeypatch):
    def refuse(bytes):
        raise MemoryError("no page can be locked")

    monkeypatch.setattr(watched, "allocate", refuse)
    with pytest.raises(RuntimeError, match="no page can be locked"):
        next(iter(loader(store, pin_memory=True)))
    monkeypatch.setattr(watched, "allocate", lambda bytes: torch.empty(bytes + 1, dtype=torch.uint8)[1:])
    with pytest.raises(RuntimeError, match="from a multiple of 64 on"):
        next(iter(loader(store, pin_memory=True)))


def test_an_interpreter_ends_while_threads_gather_into_its_memory(script, store):
    done = script("""
import sys, torch, shardd
from shardd import _device
class Plain:
    allocate = staticmethod(lambda bytes: torch.empty(bytes, dtype=torch.uint8))
    pin = staticmethod(lambda tensor: tensor)
_device.find_pinned = Plain
own = shardd.DataLoader(shardd.StreamingDataset(sys.argv[1]), 8, pin_memory=True, num_workers=4, prefetch_factor=8)
batches = iter(own)
print(len(next(batches)["id"]))
""", store)
    assert done.stdout == "8\n" and done.stderr == ""


def test_what_a_transform_makes_is_pinned_as_well(store, watched, monkeypatch):
    pinned = []
    monkeypatch.setattr(watched, "pin", lambda tensor: pinned.append(tensor.data_ptr()) or tensor)
    own = loader(store, batch_size=64, pin_memory=True, transform=lambda sample: {"id": sample["id"]})
    read = [batch["id"] for batch in own]
    assert [values.data_ptr() for values in read] == pinned and sorted(torch.cat(read).tolist()) == EVERY


@pytest.mark.skipif(CUDA, reason="there is an accelerator")
def test_without_an_accelerator_a_loader_says_that_it_does_not_pin_and_goes_on(store):
    own = loader(store, pin_memory=True)
    with pytest.warns(UserWarning, match="pin_memory=True, but no accelerator is found that reads pinned memory: batches are not pinned"):
        first = ids(own)
    assert sorted(first) == EVERY
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(ids(own)) == EVERY, "it is reported once"


def test_only_tensors_of_pytorch_are_pinned(store):
    with pytest.raises(ValueError, match="pins tensors of PyTorch, and the dataset gives format='numpy'"):
        shardd.DataLoader(shardd.StreamingDataset(store, format="numpy"), 8, pin_memory=True)


# --- to a device ------------------------------------------------------------------------------------------------------------

# A device without memory: batches on the way to it are real, arriving ones have a shape only.
META = "meta"


def test_a_loader_of_the_processor_stays_what_it_is(store):
    own = loader(store)
    assert shardd.to_device(own, "cpu") is own


def test_every_batch_arrives_with_what_is_told_of_it_and_the_state_of_the_one_handed_out(store):
    how = {"batch_size": 10, "virtual_ranks": 4}
    reference, own = loader(store, **how), shardd.to_device(loader(store, **how), META)
    assert len(own) == len(reference) and own.state_dict() == reference.state_dict()
    for _ in range(2):
        for batch, other in zip(own, reference, strict=True):
            assert batch["image"].device.type == META and batch["image"].shape == other["image"].shape
            for name in ("epoch", "step", "accumulation", "is_last_micro", "weight", "positions"):
                assert getattr(own, name) == getattr(reference, name), name
            assert own.state_dict() == reference.state_dict()
        assert own.state_dict() == reference.state_dict()


def test_the_streams_of_a_mixture_are_those_of_the_batch_that_was_handed_out(store):
    streams = [shardd.Stream(store, dataset="digits", choose=number) for number in (60, 30)]
    own, reference = (shardd.DataLoader(shardd.StreamingDataset(streams=streams, **PLAN), 16) for _ in range(2))
    told = _device.ToDevice(own, torch.device("meta"))
    assert [told.streams for _ in told] == [reference.streams for _ in reference]


def test_the_loader_is_one_batch_ahead(store):
    own = loader(store, batch_size=10)
    there = iter(shardd.to_device(own, META))
    next(there)
    assert own.state_dict()["position"] == 20
    next(there)
    assert own.state_dict()["position"] == 30


def test_a_loop_that_is_left_has_the_state_of_its_last_batch_and_goes_on_with_the_next_epoch(store):
    for stop in (1, 5, SAMPLES // 100, SAMPLES // 100 + 1):
        own = shardd.to_device(loader(store, batch_size=100), META)
        for number, _ in enumerate(own, 1):
            if number == stop:
                break
        state = own.state_dict()
        assert (state["epoch"], state["position"]) == ((0, 100 * stop) if stop < 11 else (1, 0))
        restored = loader(store, batch_size=100)
        restored.load_state_dict(state)
        assert ids(restored) == ids(loader(store, batch_size=100))[100 * stop :] or stop == 11
        next(iter(own))
        assert own.epoch == 1
        own.load_state_dict(state)
        assert own.state_dict() == state
        own.set_epoch(3)
        next(iter(own))
        assert own.epoch == 3
        own.close()


def test_an_error_comes_after_the_batches_before_it(store):
    def transform(sample):
        if int(sample["id"]) == number:
            raise LookupError("of the sample")
        return sample

    number = ids(loader(store, batch_size=10))[35]
    own, read = shardd.to_device(loader(store, batch_size=10, transform=transform), META), 0
    with pytest.raises(LookupError, match="of the sample"):
        for _ in own:
            read += 1
    assert read == 3 and own.state_dict()["position"] == 30


def test_batches_of_any_shape_are_passed_through(store):
    Pair = namedtuple("Pair", "one two")

    def collate(samples):
        values = torch.stack([sample["id"] for sample in samples])
        return {"pair": Pair(values, [values, "text"]), "nested": {"tuple": (values, 7, None)}}

    batch = next(iter(shardd.to_device(loader(store, collate_fn=collate), META)))
    assert isinstance(batch["pair"], Pair) and batch["pair"].two[1] == "text"
    tensors = [batch["pair"].one, batch["pair"].two[0], batch["nested"]["tuple"][0]]
    assert all(tensor.device.type == META for tensor in tensors) and batch["nested"]["tuple"][1:] == (7, None)


@pytest.mark.skipif(not CUDA, reason="skipped: no CUDA device")
def test_batches_arrive_whole_on_a_device(store):
    own = shardd.to_device(loader(store, batch_size=10, pin_memory=True), "cuda")
    read = []
    for _ in range(3):
        for batch in own:
            assert batch["image"].is_cuda
            for number, image in zip(batch["id"].tolist(), batch["image"].cpu().numpy()):
                assert (image == picture(number)).all()
                read.append(number)
    assert sorted(read) == sorted(EVERY * 3)
    host = next(iter(loader(store, batch_size=10, pin_memory=True)))
    assert all(values.is_pinned() for values in host.values())
