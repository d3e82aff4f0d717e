"""Times shardd-audio beside torchaudio and soundfile, one thread each, over clips of ten seconds. Prints a table.

    pip install torch torchaudio soundfile numpy
    cargo build --release -p shardd-audio --example audio_speed
    python tests/reference/audio_speed.py target/release/examples/audio_speed [SOUND.wav]

The clip repeats a sound, or is generated. Each time is the shortest of a second of runs, in milliseconds; files are in
memory. Decoding is beside soundfile, which makes `[time, channels]`.
"""

import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import soundfile
import torch

torch.version.cuda = None  # Only the processor is used: a torchaudio of another CUDA will do.
import torchaudio.transforms as T

torch.set_num_threads(1)


def best(run):
    shortest, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < 1.0:
        before = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - before)
    return shortest * 1e3


def clips(folder, sound):
    """A mono clip of 16 kHz, and a stereo clip of 44.1 kHz, in each format."""
    if sound:
        data, rate = soundfile.read(sound, dtype="float32", always_2d=True)
        wave = T.Resample(rate, 44100)(torch.tensor(data.T[:1].copy())).numpy()[0]
        wave = np.tile(wave, -(-441000 // len(wave)))[:441000]
    else:
        t = np.arange(441000) / 44100
        wave = sum(np.sin(2 * np.pi * 150 * k * t + k) / k for k in range(1, 30)) * 0.1 * (1 + np.sin(2 * np.pi * 3 * t))
    wave = wave.astype(np.float32) * 0.8
    other = np.roll(wave, 300) * 0.7
    speech = T.Resample(44100, 16000)(torch.tensor(wave[None])).numpy()
    soundfile.write(folder / "16000.wav", speech.T, 16000, "PCM_16")
    stereo = np.stack([wave, other], 1)
    for name, subtype in [("44100.wav", "PCM_16"), ("44100-24.wav", "PCM_24"), ("44100-float.wav", "FLOAT"), ("44100.flac", "PCM_16"),
                          ("44100.mp3", "MPEG_LAYER_III"), ("44100.ogg", "VORBIS")]:
        soundfile.write(folder / name, stereo, 44100, subtype)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        clips(folder, sys.argv[2] if len(sys.argv) > 2 else None)
        theirs = {}
        for path in sorted(folder.iterdir()):
            data = path.read_bytes()
            theirs[f"decode {path.name}"] = best(lambda: soundfile.read(io.BytesIO(data), dtype="float32"))
        ours = json.loads(subprocess.run([sys.argv[1], name], check=True, capture_output=True, text=True).stdout)
        speech = torch.tensor(soundfile.read(folder / "16000.wav", dtype="float32", always_2d=True)[0].T.copy())
        music = torch.tensor(soundfile.read(folder / "44100.wav", dtype="float32", always_2d=True)[0].T.copy())
    mel = lambda **args: T.MelSpectrogram(**{"hop_length": 160, "n_mels": 80, **args})
    decibels = T.AmplitudeToDB(top_db=80)
    window, filters = torch.hann_window(400), mel(norm="slaney", mel_scale="slaney").mel_scale.fb

    def log_mel():
        power = torch.stft(speech, 400, 160, window=window, return_complex=True)[..., :-1].abs() ** 2
        logs = torch.clamp(filters.T @ power, min=1e-10).log10()
        return (torch.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0

    cases = {
        "Spectrogram": (T.Spectrogram(hop_length=160), speech), "MelSpectrogram": (mel(), speech),
        "MelSpectrogram n_fft 512": (mel(n_fft=512), speech), "MelSpectrogram n_fft 1024": (mel(n_fft=1024), speech),
        "MelSpectrogram, AmplitudeToDB": (torch.nn.Sequential(mel(), decibels), speech),
        "MelSpectrogram slaney": (mel(norm="slaney", mel_scale="slaney"), speech), "MFCC": (T.MFCC(), speech),
        "Resample 44100 to 16000": (T.Resample(44100, 16000), music), "Resample 44100 to 48000": (T.Resample(44100, 48000), music),
    }
    with torch.no_grad():
        for case, (run, data) in cases.items():
            theirs[case] = best(lambda: run(data))
        theirs["LogMel"] = best(log_mel)
        theirs["Resample 44100 to 16000, kernels"] = best(lambda: T.Resample(44100, 16000))
    print("| | this crate, ms | torchaudio or soundfile, ms | times as fast |\n|---|---|---|---|")
    for case in ours:
        print(f"| {case} | {ours[case]:.2f} | {theirs[case]:.2f} | {theirs[case] / ours[case]:.1f} |")


if __name__ == "__main__":
    main()
