"""Compares every operation and every decoder with torchaudio and soundfile, and prints a table of differences.

    pip install torch torchaudio soundfile numpy
    cargo build --release --example apply
    python tests/reference/audio.py target/release/examples/apply [--sounds FOLDER]

The sounds are generated; those of a folder (wav, flac, mp3, ogg) are added. Random operations of torchaudio get the same
uniform numbers as ours. "scale" is the divisor of a row's differences: 1, or the greatest number of torchaudio's result.
Exits with 1 if a difference is over 1e-4.
"""

import argparse
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import soundfile
import torch

torch.version.cuda = None  # Only the processor is used: a torchaudio of another CUDA will do.
import torchaudio
import torchaudio.functional as F
import torchaudio.transforms as T

warnings.simplefilter("ignore")
LIMIT = 1e-4


class Ours:
    """The crate, by its example `apply`."""

    def __init__(self, program, folder):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = pathlib.Path(folder)

    def ask(self, request):
        request["output"] = str(self.folder / "output")
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            return answer["error"]
        return np.fromfile(request["output"], np.float32).reshape(answer["shape"]), answer["rate"]

    def apply(self, op, args, data, rate=0, draws=()):
        data = np.ascontiguousarray(data, np.float32)
        data.tofile(self.folder / "input")
        bins = data.shape[1] if data.ndim == 3 else 0
        return self.ask({"op": op, "args": args, "input": str(self.folder / "input"), "channels": data.shape[0],
                         "rate": rate, "bins": bins, "draws": list(draws)})

    def decode(self, path, options):
        return self.ask({"op": "decode", "args": options, "input": str(path)})


class Table:
    """Greatest and mean difference of each operation."""

    def __init__(self):
        self.rows = {}
        self.failures = []

    def add(self, name, case, theirs, ours, scaled=False):
        row = self.rows.setdefault(name, {"cases": 0, "errors": 0, "max": 0.0, "sum": 0.0, "n": 0, "worst": "", "scaled": scaled})
        row["cases"] += 1
        if isinstance(theirs, Exception) or isinstance(ours, str):
            row["errors"] += 1
            if not (isinstance(theirs, Exception) and isinstance(ours, str)):
                self.failures.append(f"{name}, {case}: torchaudio {describe(theirs)}, this crate {describe(ours)}")
            return
        theirs, ours = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
        if theirs.shape != ours.shape:
            self.failures.append(f"{name}, {case}: shape {theirs.shape} and {ours.shape}")
            return
        if theirs.size == 0:
            return
        difference = np.abs(theirs - ours) / (max(np.abs(theirs).max(), 1e-30) if scaled else 1.0)
        row["sum"], row["n"] = row["sum"] + difference.sum(), row["n"] + difference.size
        if not difference.max() <= row["max"]:
            row["max"], row["worst"] = difference.max(), case
        if not difference.max() <= LIMIT:
            self.failures.append(f"{name}, {case}: {difference.max():.3g}")

    def print(self):
        print("| operation | cases | refused by both | scale | largest difference | mean difference | largest in |")
        print("|---|---|---|---|---|---|---|")
        for name, row in self.rows.items():
            scale = "largest" if row["scaled"] else "1"
            mean = row["sum"] / max(row["n"], 1)
            print(f"| {name} | {row['cases']} | {row['errors']} | {scale} | {row['max']:.2g} | {mean:.2g} | {row['worst']} |")
        for failure in self.failures:
            print("FAILED", failure)


def describe(result):
    return f"{type(result).__name__}: {str(result)[:150]}" if isinstance(result, (Exception, str)) else "makes numbers"


def attempt(make):
    try:
        with torch.no_grad():
            return make()
    except Exception as error:
        return error


