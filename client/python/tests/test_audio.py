"""Transforms of sounds: one batch for any number of threads and ranks, and spectrograms as PyTorch computes them."""

import io
import json
import pickle
import wave
from contextlib import closing

import numpy as np
import pytest
import torch

import helpers
import shardd
from shardd import audio_transforms as A

RATE = 8_000
BROKEN = 5


def tone(number, rate=RATE):
    """A sound of a length of its own, as int16 of [samples, channels]."""
    numbers = np.random.default_rng(number)
    times = np.arange(int(rate * (0.4 + 0.05 * number))) / rate
    channels = [np.sin(2 * np.pi * pitch * times) for pitch in numbers.uniform(100, 3_000, 1 + number % 2)]
    return (np.stack(channels, 1) * 12_000 + numbers.normal(0, 300, (len(times), len(channels)))).astype("<i2")


def wav(samples, rate=RATE):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(samples.shape[1])
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())
    return file.getvalue()


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """24 sounds, of which one is cut off and every third has twice the samples per second."""
    store = str(tmp_path_factory.mktemp("audio") / "store")

    def samples():
        for number in range(24):
            rate = 2 * RATE if number % 3 == 0 else RATE
            file = wav(tone(number, rate), rate)
            yield {"audio": file[:30] if number == BROKEN else file, "label": number % 4, "id": number}

    shardd.from_iter(samples(), store, name="sounds")
    return store


def augment(**options):
    chain = [
        A.RandomTimeCrop(A.Seconds(0.5), pad=True),
        A.RandomApply([A.Vol(0.5)], p=0.5),
        A.MelSpectrogram(sample_rate=RATE, n_fft=256, n_mels=20),
        A.AmplitudeToDB(top_db=80),
        A.FrequencyMasking(4),
        A.TimeMasking(6),
    ]
    return A.Compose(chain, sample_rate=RATE, channels=1, on_error="zero", **options)


def reading(store, transform, rank=0, world=1, epoch=0, **options):
    dataset = shardd.StreamingDataset(store, q=0.5, partitions=4, shuffle_seed=3, rank=rank, world_size=world)
    with closing(shardd.DataLoader(dataset, batch_size=3, virtual_ranks=4, transform=transform, **options)) as loader:
        loader.set_epoch(epoch)
        return {int(number): batch["audio"][row] for batch in loader for row, number in enumerate(batch["id"])}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[number]) for number, value in ours.items())


@pytest.mark.filterwarnings("ignore:at position")
def test_an_epoch_has_the_same_sounds_for_any_threads_and_ranks_and_another_epoch_others(sounds):
    transform = augment()
    whole = reading(sounds, transform)
    assert len(whole) == 24 and not whole[BROKEN].any()
    assert all(value.shape == (1, 20, 32) and value.dtype == torch.float32 for value in whole.values())
    assert same(reading(sounds, transform, num_workers=4), whole)
    for world in (2, 3):
        parts = [reading(sounds, transform, rank, world) for rank in range(world)]
        assert same({number: value for part in parts for number, value in part.items()}, whole)
    other = reading(sounds, transform, epoch=1)
    assert not any(torch.equal(value, whole[number]) for number, value in other.items() if number != BROKEN)


@pytest.mark.filterwarnings("ignore:at position")
def test_a_single_sound_is_made_as_in_the_batch_and_so_are_samples_of_numbers(sounds):
    transform, whole = augment(), reading(sounds, augment())
    dataset = shardd.StreamingDataset(sounds, q=0.5, partitions=4, shuffle_seed=3)
    with closing(shardd.DataLoader(dataset, batch_size=1, virtual_ranks=1)) as loader:
        order = [int(batch["id"][0]) for batch in loader]
    for number in (1, 4, 8):
        samples = tone(number)
        place = {"seed": 3, "epoch": 0, "position": order.index(number)}
        assert torch.equal(transform(wav(samples), **place), whole[number])
        raw = augment(rate=RATE)(samples.T.copy(), **place)
        assert torch.equal(raw, whole[number])
        stages = transform.stages(wav(samples), **place)
        assert stages[0][0] == "decoded" and torch.equal(stages[-1][1].float(), whole[number])


def test_spectrograms_are_those_of_pytorch():
    samples = tone(2)
    found = A.Compose([A.PadOrTrim(4_000), A.Spectrogram(n_fft=256)], channels=1)(wav(samples))
    waveform = torch.zeros(4_000)
    mono = torch.from_numpy(samples.astype(np.float32).mean(1) / 32_768)[:4_000]
    waveform[: len(mono)] = mono
    expected = torch.stft(waveform, 256, 128, window=torch.hann_window(256), return_complex=True).abs() ** 2
    assert found.shape == (1, 129, 32)
    assert torch.allclose(found[0], expected, rtol=1e-4, atol=1e-4 * float(expected.max()))


@pytest.mark.filterwarnings("ignore:at position")
def test_replay_gives_the_numbers_that_a_model_heard(sounds, tmp_path):
    import pyarrow.ipc

    transform, whole = augment(), reading(sounds, augment(), epoch=2)
    dataset = shardd.StreamingDataset(sounds, q=0.5, partitions=4, shuffle_seed=3)
    with closing(shardd.DataLoader(dataset, batch_size=3, virtual_ranks=4, transform=transform)) as loader:
        state = loader.state_dict()
    flags = ["--plan", state["plan"], "--epoch", 2, "--batch-size", 3, "--virtual-ranks", 4, "--steps", 2]
    out = tmp_path / "steps.arrow"
    helpers.shardctl("--store", sounds, "replay", *flags, "--transforms", transform.to_json(), "--out", out)
    with pyarrow.ipc.open_file(out) as file:
        table = file.read_all()
    assert len(table) == 24
    for number, value in zip(table["id"].to_pylist(), table["audio"].combine_chunks().to_numpy_ndarray(), strict=True):
        assert np.array_equal(value, whole[number].numpy())


@pytest.mark.filterwarnings("ignore:at position")
def test_functions_stand_beside_them(sounds):
    def louder(sample):
        sample["audio"] = sample["audio"] * 2
        return sample

    plain = A.Compose([A.PadOrTrim(2_000)], sample_rate=RATE, channels=1, on_error="zero")
    behind = A.Compose([A.PadOrTrim(1_000)], rate=RATE, channels=1)
    found, whole = reading(sounds, [plain, louder, behind]), reading(sounds, plain)
    assert all(torch.equal(value, 2 * whole[number][:, :1_000]) for number, value in found.items())


def test_they_are_data():
    transform = augment(column="audio")
    again = A.from_json(transform.to_json())
    assert again == transform and again.digest == transform.digest and pickle.loads(pickle.dumps(transform)) == transform
    assert shardd.transforms.from_json(transform.to_json()) == transform
    assert json.loads(transform.to_json())["audio"]["sample_rate"] == RATE


def test_mistakes_name_the_way_out(sounds):
    with pytest.raises(AttributeError, match="has no MelSpectogram: the nearest is MelSpectrogram"):
        A.MelSpectogram()
    with pytest.raises(ValueError, match="channels"):
        reading(sounds, A.Compose([A.PadOrTrim(100)]))
    with pytest.raises(ValueError, match="Crop|PadOrTrim|length"):
        reading(sounds, A.Compose([A.Vol(2.0)], channels=1))
    with pytest.raises(ValueError, match="and get Int64"):
        reading(sounds, A.Compose([A.PadOrTrim(100)], channels=1, column="id"))
    raising = A.Compose([A.PadOrTrim(100)], channels=1, sample_rate=RATE)
    with pytest.raises(Exception, match="cannot be transformed"):
        reading(sounds, raising)
