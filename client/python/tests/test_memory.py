"""Batches are not copied on their way, and none is overwritten while a reader has it."""

import gc
import random

import numpy as np
import pytest
import pyarrow
import torch

import shardd
from helpers import PLAN, loader, picture


def columns(store: str) -> dict:
    """The columns of the first micro-batch, before anything is made of them."""
    step = loader(store, batch_size=32)._native_for(0, 0).next()
    return {column.name: column for column in step.columns(0)}


@pytest.mark.parametrize("name", ["id", "image", "label"])
def test_numpy_torch_and_arrow_look_at_the_same_memory(store, name):
    column = columns(store)[name]
    array, tensor, arrow = np.asarray(column), torch.from_dlpack(column), pyarrow.array(column)
    address = array.__array_interface__["data"][0]
    values = arrow.storage if isinstance(arrow, pyarrow.ExtensionArray) else arrow
    values = values.flatten() if name == "image" else values
    assert tensor.data_ptr() == address == values.buffers()[1].address + values.offset * array.itemsize
    assert address % 64 == 0, "aligned as Arrow and vector instructions want it"
    assert torch.equal(torch.from_numpy(array), tensor) and tensor.flatten().tolist() == values.to_pylist()


def test_a_columns_memory_is_not_copied_for_another_device_or_against_the_protocol(store):
    column = columns(store)["image"]
    assert column.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        column.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        column.__dlpack__(copy=True)
    del column
    gc.collect()


def test_data_stays_when_loader_batch_and_dataset_are_gone(store):
    own = loader(store)
    batch = next(iter(own))
    kept = (batch["id"], batch["image"][3], batch["image"].numpy()[5:7], batch["image"].permute(0, 3, 1, 2))
    own.close()
    del own, batch
    gc.collect()
    numbers = kept[0].tolist()
    # Something else takes the memory that was let go of.
    noise = [next(iter(loader(store, 0, 1)))["image"].add_(1) for _ in range(4)]
    assert (kept[1].numpy() == picture(numbers[3])).all()
    assert all((image == picture(number)).all() for number, image in zip(numbers[5:7], kept[2]))
    assert all((image.permute(1, 2, 0).numpy() == picture(number)).all() for number, image in zip(numbers, kept[3]))
    del noise


@pytest.mark.parametrize("format", ["torch", "numpy"])
@pytest.mark.parametrize("batch_size, batches", [(1, 10_000), (400, 3_000)])
def test_batches_that_are_let_go_of_at_once_or_read_late_are_never_written_over(store, format, batch_size, batches):
    """Views of a few batches are kept for a while: rows, slices, whole ones; the rest goes at once and its memory comes again."""
    dataset = shardd.StreamingDataset(store, format=format, **PLAN)
    own = shardd.DataLoader(dataset, batch_size=batch_size, num_workers=2)
    chance = random.Random(1)
    kept: list[tuple[int, object]] = []
    addresses = set()
    count = late = 0
    while count < batches:
        for batch in own:
            image = batch["image"]
            at = chance.randrange(len(image))
            number = int(batch["id"][at])
            addresses.add(image.data_ptr() if format == "torch" else image.__array_interface__["data"][0])
            if chance.random() < 0.1:
                kept.append((number, image[at] if chance.random() < 0.5 else image[at : at + 1, 2:5].reshape(3, 8, 3)))
            del batch, image
            if len(kept) > 50:
                expected, view = kept.pop(chance.randrange(len(kept)))
                whole = picture(expected)
                assert (np.asarray(view) == (whole if len(view) == 8 else whole[2:5])).all(), expected
                late += 1
            count += 1
            if count == batches:
                break
    assert late > batches // 20
    if batch_size > 1:
        # Small ones are the allocator's business.
        assert len(addresses) < 300, "memory is used again"


def test_writing_to_a_batch_does_not_change_another_one(store):
    own = loader(store, batch_size=32)
    for _ in range(3):
        for batch in own:
            assert all((image.numpy() == picture(int(number))).all() for number, image in zip(batch["id"], batch["image"]))
            batch["image"].zero_()
            batch["id"].fill_(-1)