def generated():
    """Name, samples of shape [channels, time], rate."""
    rng = np.random.default_rng(7)
    for rate in [8000, 16000, 22050, 44100, 48000]:
        t = np.arange(int(rate * 1.3)) / rate
        pitch = 110 + 40 * np.sin(2 * np.pi * 0.7 * t)
        phase = 2 * np.pi * np.cumsum(pitch) / rate
        voice = sum(np.sin(k * phase) / k for k in range(1, 20)) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * t)) * 0.2
        sweep = 0.5 * np.sin(2 * np.pi * (100 * t + (rate / 2 - 100) * t * t / 2.6))
        yield f"voice {rate}", np.stack([voice, sweep]), rate
    yield "noise", rng.uniform(-1, 1, (1, 20000)), 16000
    yield "quiet noise", rng.uniform(-1, 1, (1, 20000)) * 1e-4, 16000
    yield "silence", np.zeros((1, 16000)), 16000
    half = rng.uniform(-1, 1, (1, 16000))
    half[:, 6000:] = 0
    yield "noise, then silence", half, 16000
    for samples in [0, 1, 2, 100, 199, 200, 201, 399, 400, 401, 1000]:
        yield f"{samples} samples", rng.uniform(-1, 1, (1, samples)), 16000


def sounds(folder):
    for name, data, rate in generated():
        yield name, data.astype(np.float32), rate
    for path in sorted(folder.rglob("*")) if folder else []:
        if path.suffix.lower() in {".wav", ".flac", ".mp3", ".ogg", ".oga"}:
            try:
                data, rate = soundfile.read(path, dtype="float32", always_2d=True)
            except Exception:
                continue
            yield path.name, data.T[:, : 5 * rate].copy(), rate


def resampling(table, ours, name, data, rate):
    if data.shape[1] == 0:
        return  # torchaudio refuses an empty waveform, and this crate makes an empty one.
    for new, more in [(16000, {}), (8000, {}), (44100, {}), (48000, {"lowpass_filter_width": 64, "rolloff": 0.95}),
                      (11025, {"resampling_method": "sinc_interp_kaiser"}), (1009, {"orig_freq": 997}), (499, {"orig_freq": 1499}),
                      (16000, {"resampling_method": "sinc_interp_kaiser", "lowpass_filter_width": 16, "rolloff": 0.85, "beta": 8.5})]:
        args = {"orig_freq": rate, "new_freq": new, **more}
        theirs = attempt(lambda: T.Resample(**args)(torch.tensor(data)).numpy())
        got = ours.apply("Resample", args, data, args["orig_freq"])
        table.add("Resample " + more.get("resampling_method", "sinc_interp_hann"), f"{name} to {new}", theirs, first(got))


def first(answer):
    return answer if isinstance(answer, str) else answer[0]


SPECTROGRAMS = [{}, {"n_fft": 512, "win_length": 400, "hop_length": 160}, {"n_fft": 1024, "power": 1.0, "normalized": True},
                {"n_fft": 401, "hop_length": 100, "center": False}, {"power": 0.7, "pad": 30, "pad_mode": "constant"},
                {"window_fn": "hamming_window", "normalized": "frame_length", "pad_mode": "replicate"}, {"n_fft": 2, "hop_length": 50},
                {"n_fft": 194, "pad_mode": "circular"}, {"n_fft": 1, "hop_length": 7}, {"n_fft": 2048, "hop_length": 512}]
MELS = [{}, {"n_mels": 80, "hop_length": 160}, {"n_mels": 40, "norm": "slaney", "mel_scale": "slaney", "n_fft": 512},
        {"n_mels": 64, "f_min": 60.0, "f_max": 3800.0, "power": 1.0}, {"n_mels": 23, "norm": "slaney", "mel_scale": "htk"}]


def theirs_args(args):
    args = dict(args)
    if "window_fn" in args:
        args["window_fn"] = getattr(torch, args["window_fn"])
    return args


