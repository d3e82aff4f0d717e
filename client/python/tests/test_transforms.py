"""Transforms: torchvision's pixels with NumPy's numbers, and one batch for any number of threads, processes and ranks."""

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import helpers
import reference
import shardd
import test_nodes
from shardd import transforms as T

CROP = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), *reference.SCALED])


@pytest.mark.parametrize("op, by_torchvision, allowed", reference.CASES, ids=lambda value: repr(value).split(" at ")[0][:60])
def test_pixels_are_those_of_torchvision_with_parameters_by_numpy(op, by_torchvision, allowed):
    numbers = differing = 0
    for position, picture in enumerate(reference.synthetic() * 3):
        ours = reference.by_us(op, picture, position)
        theirs = reference.by_torchvision(by_torchvision, op, picture, position)
        if theirs is None:
            continue
        assert ours.shape == theirs.shape
        differences = (ours.int() - theirs.int()).abs()
        assert differences.max() <= allowed, (op, picture.shape)
        numbers, differing = numbers + differences.numel(), differing + int((differences > 0).sum())
    # Where torchvision's own result depends on the processor, 1 is allowed, in rare numbers.
    assert differing <= 1e-4 * numbers, (op, differing, numbers)


def test_normalised_floats_are_those_of_torchvision_to_the_bit():
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).expand(3, 16, 16)
    ours = T.Compose([*reference.SCALED])(every)
    assert torch.equal(ours, reference.normalised(every))


