"""Clips: several frames in a sample, which are changed alike."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as V

import shardd
from helpers import ids
from shardd import transforms as T

FRAMES, SIZE, COUNT = 4, 24, 40
POINTS = np.zeros((1, 2), dtype=np.float32)


def clip(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (FRAMES, SIZE, SIZE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    where = str(tmp_path_factory.mktemp("clips") / "store")
    shardd.from_iter(({"id": number, "clip": clip(number), "label": number % 3, "points": POINTS} for number in range(COUNT)), where, name="clips")
    return where


def augment(**how) -> T.Compose:
    return T.Compose(
        [
            T.RandomResizedCrop(16),
            T.RandomHorizontalFlip(),
            T.ColorJitter(brightness=0.4, hue=0.1),
            T.RandAugment(),
            T.ToDtype("float32", scale=True),
            T.Normalize(mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.2]),
            T.RandomErasing(p=0.5),
        ],
        **how,
    )


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_all_frames_of_a_sample_are_changed_as_one_picture_is(store, layout):
    dataset = shardd.StreamingDataset(store, rank=0, world_size=1)
    loader = shardd.DataLoader(dataset, batch_size=8, transform=augment(layout=layout))
    chain = augment(layout="CHW")
    for epoch in range(2):
        position = 0
        for batch in loader:
            frame = (3, 16, 16) if layout == "CHW" else (16, 16, 3)
            assert batch["clip"].shape == (len(batch["id"]), FRAMES, *frame) and batch["clip"].dtype == torch.float32
            for number, found in zip(batch["id"].tolist(), batch["clip"]):
                frames = [chain(picture, epoch=epoch, position=position, seed=0) for picture in clip(number)]
                expected = torch.stack(frames)
                assert torch.equal(found, expected if layout == "CHW" else expected.permute(0, 2, 3, 1)), (epoch, position)
                assert torch.equal(chain(clip(number), epoch=epoch, position=position, seed=0), expected)
                position += 1
        assert position == COUNT


def test_frames_are_those_of_torchvision(store):
    loader = shardd.DataLoader(
        shardd.StreamingDataset(store), batch_size=8, transform=T.Compose([T.CenterCrop(20), T.Resize((12, 10)), T.Grayscale(3)])
    )
    theirs = V.Compose([V.CenterCrop(20), V.Resize((12, 10)), V.Grayscale(3)])
    for batch in loader:
        for number, found in zip(batch["id"].tolist(), batch["clip"]):
            expected = theirs(torch.from_numpy(clip(number)).permute(0, 3, 1, 2))
            assert torch.equal(found, expected)


def test_any_number_of_threads_and_ranks_gives_the_same_clips(store):
    def read(world: int, threads: int) -> dict[int, bytes]:
        found = {}
        for rank in range(world):
            dataset = shardd.StreamingDataset(store, rank=rank, world_size=world, partitions=4)
            loader = shardd.DataLoader(dataset, global_batch_size=8, virtual_ranks=4, num_workers=threads, transform=augment())
            for batch in loader:
                if loader.weight:
                    found |= {number: frames.numpy().tobytes() for number, frames in zip(batch["id"].tolist(), batch["clip"])}
        return found

    alone = read(1, 1)
    assert len(alone) == COUNT
    assert read(1, 4) == alone and read(3, 2) == alone


def test_a_function_behind_the_transforms_gets_clips(store):
    def mean(sample):
        return {"id": sample["id"], "clip": sample["clip"].float().mean(dim=(1, 2, 3))}

    dataset = shardd.StreamingDataset(store)
    changed = shardd.DataLoader(dataset, batch_size=8, transform=[T.Compose([T.CenterCrop(8)]), mean])
    plain = shardd.DataLoader(dataset, batch_size=8, transform=T.Compose([T.CenterCrop(8)]))
    for found, batch in zip(changed, plain, strict=True):
        assert torch.allclose(found["clip"], batch["clip"].float().mean(dim=(2, 3, 4)))


def test_what_takes_single_pictures_is_refused_for_clips(store):
    dataset = shardd.StreamingDataset(store)
    for chain in (T.Compose([T.CenterCrop(8), T.ToDtype("float32"), T.CutMix(num_classes=3)]),
                  T.Compose([T.CenterCrop(8)], companions={"points": T.KeyPoints()}, column="clip")):
        with pytest.raises(ValueError, match='column "clip" has clips of 4 frames, and MixUp, CutMix and companions'):
            ids(shardd.DataLoader(dataset, batch_size=8, transform=chain))


def test_a_single_picture_comes_before_clips_and_a_compose_is_no_later_function(tmp_path):
    store = str(tmp_path / "store")
    shardd.from_iter(({"image": clip(number)[0], "clip": clip(number)} for number in range(8)), store, name="both")
    chain = T.Compose([T.CenterCrop(8)])
    loader = shardd.DataLoader(shardd.StreamingDataset(store), batch_size=4, transform=chain)
    for batch in loader:
        assert batch["image"].shape[1:] == (3, 8, 8) and batch["clip"].shape[1:] == (FRAMES, SIZE, SIZE, 3)
    with pytest.raises(ValueError, match="make a DataLoader with it"):
        shardd.DataLoader(shardd.StreamingDataset(store), batch_size=4).transform = chain


def test_windows_of_frames_are_clips(tmp_path):
    """Episodes of frames as arrays, ingested with windows, and augmented."""
    from helpers import shardctl

    frames = np.random.default_rng(0).integers(0, 256, (12, SIZE, SIZE, 3), dtype=np.uint8)
    np.savez(tmp_path / "robot.npz", episode=np.repeat([0, 1], 6), frame=np.arange(12), image=frames,
             action=np.arange(24, dtype=np.float32).reshape(12, 2))
    store = tmp_path / "store"
    shardctl("--store", store, "ingest", tmp_path / "robot.npz", "--name", "robot", "--window", "image=-1,0",
             "--window", "action=0..3", "--window-by", "episode")
    seen = 0
    for batch in shardd.DataLoader(shardd.StreamingDataset(store), batch_size=4, transform=T.Compose([T.CenterCrop(16)])):
        assert batch["image"].shape[1:] == (2, 3, 16, 16) and batch["action"].shape[1:] == (3, 2)
        for at, number in enumerate(batch["frame"].tolist()):
            first, last = number // 6 * 6, number // 6 * 6 + 5
            rows = [max(number - 1, first), number]
            expected = torch.from_numpy(frames[rows][:, 4:20, 4:20]).permute(0, 3, 1, 2)
            assert torch.equal(batch["image"][at], expected)
            wanted = [number, number + 1, number + 2]
            actions = [[2 * min(row, last), 2 * min(row, last) + 1] for row in wanted]
            assert batch["action"][at].tolist() == actions
            assert batch["action_is_pad"][at].tolist() == [int(row > last) for row in wanted]
            seen += 1
    assert seen == 12