def spectra(table, ours, name, data, rate):
    wave = torch.tensor(data)
    for args in SPECTROGRAMS:
        theirs = attempt(lambda: T.Spectrogram(**theirs_args(args))(wave).numpy())
        table.add("Spectrogram", f"{name} {args}", theirs, first(ours.apply("Spectrogram", args, data, rate)), True)
    for args in MELS:
        args = {"sample_rate": rate, **args}
        theirs = attempt(lambda: T.MelSpectrogram(**theirs_args(args))(wave).numpy())
        table.add("MelSpectrogram", f"{name} {args}", theirs, first(ours.apply("MelSpectrogram", args, data, rate)), True)
    for args in [{}, {"n_mfcc": 13, "melkwargs": {"n_mels": 40, "hop_length": 160}}, {"norm": None, "log_mels": True},
                 {"n_mfcc": 20, "melkwargs": {"n_fft": 512, "n_mels": 64, "norm": "slaney", "mel_scale": "slaney"}}]:
        args = {"sample_rate": rate, **args}
        theirs = attempt(lambda: T.MFCC(**args)(wave).numpy())
        table.add("MFCC" + (" log_mels" if "log_mels" in args else ""), f"{name} {args}", theirs,
                  first(ours.apply("MFCC", args, data, rate)), True)
    if rate == 16000:
        for n_mels in [80, 128]:
            theirs = attempt(lambda: whisper(wave, n_mels))
            table.add("LogMel", f"{name} {n_mels}", theirs, first(ours.apply("LogMel", {"n_mels": n_mels}, data, rate)))