def encoded(picture: torch.Tensor, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A store of 96 encoded images of several sizes."""
    store = str(tmp_path_factory.mktemp("images") / "store")
    numbers = np.random.default_rng(1)

    def samples():
        for number in range(96):
            size = (3, int(numbers.integers(20, 60)), int(numbers.integers(20, 60)))
            picture = torch.from_numpy(numbers.integers(0, 256, size, dtype=np.uint8))
            yield {"image": encoded(picture, "JPEG" if number % 2 else "PNG"), "id": number}

    shardd.from_iter(samples(), store, name="images")
    return store


def stored(store):
    """The samples as they are stored."""
    dataset = opened(store)
    rows = (dataset[number] for number in range(96))
    return [{"id": int(row["id"]), "image": bytes(np.asarray(row["image"]))} for row in rows]


def opened(store, rank=0, world=1):
    return shardd.StreamingDataset(store, rank=rank, world_size=world, q=0.5, partitions=12)


def reading(store, transform=CROP, rank=0, world=1, **how):
    return shardd.DataLoader(opened(store, rank, world), global_batch_size=24, virtual_ranks=6, transform=transform, **how)


def of_batches(loader):
    """The digest of each picture, by its sample's id."""
    return {
        number: hashlib.sha256(picture.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for batch in loader
        for number, picture in zip(batch["id"].tolist(), batch["image"])
    }


def pictures(store, world=1, epoch=0, **how):
    """The pictures of an epoch on all ranks."""
    found = {}
    for rank in range(world):
        loader = reading(store, rank=rank, world=world, **how)
        loader.set_epoch(epoch)
        found |= of_batches(loader)
        loader.close()
    assert len(found) == 96
    return found


def test_an_epoch_has_the_same_pictures_for_any_threads_and_ranks_and_another_epoch_others(images):
    expected = pictures(images)
    for how in ({"num_workers": 1}, {"num_workers": 8}, {"world": 2}, {"world": 3}, {"world": 6, "num_workers": 3}):
        assert pictures(images, **how) == expected, how
    other = pictures(images, epoch=1)
    assert not set(other.values()) & set(expected.values())


def test_nodes_give_the_same_pictures_as_their_store(images, tmp_path):
    if not test_nodes.BINARIES:
        pytest.skip("SHARDD_BIN, the directory of shardd, is not set")
    rows = pyarrow.table({"id": [int(row["id"]) for row in stored(images)], "image": [row["image"] for row in stored(images)]})
    pyarrow.parquet.write_table(rows, tmp_path / "images.parquet")
    store = str(tmp_path / "store")
    helpers.ingest(store, "images", tmp_path / "images.parquet")
    expected = pictures(store)
    node, server = test_nodes.serve(tmp_path / "n1", None)
    try:
        helpers.run([f"{test_nodes.BINARIES}/shardctl", "ingest", "--server", server, "--name", "images", str(tmp_path / "images.parquet")])
        for world in (1, 2):
            found = {}
            for rank in range(world):
                dataset = shardd.StreamingDataset(servers=[server], q=0.5, partitions=12, rank=rank, world_size=world, run=f"of-{world}")
                with closing(shardd.DataLoader(dataset, global_batch_size=24, virtual_ranks=6, transform=CROP)) as loader:
                    found |= of_batches(loader)
            assert found == expected
        # A reader that has only HTTP and Arrow asks the node to transform them.
        asked = urllib.parse.urlencode({"global_batch_size": 24, "virtual_ranks": 6, "transforms": CROP.to_json()})
        with pyarrow.ipc.open_stream(urllib.request.urlopen(f"{server}/v1/plans/{dataset.plan}/batches?{asked}")) as batches:
            read = list(batches)
        shaped = [
            {"id": batch["id"].to_numpy(), "image": torch.from_numpy(batch["image"].to_numpy_ndarray().copy())} for batch in read
        ]
        assert of_batches(shaped) == expected
        for refused in ("[{}]", '{"columns": {"id": []}}', json.dumps({"columns": {}, "samples": json.loads(CROP.to_json())})):
            asked = urllib.parse.urlencode({"global_batch_size": 24, "transforms": refused})
            with pytest.raises(urllib.error.HTTPError, match="422"):
                urllib.request.urlopen(f"{server}/v1/plans/{dataset.plan}/batches?{asked}")
    finally:
        node.kill()
        node.wait()


KILLED = """
import json, sys
sys.path.insert(0, sys.argv[2])
import test_transforms
loader = test_transforms.reading(sys.argv[1])
if len(sys.argv) > 3:
    loader.load_state_dict(json.loads(sys.argv[3]))
batches = []
for batch in loader:
    batches.append(batch)
    if loader.is_last_micro:
        print(json.dumps([test_transforms.of_batches(batches), loader.state_dict()]), flush=True)
        batches = []
"""


def test_a_process_that_is_killed_and_begun_again_makes_the_same_pictures(images):
    command = [sys.executable, "-c", KILLED, images, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        found, state = {}, None
        for _ in range(2):
            made, state = json.loads(process.stdout.readline())
            found |= made
        process.kill()
    for line in helpers.run([*command, json.dumps(state)]).stdout.splitlines():
        found |= json.loads(line)[0]
    assert {int(number): picture for number, picture in found.items()} == pictures(images)


def test_a_state_continues_with_the_same_pictures(images):
    expected = pictures(images)
    loader = reading(images)
    begun = iter(loader)
    first = of_batches([next(begun) for _ in range(12)])
    state = loader.state_dict()
    loader.close()
    rest = {}
    for rank in range(3):
        resumed = reading(images, rank=rank, world=3)
        resumed.load_state_dict(state)
        rest |= of_batches(resumed)
        resumed.close()
    assert first | rest == expected and not first.keys() & rest.keys()
    other = reading(images, transform=T.Compose([T.CenterCrop(8)]))
    with pytest.warns(UserWarning, match=f"saved with transforms of digest {state['transforms']}, and this loader has those of"):
        other.load_state_dict(state)
    other.close()


def test_a_single_sample_is_made_as_in_the_batch(images):
    files = {row["id"]: row["image"] for row in stored(images)}
    for transform in (CROP, T.Compose(CROP.transforms, seed=99)):
        loader = shardd.DataLoader(opened(images), batch_size=4, transform=transform)
        batch = next(iter(loader))
        for row, number in enumerate(batch["id"].tolist()):
            own = transform(files[number], epoch=0, position=loader.positions[0] + row)
            assert torch.equal(own, batch["image"][row])
        loader.close()


def test_a_function_gets_samples_with_changed_pictures(images):
    def brightness(sample):
        return {"id": sample["id"], "image": sample["image"].mean()}

    alone = reading(images)
    both = reading(images, transform=[CROP, brightness])
    for own, plain in zip(both, alone, strict=True):
        assert torch.equal(own["id"], plain["id"])
        assert torch.equal(own["image"], torch.stack([picture.mean() for picture in plain["image"]]))


HALF = T.Compose([T.RandomResizedCrop(24)])
REST = T.Compose([T.RandomHorizontalFlip(), T.RandAugment(), *reference.SCALED])


def lighter(sample, rng):
    """A function with random numbers of its own."""
    light = int(rng.integers(1, 100))
    return sample | {"image": (sample["image"].int() + light).clamp(max=255).byte(), "light": light}


def test_a_function_in_the_middle_has_its_own_numbers_and_moves_those_behind_it(images):
    files = {row["id"]: row["image"] for row in stored(images)}
    with closing(shardd.DataLoader(opened(images), batch_size=4, transform=[HALF, lighter, REST])) as loader:
        batch = next(iter(loader))
        for row, number in enumerate(batch["id"].tolist()):
            position = loader.positions[0] + row
            light = int(reference.generator(0, 0, position, 1).integers(1, 100))
            assert light == batch["light"][row]
            begun = HALF(files[number], position=position)
            expected = REST.at((begun.int() + light).clamp(max=255).byte(), seed=0, epoch=0, position=position, first=2)
            assert torch.equal(batch["image"][row], expected)


def test_a_chain_with_a_function_is_the_same_for_any_threads_processes_and_ranks(images):
    chain = [HALF, lighter, REST]
    expected = pictures(images, transform=chain)
    for how in ({"num_workers": 3}, {"transform_processes": 2}, {"world": 3}):
        assert pictures(images, transform=chain, **how) == expected, how
    assert pictures(images, transform=chain, epoch=1) != expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8])
def test_batches_have_the_type_and_layout_that_was_asked_for(images, dtype):
    transforms = [T.CenterCrop(20)] + ([] if dtype == torch.uint8 else [T.ToDtype(dtype, scale=True)])
    for layout, shape in (("CHW", (3, 20, 20)), ("HWC", (20, 20, 3))):
        for pin in (False, torch.cuda.is_available()):
            batch = next(iter(reading(images, transform=T.Compose(transforms, layout=layout), pin_memory=pin)))
            assert batch["image"].dtype == dtype and batch["image"].shape[1:] == shape


def test_broken_images_end_the_epoch_with_their_place_or_are_zeros(tmp_path):
    good = encoded(reference.synthetic()[-1], "JPEG")

    def samples():
        for number in range(60):
            yield {"image": good[: len(good) // 2] if number in (7, 31) else good, "id": number}

    store = str(tmp_path / "store")
    shardd.from_iter(samples(), store, name="images")
    with pytest.raises(Exception, match=r'column "image" of the sample at position \d+ of epoch 0.*JPEG ends too soon'):
        list(reading(store))
    lenient = T.Compose([T.Resize([8, 8])], on_error="zero")
    loader = reading(store, transform=lenient)
    with pytest.warns(UserWarning, match="at position .* it is replaced by zeros: JPEG ends too soon") as warned:
        zeros = {int(number) for batch in loader for number, picture in zip(batch["id"], batch["image"]) if not picture.any()}
    assert zeros == {7, 31} and len(warned) == 2
    assert loader.stats()["replaced"] == 2


@pytest.mark.parametrize("operations", [[T.RandomHorizontalFlip(1)], [T.Resize(9)], [T.RandomRotation(30, expand=True), T.ToDtype("float32", scale=True)], []])
def test_one_picture_needs_no_size_in_common(operations):
    compose, picture = T.Compose(operations), encoded(reference.synthetic()[-1], "PNG")
    called = compose(picture, epoch=2, position=5, seed=7)
    stages = compose.stages(picture, epoch=2, position=5, seed=7)
    assert len(stages) == 1 + len(operations) and torch.equal(called, stages[-1][1].permute(2, 0, 1))


def test_a_batch_needs_one(images):
    with pytest.raises(ValueError, match=r"add Resize\(\[height, width\]\) or a crop, before ToDtype"):
        list(reading(images, transform=T.Compose([T.RandomHorizontalFlip()])))


def test_shardtrain_reports_what_it_replaced(tmp_path):
    programs = Path(os.environ.get("SHARDD_BIN", ""))
    if not (programs / "shardtrain").is_file():
        pytest.skip("SHARDD_BIN names no directory with shardtrain")
    good = encoded(reference.synthetic()[-1], "JPEG")
    samples = ({"image": good[: len(good) // 2] if number in (7, 31) else good, "label": number % 3} for number in range(60))
    store, report = str(tmp_path / "store"), tmp_path / "report.json"
    shardd.from_iter(samples, store, name="images")
    chain = T.Compose([T.Resize([16, 16]), T.ToDtype("float32", scale=True)], on_error="zero").to_json()
    command = [programs / "shardtrain", "--store", store, "--dataset", "images", "--transforms", chain, "--report", report]
    subprocess.run([*command, "--global-batch-size", "12", "--virtual-ranks", "1", "--epochs", "2"], check=True, capture_output=True)
    assert json.loads(report.read_text())["replaced_here"] == 4


def test_transforms_are_data(images):
    assert pickle.loads(pickle.dumps(CROP)) == CROP == T.from_json(CROP.to_json())
    assert CROP.digest == T.from_json(CROP.to_json()).digest != T.Compose(CROP.transforms, layout="HWC").digest
    names = [name for name, _ in CROP.stages(encoded(reference.synthetic()[-1]))]
    assert names[0] == "decoded" and names[1].startswith("RandomResizedCrop(size=24")
    every = [T.RandomApply([T.RandomOrder([T.RandomInvert(), T.RandAugment()])]), T.RandomChoice([T.AugMix(), T.AutoAugment("svhn")])]
    assert T.from_json(T.Compose(every).to_json()).transforms[1].transforms[1].policy == "svhn"
    assert T.Compose(op for op in CROP.transforms) == CROP
    lenient = T.Compose([T.Resize([8, 8])], truncated="fill", max_pixels=1 << 20, apply_exif_orientation=True)
    assert T.from_json(lenient.to_json()) == lenient
    file = encoded(reference.synthetic()[-1], "JPEG")
    assert lenient(file[: len(file) // 2]).any()
    modes = T.Compose([T.Resize([8, 8], T.InterpolationMode.BICUBIC), T.AutoAugment(T.AutoAugmentPolicy.SVHN)])
    assert modes == T.Compose([T.Resize([8, 8], "bicubic"), T.AutoAugment("svhn")])


@pytest.mark.parametrize("name", sorted({*shardd._native.Chain.names()} - {"Compose"}))
def test_arguments_and_defaults_are_those_of_torchvision(name):
    import inspect

    from torchvision.transforms import v2

    ours = inspect.signature(getattr(T, name)).parameters
    theirs = inspect.signature(getattr(v2, name)).parameters
    assert [*ours] == [*theirs]
    for argument, parameter in ours.items():
        expected = theirs[argument].default
        expected = getattr(expected, "value", expected)
        assert parameter.default == expected or [*parameter.default] == [*expected], argument


def test_mistakes_name_the_way_out(images):
    from torchvision.transforms import v2

    with pytest.raises(TypeError, match="take shardd.transforms.RandomCrop, with the same arguments"):
        T.Compose([v2.RandomCrop(3)])
    with pytest.raises(TypeError, match="is no transform of shardd.transforms. Call Python functions"):
        T.Compose([lambda picture: picture])
    with pytest.raises(AttributeError, match="has no RandomFlip: the nearest is"):
        T.RandomFlip()
    with pytest.raises(ValueError, match="always averages"):
        T.Compose([T.Resize(3, antialias=False)])
    with pytest.raises(ValueError, match="pictures of various sizes"):
        next(iter(reading(images, transform=T.Compose([T.RandomHorizontalFlip()]))))
    with pytest.raises(ValueError, match="Normalize, takes floats, and gets uint8"):
        next(iter(reading(images, transform=T.Compose([T.CenterCrop(8), T.Normalize(0, 1)]))))
    with pytest.raises(ValueError, match='of column "picture", and there are image, id'):
        next(iter(reading(images, transform=T.Compose([T.CenterCrop(8)], column="picture"))))
    with pytest.raises(TypeError, match="a Compose, a function, or a list of these, and 3 is none"):
        reading(images, transform=[CROP, 3])
    with pytest.raises(TypeError, match="and the function gives Tensor"):
        next(iter(reading(images, transform=[CROP, lambda sample: sample["image"], T.Compose([T.CenterCrop(8)])])))
    with pytest.raises(ValueError, match="mixes finished batches"):
        reading(images, transform=[CROP, T.Compose([T.CutMix(num_classes=3)])])
    with pytest.raises(TypeError, match=r"is one operation: pass Compose"):
        reading(images, transform=T.RandomCrop(8))
    with pytest.raises(AttributeError, match=r'no ToTensor: use ToDtype\("float32", scale=True\)'):
        T.ToTensor()
    with pytest.raises(TypeError, match="RandomInvert is that of torchvision"):
        T.Compose([T.RandomApply([v2.RandomInvert()])])
    with pytest.raises(ValueError, match="is not finite"):
        T.Compose([T.RandomInvert(p=float("nan"))])
    with pytest.raises(ValueError, match="operations alone"):
        T.Compose([T.Compose([T.RandomInvert()], layout="HWC")])
    with pytest.raises(ValueError, match="leave image_layout and image_dtype"):
        dataset = shardd.StreamingDataset(images, q=0.5, partitions=12, image_dtype="float32")
        shardd.DataLoader(dataset, batch_size=4, transform=CROP)
    with pytest.raises(TypeError, match="of bfloat16, a type that NumPy lacks"):
        dataset = shardd.StreamingDataset(images, q=0.5, partitions=12, format="numpy")
        next(iter(shardd.DataLoader(dataset, batch_size=4, transform=T.Compose([T.CenterCrop(8), T.ToDtype("bfloat16")]))))
