"""MixUp and CutMix: torchvision's batches with NumPy's numbers, for any number of ranks; and samples that cannot be decoded."""

import io
import math
import warnings
from contextlib import closing

import numpy as np
import pyarrow.ipc
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import helpers
import reference
import shardd
from shardd import transforms as T

CLASSES = 5
BATCH = 6
SINGLE = [T.RandomCrop(12), *reference.SCALED]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A store of 120 encoded images of five classes."""
    store = str(tmp_path_factory.mktemp("mixing") / "store")
    numbers = np.random.default_rng(3)

    def samples():
        for number in range(120):
            file = io.BytesIO()
            Image.fromarray(numbers.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file, "PNG")
            yield {"image": file.getvalue(), "label": number % CLASSES, "id": number}

    shardd.from_iter(samples(), store, name="images")
    return store


def batches(store, transform, rank=0, world=1, epoch=0, **options):
    """The batches of a rank, by the position of their first sample."""
    dataset = shardd.StreamingDataset(store, q=0.5, partitions=12, shuffle_seed=7, rank=rank, world_size=world)
    with closing(shardd.DataLoader(dataset, batch_size=BATCH, virtual_ranks=4, transform=transform, **options)) as loader:
        loader.set_epoch(epoch)
        return [batch for batch in loader]


def beta(numbers: reference.Numbers, alpha: float) -> float:
    """A number of the beta distribution, as the documentation of the crate has it."""

    def normal() -> float:
        radius = math.sqrt(-2 * math.log(1 - numbers.uniform()))
        return radius * math.cos(2 * math.pi * numbers.uniform())

    def log_gamma(shape: float) -> float:
        if shape < 1:
            log = log_gamma(shape + 1)
            return log + math.log(1 - numbers.uniform()) / shape
        d = shape - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = normal()
            v, log = (1 + c * x) ** 3, math.log(1 - numbers.uniform())
            if v > 0 and log < 0.5 * x * x + d * (1 - v + math.log(v)):
                return math.log(d) + math.log(v)

    logs = log_gamma(alpha), log_gamma(alpha)
    parts = [math.exp(log - max(logs)) for log in logs]
    return parts[0] / sum(parts)


def by_torchvision(op, picture, labels, place):
    """A batch mixed by torchvision with the parameters of the documentation."""
    numbers = reference.Numbers(*place)
    if isinstance(op, T.RandomChoice):
        uniform, chances = numbers.uniform(), np.cumsum(op.p) / sum(op.p)
        chosen = int(np.searchsorted(chances, uniform, side="right"))
        seed, epoch, position, number = place
        return by_torchvision(op.transforms[chosen], picture, labels, (seed, epoch, position, number + 1 + chosen))
    share = beta(numbers, op.alpha)
    parameters = {"labels": labels, "batch_size": len(labels), "lam": share}
    theirs = getattr(v2, type(op).__name__)(alpha=op.alpha, num_classes=CLASSES)
    if isinstance(op, T.CutMix):
        height, width = picture.shape[-2:]
        x, y = numbers.below(width), numbers.below(height)
        across, down = (int(0.5 * math.sqrt(1 - share) * side) for side in (width, height))
        box = max(x - across, 0), max(y - down, 0), min(x + across, width), min(y + down, height)
        area = (box[2] - box[0]) * (box[3] - box[1])
        parameters |= {"box": box, "lam_adjusted": 1 - area / (width * height)}
    return theirs.transform(picture, parameters), theirs.transform(labels, parameters)


@pytest.mark.parametrize(
    "op",
    [
        T.MixUp(num_classes=CLASSES),
        T.MixUp(alpha=0.2, num_classes=CLASSES),
        T.CutMix(num_classes=CLASSES),
        T.RandomChoice([T.MixUp(num_classes=CLASSES), T.CutMix(alpha=0.7, num_classes=CLASSES)], p=[0.3, 0.7]),
    ],
    ids=repr,
)
def test_batches_are_mixed_as_torchvision_does_with_parameters_by_numpy(images, op):
    for epoch in (0, 3):
        mixed, single = batches(images, T.Compose([*SINGLE, op]), epoch=epoch), batches(images, T.Compose(SINGLE), epoch=epoch)
        # Each virtual rank has a fourth of the positions of each step.
        for number, (ours, plain) in enumerate(zip(mixed, single, strict=True)):
            assert torch.equal(ours["id"], plain["id"])
            position = positions(images, epoch)[number]
            pictures, labels = by_torchvision(op, plain["image"], plain["label"], (7, epoch, position, len(SINGLE)))
            assert torch.allclose(ours["image"], pictures, rtol=0, atol=3e-7)
            assert torch.allclose(ours["label"], labels, rtol=0, atol=1e-6)
            assert ours["label"].dtype == torch.float32 and ours["label"].shape == (len(labels), CLASSES)


def positions(store, epoch):
    """The position of the first sample of each batch."""
    order = shardd.StreamingDataset(store, q=0.5, partitions=12, shuffle_seed=7, rank=0, world_size=1)
    ids = {int(number): position for position, number in enumerate(ids_in_order(order, epoch))}
    return [min(ids[int(number)] for number in batch["id"]) for batch in batches(store, T.Compose(SINGLE), epoch=epoch)]


def ids_in_order(dataset, epoch):
    with closing(shardd.DataLoader(dataset, batch_size=1, virtual_ranks=1)) as loader:
        loader.set_epoch(epoch)
        return [batch["id"][0] for batch in loader]


def test_any_number_of_ranks_mixes_the_same_batches(images):
    transform = T.Compose([*SINGLE, T.CutMix(num_classes=CLASSES)])

    def mixed(world, **options):
        found = {}
        for rank in range(world):
            for batch in batches(images, transform, rank, world, **options):
                found[tuple(batch["id"].tolist())] = batch["image"], batch["label"]
        return found

    alone = mixed(1)
    for world, threads in ((2, 0), (4, 3), (1, 8)):
        other = mixed(world, num_workers=threads)
        assert other.keys() == alone.keys()
        for key, (pictures, labels) in alone.items():
            assert torch.equal(pictures, other[key][0]) and torch.equal(labels, other[key][1])


def test_classes_that_the_dataset_names_need_no_number(tmp_path):
    for name in ("ant", "bee", "cat"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "images" / name / f"{number}.png")
    store = str(tmp_path / "store")
    helpers.ingest(store, "images", tmp_path / "images")
    dataset = shardd.StreamingDataset(store, q=0.5, partitions=1)
    with closing(shardd.DataLoader(dataset, batch_size=8, transform=T.Compose([T.CenterCrop(8), T.CutMix()]))) as loader:
        assert next(iter(loader))["label"].shape == (8, 3)


def test_transforms_that_mix_are_data():
    mixing = T.RandomChoice([T.MixUp(alpha=0.2, num_classes=10, labels_getter="class"), T.CutMix(num_classes=10, labels_getter="class")])
    compose = T.Compose([*SINGLE, T.RandomApply([mixing], p=0.3)])
    assert T.from_json(compose.to_json()) == compose != T.Compose(SINGLE)
    assert T.from_json(compose.to_json()).transforms[-1] == compose.transforms[-1]
    assert compose(np.zeros((16, 16, 3), dtype=np.uint8)).shape == (3, 12, 12)


def test_mistakes_name_the_way_out(images):
    def first(transform):
        return batches(images, transform)[0]

    with pytest.raises(ValueError, match="put it behind the operations on samples"):
        T.Compose([T.CutMix(num_classes=3), T.CenterCrop(8)])
    with pytest.raises(ValueError, match="equal num_classes and labels_getter"):
        T.Compose([T.CutMix(num_classes=3), T.MixUp(num_classes=4)])
    with pytest.raises(ValueError, match="part them"):
        T.Compose([T.RandomChoice([T.CutMix(num_classes=3), T.RandomInvert()])])
    with pytest.raises(ValueError, match="at the end of the outer Compose"):
        T.Compose([T.Compose([T.CutMix(num_classes=3)])])
    with pytest.raises(TypeError, match="give the name of the column"):
        T.Compose([T.CutMix(num_classes=3, labels_getter=lambda batch: batch)])
    with pytest.raises(TypeError, match="take shardd.transforms.CutMix"):
        T.Compose([v2.CutMix(num_classes=3)])
    with pytest.raises(ValueError, match="MixUp, takes float pictures, and gets uint8"):
        first(T.Compose([T.CenterCrop(8), T.MixUp(num_classes=CLASSES)]))
    with pytest.raises(ValueError, match="does not name its classes: give num_classes"):
        first(T.Compose([T.CenterCrop(8), T.CutMix()]))
    with pytest.raises(ValueError, match='no column "kind" of labels: There are image, label, id'):
        first(T.Compose([T.CenterCrop(8), T.CutMix(num_classes=3, labels_getter="kind")]))
    dataset = shardd.StreamingDataset(images, q=0.5, partitions=12, columns=["image", "id"])
    with pytest.raises(ValueError, match="leaves label out, which the transforms change: add it"):
        shardd.DataLoader(dataset, batch_size=BATCH, transform=T.Compose([*SINGLE, T.CutMix(num_classes=CLASSES)]))
    dataset = shardd.StreamingDataset(images, q=0.5, partitions=12, columns=["label"])
    with pytest.raises(ValueError, match="leaves image out"):
        shardd.DataLoader(dataset, batch_size=BATCH, transform=T.Compose([T.CenterCrop(8)], column="image"))
    with pytest.raises(Exception, match="is 4, and the classes are 0 to 3"):
        batches(images, T.Compose([T.CenterCrop(8), T.CutMix(num_classes=4)]))


def test_a_percent_of_broken_samples_is_reported_once_each_under_every_policy(tmp_path):
    broken, numbers = {5, 133, 298}, np.random.default_rng(4)

    def samples():
        for number in range(300):
            file = io.BytesIO()
            Image.fromarray(numbers.integers(1, 256, (64, 64, 3), dtype=np.uint8)).save(file, "JPEG")
            whole = file.getvalue()
            yield {"image": whole[: len(whole) // 2] if number in broken else whole, "id": number}

    store = str(tmp_path / "store")
    shardd.from_iter(samples(), store, name="images")

    def read(**policy):
        found, sizes = {}, []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            dataset = shardd.StreamingDataset(store, q=0.5, partitions=3)
            with closing(shardd.DataLoader(dataset, batch_size=8, transform=T.Compose([T.CenterCrop(8)], **policy))) as loader:
                for batch in loader:
                    found |= {int(number): bool(picture.any()) for number, picture in zip(batch["id"], batch["image"], strict=True)}
                    sizes.append(len(batch["id"]))
                return found, sizes, [str(one.message) for one in warned], loader.stats()

    with pytest.raises(Exception, match="JPEG ends too soon"):
        read()
    found, _, warned, stats = read(on_error="zero")
    assert {number for number, has_pixels in found.items() if not has_pixels} == broken and len(found) == 300
    assert len({*warned}) == len(warned) == 3 and all("replaced by zeros: JPEG ends too soon" in text for text in warned)
    assert (stats["replaced"], stats["skipped"], stats["samples"]) == (3, 0, 300)
    found, sizes, warned, stats = read(on_error="skip")
    assert found.keys() == {*range(300)} - broken and all(found.values())
    assert sum(sizes) == 297
    assert len({*warned}) == len(warned) == 3 and all("left out: JPEG ends too soon" in text for text in warned)
    assert (stats["replaced"], stats["skipped"], stats["samples"]) == (0, 3, 297)
    found, _, warned, _ = read(truncated="fill")
    assert len(found) == 300 and all(found.values()) and not warned


def test_replay_gives_the_pixels_and_labels_that_a_rank_saw(images, tmp_path):
    transform = T.Compose([*SINGLE, T.CutMix(num_classes=CLASSES)])
    dataset = shardd.StreamingDataset(images, q=0.5, partitions=12, shuffle_seed=7, rank=1, world_size=2)
    with closing(shardd.DataLoader(dataset, batch_size=BATCH, virtual_ranks=4, transform=transform)) as loader:
        loader.set_epoch(2)
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        seen = [next(batches), next(batches)]
    place = {"plan": state["plan"], "epoch": state["epoch"], "position": state["position"]}
    sizes = {"batch-size": BATCH, "virtual-ranks": state["virtual_ranks"], "rank": 1, "world": 2}
    out = tmp_path / "step.arrow"
    flags = [f"--{name}={value}" for name, value in (place | sizes).items()]
    helpers.shardctl("--store", images, "replay", *flags, "--transforms", transform.to_json(), "--out", out)
    with pyarrow.ipc.open_file(out) as file:
        given = [file.get_batch(number) for number in range(file.num_record_batches)]
    assert len(given) == len(seen) == 2
    for replayed, batch in zip(given, seen, strict=True):
        assert replayed["id"].to_pylist() == batch["id"].tolist()
        for column in ("image", "label"):
            assert np.array_equal(replayed[column].to_numpy_ndarray(), batch[column].numpy())