def whisper(wave, n_mels):
    """As in openai/whisper, with the filters of torchaudio."""
    stft = torch.stft(wave, 400, 160, window=torch.hann_window(400), return_complex=True)
    power = stft[..., :-1].abs() ** 2
    filters = F.melscale_fbanks(201, 0.0, 8000.0, n_mels, 16000, "slaney", "slaney")
    logs = torch.clamp(filters.T @ power, min=1e-10).log10()
    return ((torch.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0).numpy()


def on_spectra(table, ours, name, data, rate, rng):
    """Operations that get torchaudio's own spectrogram, so that their differences are theirs alone."""
    spec = attempt(lambda: T.Spectrogram(hop_length=160)(torch.tensor(data)))
    if isinstance(spec, Exception):
        return
    for args in [{"n_mels": 80}, {"n_mels": 40, "norm": "slaney", "mel_scale": "slaney"}]:
        args = {"sample_rate": rate, "n_stft": 201, **args}
        theirs = attempt(lambda: T.MelScale(**args)(spec).numpy())
        table.add("MelScale", f"{name} {args}", theirs, first(ours.apply("MelScale", args, spec.numpy())), True)
    for args in [{}, {"top_db": 80.0}, {"stype": "magnitude", "top_db": 30.0}]:
        theirs = attempt(lambda: T.AmplitudeToDB(**args)(spec).numpy())
        table.add("AmplitudeToDB (dB)", f"{name} {args}", theirs, first(ours.apply("AmplitudeToDB", args, spec.numpy())))
    for op, args in [("FrequencyMasking", {"freq_mask_param": 60}), ("FrequencyMasking", {"freq_mask_param": 300, "iid_masks": True}),
                     ("TimeMasking", {"time_mask_param": 50}), ("TimeMasking", {"time_mask_param": 50, "iid_masks": True, "p": 0.2}),
                     ("SpecAugment", {"n_time_masks": 2, "time_mask_param": 40, "n_freq_masks": 2, "freq_mask_param": 30}),
                     ("SpecAugment", {"n_time_masks": 1, "time_mask_param": 40, "n_freq_masks": 1, "freq_mask_param": 30,
                                      "iid_masks": False, "p": 0.5, "zero_masking": True})]:
        draws = rng.random(64).astype(np.float32).astype(np.float64)
        theirs = attempt(lambda: with_draws(draws, lambda: getattr(T, op)(**args)(spec.clone()).numpy()))
        table.add(op, f"{name} {args}", theirs, first(ours.apply(op, args, spec.numpy(), draws=draws)), True)


def with_draws(draws, make):
    """Runs with a `torch.rand` that hands out these numbers."""
    numbers, rand = iter(draws), torch.rand

    def given(*size, **_):
        shape = size[0] if isinstance(size[0], (tuple, torch.Size)) else size
        return torch.tensor([next(numbers) for _ in range(int(np.prod(shape)))], dtype=torch.float64).reshape(shape)

    torch.rand = given
    try:
        return make()
    finally:
        torch.rand = rand


def on_waves(table, ours, name, data, rate):
    wave = torch.tensor(data)
    for args in [{"gain": 1.7}, {"gain": 0.3, "gain_type": "power"}, {"gain": -7.5, "gain_type": "db"}, {"gain": 12.0, "gain_type": "db"}]:
        theirs = attempt(lambda: T.Vol(**args)(wave).numpy())
        table.add("Vol", f"{name} {args}", theirs, first(ours.apply("Vol", args, data, rate)))
    for shape in ["linear", "exponential", "logarithmic", "quarter_sine", "half_sine"]:
        args = {"fade_in_len": 180, "fade_out_len": 333, "fade_shape": shape}
        theirs = attempt(lambda: T.Fade(**args)(wave).numpy())
        table.add("Fade", f"{name} {args}", theirs, first(ours.apply("Fade", args, data, rate)))
    for levels in [256, 65536]:
        theirs = attempt(lambda: F.mu_law_encoding(wave, levels).numpy())
        got = first(ours.apply("MuLawEncoding", {"quantization_channels": levels}, data, rate))
        if levels == 256:
            table.add("MuLawEncoding (levels)", name, theirs, got)
        else:
            table.add("MuLawEncoding of 65,536 (levels)", name, theirs, got, True)


def encoded(folder):
    """Files of each format and encoding that libsndfile writes."""
    for name, data, rate in generated():
        if data.shape[1] < 400:
            continue
        for form, subtypes in {"WAV": ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"], "WAVEX": ["PCM_16", "PCM_24", "FLOAT"],
                               "RF64": ["PCM_16"], "FLAC": ["PCM_S8", "PCM_16", "PCM_24"], "OGG": ["VORBIS"], "MP3": ["MPEG_LAYER_III"]}.items():
            for subtype in subtypes:
                path = folder / f"{name} {form} {subtype}".replace(" ", "_").replace(",", "")
                soundfile.write(path, np.clip(data.T, -0.99, 0.99), rate, subtype, format=form)
                yield path


def decoding(table, ours, path):
    try:
        data, rate = soundfile.read(path, dtype="float32", always_2d=True)
        form = soundfile.info(path)
    except Exception:
        return
    name = {"WAVEX": "WAV", "RF64": "WAV"}.get(form.format, form.format)
    if name not in {"WAV", "FLAC", "OGG", "MP3"} or form.subtype in {"ULAW", "OPUS"} or form.endian == "BIG":
        return
    if path.read_bytes().startswith(b"RIFX") or "inconsistent" in path.name:
        return
    got = ours.decode(path, {"truncated": "keep"})
    table.add(f"decode {name}", path.name, data.T, first(got))
    if isinstance(got, str):
        return
    if got[1] != rate:
        table.failures.append(f"decode {path.name}: {got[1]} Hz, not {rate}")
    whole, samples = got[0], data.shape[0]
    for start, length in [(samples // 3, samples // 4), (samples - 5, 100), (1, 1)]:
        part = ours.decode(path, {"start": {"samples": start}, "length": {"samples": length}, "truncated": "keep"})
        table.add(f"decode part of {name} (beside the whole)", f"{path.name} from {start}", whole[:, start : start + length], first(part))
    mono = ours.decode(path, {"mono": True, "length": {"seconds": 0.5}, "truncated": "keep"})
    table.add(f"decode {name} to mono", path.name, torch.tensor(data.T[:, : round(0.5 * rate)]).mean(0, keepdim=True).numpy(), first(mono))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--sounds", type=pathlib.Path)
    options = parser.parse_args()
    table, rng = Table(), np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(options.program, folder)
        for name, data, rate in sounds(options.sounds):
            resampling(table, ours, name, data, rate)
            spectra(table, ours, name, data, rate)
            on_spectra(table, ours, name, data, rate, rng)
            on_waves(table, ours, name, data, rate)
        paths = list(encoded(pathlib.Path(folder)))
        paths += [path for path in sorted(options.sounds.rglob("*")) if path.is_file()] if options.sounds else []
        for path in paths:
            decoding(table, ours, path)
        ours.process.stdin.close()
        ours.process.wait()
    print(f"torch {torch.__version__}, torchaudio {torchaudio.__version__}, {soundfile.__libsndfile_version__}\n")
    table.print()
    sys.exit(bool(table.failures))


if __name__ == "__main__":
    main()
