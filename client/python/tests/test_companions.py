"""Boxes, key points, masks and labels move with their pictures: in batches, and of single samples; beside torchvision."""

import io
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import helpers
import shardd
from shardd import transforms as T

COMPANIONS = {"boxes": T.BoundingBoxes("XYXY"), "points": T.KeyPoints(), "mask": T.Mask(), "classes": T.Labels()}
BROKEN = 7


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def sample(number):
    """A picture of its own size, with up to three boxes."""
    numbers = np.random.default_rng(number)
    height, width = numbers.integers(20, 40, 2)
    count = int(numbers.integers(0, 4))
    corners = numbers.random((count, 2, 2)) * [width, height]
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32)
    image = png(numbers.integers(0, 256, (height, width, 3), dtype=np.uint8))
    return {
        "image": image[:60] if number == BROKEN else image,
        "boxes": boxes.tolist(),
        "points": (numbers.random((2, 2)) * [width, height]).astype(np.float32).tolist(),
        "mask": png(numbers.integers(0, 9, (height, width), dtype=np.uint8)),
        "classes": [f"class {number} {index}" for index in range(count)],
        "id": number,
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("companions")
    table = pa.Table.from_pylist([sample(number) for number in range(48)])
    pq.write_table(table, directory / "pictures.parquet")
    helpers.ingest(directory / "store", "pictures", directory / "pictures.parquet")
    return str(directory / "store")


def augment(**options):
    crop = [T.RandomIoUCrop(), T.RandomHorizontalFlip(), T.Resize((24, 24)), T.SanitizeBoundingBoxes(min_size=2)]
    return T.Compose(crop, column="image", companions=COMPANIONS, **options)


def batches(store, transform, rank=0, world=1, epoch=0, **options):
    dataset = shardd.StreamingDataset(store, q=0.5, partitions=6, shuffle_seed=5, rank=rank, world_size=world)
    with closing(shardd.DataLoader(dataset, batch_size=4, virtual_ranks=2, transform=transform, **options)) as loader:
        loader.set_epoch(epoch)
        return list(loader)


def order(store, epoch):
    """The position of each sample."""
    dataset = shardd.StreamingDataset(store, q=0.5, partitions=6, shuffle_seed=5)
    with closing(shardd.DataLoader(dataset, batch_size=1, virtual_ranks=1)) as loader:
        loader.set_epoch(epoch)
        return {int(batch["id"][0]): position for position, batch in enumerate(loader)}


@pytest.mark.parametrize("epoch", [0, 3])
def test_batches_have_the_companions_that_single_samples_get(store, epoch):
    transform, positions = augment(on_error="skip"), order(store, epoch)
    with pytest.warns(UserWarning, match="PNG ends too soon"):
        found = batches(store, transform, epoch=epoch)
    seen = 0
    for batch in found:
        assert batch["boxes"].values.shape[1:] == (4,) and batch["boxes"].values.dtype == torch.float32
        assert batch["mask"].shape[1:] == (24, 24) and batch["mask"].dtype == torch.uint8
        for row, number in enumerate(batch["id"].tolist()):
            alone = transform(sample(number), seed=5, epoch=epoch, position=positions[number])
            assert torch.equal(batch["image"][row], alone["image"])
            assert torch.equal(batch["mask"][row], alone["mask"])
            assert torch.equal(batch["boxes"][row], alone["boxes"])
            assert torch.equal(batch["points"][row], alone["points"])
            assert batch["classes"][row] == alone["classes"] and len(alone["classes"]) == len(alone["boxes"])
            seen += 1
    assert seen == 47


def test_any_number_of_ranks_and_threads_moves_them_alike(store):
    transform = augment(on_error="zero")

    def boxes(world, **options):
        with pytest.warns(UserWarning, match="PNG ends too soon"):
            parts = [batch for rank in range(world) for batch in batches(store, transform, rank, world, **options)]
        return {int(number): batch["boxes"][row].tolist() for batch in parts for row, number in enumerate(batch["id"])}

    alone = boxes(1)
    assert alone[BROKEN] == [] and any(alone.values())
    assert boxes(2, num_workers=4) == alone


def test_they_move_behind_a_function_of_python(store):
    """The function counts as one operation, so the same as a Compose with one in its place."""

    def same(given):
        given["boxes"] = [*map(list, given["boxes"])]
        return given

    crop = [T.RandomIoUCrop(), T.RandomHorizontalFlip(), T.Resize((24, 24)), T.SanitizeBoundingBoxes()]
    behind = T.Compose(crop, column="image", companions=COMPANIONS)
    inside = T.Compose([T.RandomApply([], 0.0), *crop], column="image", companions=COMPANIONS)
    dataset = shardd.StreamingDataset(store, q=0.5, partitions=6, shuffle_seed=5, limit=12)
    with closing(shardd.DataLoader(dataset, batch_size=1, virtual_ranks=1, transform=[same, behind])) as loader:
        loader.set_epoch(3)  # whose first samples are whole
        for position, batch in enumerate(loader):
            alone = inside(sample(int(batch["id"][0])), seed=5, epoch=3, position=position)
            assert torch.equal(batch["image"][0], alone["image"])
            assert torch.as_tensor(batch["boxes"][0]).tolist() == alone["boxes"].tolist()


def test_they_move_as_torchvision_moves_them():
    numbers = np.random.default_rng(1)
    pixels = numbers.integers(0, 256, (30, 40, 3), dtype=np.uint8)
    mask = numbers.integers(0, 5, (30, 40), dtype=np.uint8)
    boxes = np.array([[3, 4, 20, 25], [1, 1, 1.5, 1.5], [30, 2, 39, 29]], dtype=np.float32)
    ours = T.Compose(
        [T.RandomHorizontalFlip(1), T.Resize((15, 20)), T.ConvertBoundingBoxFormat("CXCYWH"), T.SanitizeBoundingBoxes()],
        companions={"boxes": T.BoundingBoxes(), "mask": T.Mask(), "labels": T.Labels()},
        column="image",
    )
    given = {"image": pixels, "boxes": boxes, "mask": mask, "labels": torch.tensor([5, 6, 7])}
    theirs = v2.Compose(
        [
            v2.RandomHorizontalFlip(1),
            v2.Resize((15, 20)),
            v2.ConvertBoundingBoxFormat("CXCYWH"),
            v2.SanitizeBoundingBoxes(labels_getter=lambda parts: parts[3]),
        ]
    )
    image = tv_tensors.Image(torch.from_numpy(pixels).permute(2, 0, 1))
    their_boxes = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(30, 40))
    expected = theirs((image, their_boxes, tv_tensors.Mask(torch.from_numpy(mask)), given["labels"]))
    found = ours(given)
    assert torch.allclose(found["boxes"], torch.as_tensor(expected[1]), rtol=0, atol=1e-5)
    assert torch.equal(found["mask"], torch.as_tensor(expected[2]))
    assert found["labels"].tolist() == expected[3].tolist() == [5, 7]
    stages = ours.stages(given)
    assert [op.split("(")[0] for op, _ in stages[1:]] == [type(op).__name__ for op in ours.transforms]
    assert len(stages[3][1]["boxes"]) == 3 and len(stages[4][1]["boxes"]) == 2
    assert T.from_json(ours.to_json()) == ours and T.from_json(ours.to_json()).companions == ours.companions


def test_mistakes_are_named(store):
    with pytest.raises(TypeError, match="companion 'boxes' is 'XYXY'"):
        T.Compose([T.Resize((8, 8))], companions={"boxes": "XYXY"})
    with pytest.raises(ValueError, match='declare column "frames"'):
        batches(store, T.Compose([T.Resize((8, 8))], column="image", companions={"frames": T.Mask()}))
    with pytest.raises(ValueError, match='column "id" is declared as boxes'):
        batches(store, T.Compose([T.Resize((8, 8))], column="image", companions={"id": T.BoundingBoxes()}))
    with pytest.raises(TypeError, match="give a mapping of the picture and boxes"):
        augment()(sample(0)["image"])
    with pytest.raises(ValueError, match="lacks points"):
        augment()({name: value for name, value in sample(0).items() if name != "points"})
