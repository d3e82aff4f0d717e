"""Writes the fixtures of `tests/fixtures.rs` into `tests/fixtures`: small sounds by libsndfile, and numbers by torchaudio.

    pip install torch torchaudio soundfile numpy
    python tests/fixtures.py
"""

import json
import pathlib

import numpy as np
import soundfile
import torch

torch.version.cuda = None  # Only the processor is used: a torchaudio of another CUDA will do.
import torchaudio.functional as F
import torchaudio.transforms as T

FOLDER = pathlib.Path(__file__).parent / "fixtures"


def sound(channels, samples):
    """The same numbers as `sound` in `tests/fixtures.rs`: a product of whole numbers, reduced, and scaled by a power of two."""
    at = np.arange(channels * samples, dtype=np.int64)
    noise = (at * 7919 % 2003 - 1001).astype(np.float32) / np.float32(4096)
    saw = (at * 31 % 1024 - 512).astype(np.float32) / np.float32(1024)
    return (noise + saw).astype(np.float32).reshape(channels, samples)


CASES = [
    ("Resample", {"orig_freq": 44100, "new_freq": 16000}, 44100, 1, 500),
    ("Resample", {"orig_freq": 8000, "new_freq": 11025, "resampling_method": "sinc_interp_kaiser"}, 8000, 2, 60),
    ("Resample", {"orig_freq": 997, "new_freq": 1009, "lowpass_filter_width": 16, "rolloff": 0.9}, 997, 1, 150),
    ("Spectrogram", {"n_fft": 32, "hop_length": 20}, 16000, 1, 150),
    ("Spectrogram", {"n_fft": 25, "win_length": 20, "hop_length": 30, "normalized": True, "power": 1.0}, 16000, 2, 90),
    ("Spectrogram", {"n_fft": 14, "center": False, "hop_length": 9, "pad": 3}, 16000, 1, 60),
    ("MelSpectrogram", {"n_fft": 400, "hop_length": 160, "n_mels": 40}, 16000, 1, 800),
    ("MelSpectrogram", {"sample_rate": 22050, "n_fft": 512, "n_mels": 24, "norm": "slaney", "mel_scale": "slaney"}, 22050, 1, 900),
    ("MFCC", {"n_mfcc": 13, "melkwargs": {"n_mels": 40, "hop_length": 200}}, 16000, 1, 1000),
    ("MFCC", {"n_mfcc": 10, "norm": None, "log_mels": True, "melkwargs": {"n_mels": 20, "hop_length": 200}}, 16000, 1, 800),
    ("Vol", {"gain": -3.5, "gain_type": "db"}, 8000, 1, 40),
    ("Fade", {"fade_in_len": 15, "fade_out_len": 30, "fade_shape": "half_sine"}, 8000, 1, 40),
    ("Fade", {"fade_in_len": 30, "fade_out_len": 25, "fade_shape": "logarithmic"}, 8000, 1, 40),
    ("MuLawEncoding", {}, 8000, 1, 60),
]


def main():
    FOLDER.mkdir(exist_ok=True)
    expected = []
    for op, args, rate, channels, samples in CASES:
        made = getattr(T, op)(**args)(torch.tensor(sound(channels, samples)))
        numbers = [float(f"{x:.8g}") for x in made.flatten().tolist()]
        expected.append({"op": op, "args": args, "rate": rate, "channels": channels, "samples": samples,
                         "shape": list(made.shape), "numbers": numbers})
    decibels = T.AmplitudeToDB(top_db=60.0)(torch.tensor(sound(1, 64)).clamp(min=0).reshape(1, 8, 8) ** 4)
    expected.append({"op": "AmplitudeToDB", "args": {"top_db": 60.0}, "rate": 0, "channels": 1, "samples": 64, "shape": [1, 8, 8],
                     "numbers": [float(f"{x:.8g}") for x in decibels.flatten().tolist()]})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in expected)
    (FOLDER / "expected.json").write_text(f"[\n{lines}\n]\n")

    for name, form, subtype, channels, samples in [
        ("u8.wav", "WAV", "PCM_U8", 1, 300), ("s16.wav", "WAV", "PCM_16", 2, 300), ("s24.wav", "WAVEX", "PCM_24", 2, 300),
        ("s32.wav", "WAV", "PCM_32", 1, 300), ("f32.wav", "WAV", "FLOAT", 1, 300), ("f64.wav", "WAV", "DOUBLE", 2, 150),
        ("rf64.wav", "RF64", "PCM_16", 1, 300), ("s16.flac", "FLAC", "PCM_16", 2, 6000), ("s24.flac", "FLAC", "PCM_24", 1, 500),
        ("stereo.mp3", "MP3", "MPEG_LAYER_III", 2, 8000), ("mono.mp3", "MP3", "MPEG_LAYER_III", 1, 8000),
        ("stereo.ogg", "OGG", "VORBIS", 2, 4000), ("opus.ogg", "OGG", "OPUS", 1, 100),
    ]:
        rate = 44100 if name == "stereo.mp3" else 8000
        soundfile.write(FOLDER / name, sound(channels, samples).T, rate, subtype, format=form)
    listing = {}
    for path in sorted(FOLDER.glob("*.*")):
        if path.suffix != ".json" and path.name != "opus.ogg":
            data, rate = soundfile.read(path, dtype="float32", always_2d=True)
            every = max(1, data.size // 64)
            listing[path.name] = {"rate": rate, "shape": list(data.T.shape), "every": every,
                                  "numbers": [float(f"{x:.8g}") for x in data.T.flatten()[::every].tolist()]}
    (FOLDER / "decoded.json").write_text(json.dumps(listing, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
