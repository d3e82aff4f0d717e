"""shardtrain and PyTorch on the same models, in turns; see benches/gpu/run."""

import argparse
import gzip
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy

CLASSES = 10
BYTES = 256  # tokens of the text are its bytes
COLUMNS = 3072

# Of each model: its data set, the samples of a step, and, of a transformer, its size. `steps` are those of PyTorch; shardtrain's
# are an epoch or more of its data set.
LARGE = {
    "resnet18": dict(dataset="images", batch=128, epochs=3, steps=24),
    "gpt": dict(dataset="text", batch=32, steps=24, size=dict(layers=6, heads=8, hidden_size=512, vocabulary=BYTES, length=128)),
    "gpt2": dict(
        dataset="long-text", batch=8, steps=16, size=dict(layers=12, heads=12, hidden_size=768, vocabulary=50_257, length=1024)
    ),
}
SMALL = {
    "resnet18": dict(dataset="few-images", batch=8, steps=4),
    "gpt": dict(dataset="little-text", batch=16, steps=8, size=dict(layers=2, heads=2, hidden_size=32, vocabulary=BYTES, length=128)),
}

# FLOP/s that a GPU's data sheet promises for dense matrices: of f32 rounded to TF32, and of 16 bits.
PEAKS = {"H100": (495e12, 989e12), "H200": (495e12, 989e12), "A100": (156e12, 312e12)}


def make_data(directory):
    """Images of which each class has a pattern, and a text of few words: both can be learnt."""
    random = numpy.random.default_rng(7)
    for name, count in (("images", 1024), ("some-images", 400), ("few-images", 32)):
        labels = random.integers(0, CLASSES, count)
        patterns = random.integers(0, 160, (CLASSES, 3, 32, 32))
        images = patterns[labels] + random.integers(0, 96, (count, 3, 32, 32))
        numpy.savez(directory / f"{name}.npz", image=images.astype(numpy.uint8), label=labels)
    rows = random.integers(0, 256, (4096, COLUMNS)).astype(numpy.uint8)
    numpy.savez(directory / "rows.npz", features=rows, label=random.integers(0, CLASSES, len(rows)))
    words = ["".join(chr(97 + letter) for letter in random.integers(0, 26, random.integers(2, 9))) for _ in range(300)]
    for name, count in (("text", 24_000), ("long-text", 80_000), ("little-text", 9_200)):  # a plan has 100 samples for each virtual rank
        text = " ".join(words[at] for at in random.integers(0, len(words), count))
        (directory / f"{name}.txt").write_text(text)


def flops(model, setting):
    """Of forward and backward for a sample: the products of matrices alone, a multiplication and an addition each."""
    if "size" not in setting:
        pixels, before, all_products = 32 * 32, 64, 32 * 32 * 3 * 9 * 64
        for after in (64, 128, 256, 512):
            pixels //= 1 if before == after else 4
            around = 0 if before == after else before * after
            all_products += pixels * (9 * before * after + 3 * 9 * after * after + around)
            before = after
        return 6 * (all_products + 512 * CLASSES)
    layers, hidden, length = (setting["size"][name] for name in ("layers", "hidden_size", "length"))
    of_token = layers * (12 * hidden**2 + 2 * length * hidden) + setting["size"]["vocabulary"] * hidden
    return 6 * length * of_token


# --- shardtrain ------------------------------------------------------------------------------------------------------


class Failed(Exception):
    """A training that did not end well."""


def attempt(measure, options, otherwise):
    """One part of the measurements; the others are of use without it."""
    try:
        return measure(options), 0
    except Failed as failure:
        print(failure, file=sys.stderr)
        return otherwise, 1


def is_cuda(device):
    return device.startswith("cuda")


def in_16_bits(device):
    """The precision of 16 bits that a device has: WGSL has no bf16."""
    return "f16" if device.startswith("wgpu") else "bf16"


class Memory:
    """The most memory that processes of a GPU had while this was open, in MiB, if nvidia-smi can tell."""

    def __init__(self, device):
        self.most, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch) if is_cuda(device) else None

    def watch(self):
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self.done.wait(0.5):
            try:
                told = subprocess.run(query, capture_output=True, text=True, timeout=10)
                self.most = max(self.most, int(told.stdout.split()[0]))
            except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
                return

    def __enter__(self):
        if self.thread:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        if self.thread:
            self.thread.join()


def shardtrain(options, model, more=(), ranks=1, batch=None, epochs=None, network=None, setting=None):
    """Trains; the steps' lines of progress, rank 0's report, and the memory of the GPU."""
    setting = setting or options.models[model]
    batch = batch or setting["batch"]
    size = dict(setting.get("size", {}))
    size.pop("length", None)
    arguments = [
        "--store", str(options.directory / "store"), "--dataset", setting["dataset"],
        "--model", network or ("gpt" if size else model), "--batch-size", str(batch),
        "--epochs", str(epochs or setting.get("epochs", 1)),
        "--last-batch", "drop", "--lr", "0.01", "--no-audit", "--desync-check-every", "0", "--seed", "1",
        "--classes", str(size.pop("vocabulary", CLASSES)),
    ]
    for name, value in size.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    if "--virtual-ranks" not in more:
        arguments += ["--virtual-ranks", str(ranks)]
    with tempfile.TemporaryDirectory() as scratch:
        progress, report = Path(scratch) / "progress", Path(scratch) / "report"
        arguments += ["--progress", str(progress), "--report", str(report), *more]
        program = [str(options.directory / "shardtrain")]
        if ranks > 1:
            program += ["run", "--nproc", str(ranks), "--max-restarts", "0", "--"]
        begun = time.perf_counter()
        with Memory(options.device) as memory:
            run = subprocess.run(program + arguments, capture_output=True, text=True)
        if run.returncode != 0:
            raise Failed(f"{' '.join(program + arguments)}\nended with {run.returncode}:\n{run.stderr[-2000:]}")
        steps = [json.loads(line) for line in progress.read_text().splitlines()]
        print(f"  {time.perf_counter() - begun:5.1f} s: {len(steps)} steps, {' '.join(program[1:] + arguments[2:6] + list(more))}", file=sys.stderr)
        return steps, json.loads(report.read_text()), memory.most


def figures(steps, samples):
    """Of the steps after the first third, in which kernels are compiled and chosen."""
    steady = steps[max(1, len(steps) // 3):]
    whole = [step["wait_s"] + step["decode_s"] + step["compute_s"] + step["update_s"] for step in steady]
    data = sum(step["wait_s"] + step["decode_s"] for step in steady)
    step = statistics.median(whole)
    return dict(step_ms=step * 1e3, samples_per_s=samples / step, data_share=data / sum(whole))


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def resnet18(torch):
    nn = torch.nn

    class Residual(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(after)
            self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(after)
            plain = stride == 1 and before == after
            self.around = nn.Identity() if plain else nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, x):
            hidden = self.norm1(self.conv1(x)).relu()
            return (self.norm2(self.conv2(hidden)) + self.around(x)).relu()

    layers, before = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for after in (64, 128, 256, 512):
        layers += [Residual(before, after, 1 if before == after else 2), Residual(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def gpt(torch, layers, heads, hidden_size, vocabulary, length):
    nn, functional, width = torch.nn, torch.nn.functional, hidden_size

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            rows, length, _ = x.shape
            mixed = self.mix(self.norm1(x)).view(rows, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(*mixed, is_causal=True)
            x = x + self.project(seen.transpose(1, 2).reshape(rows, length, width))
            return x + self.narrow(functional.gelu(self.widen(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Parameter(torch.randn(vocabulary, width) * 0.02)
            self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
            self.layers = nn.Sequential(*(Layer() for _ in range(layers)))
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens):
            hidden = self.layers(functional.embedding(tokens, self.tokens) + self.positions)
            return (self.norm(hidden) @ self.tokens.T).flatten(0, 1)

    return Gpt()


def pytorch(options, model, precision, is_compiled):
    """Trains as PyTorch's users do: batches as stored, pinned, one ahead; autocast for 16 bits."""
    import torch

    on_gpu = is_cuda(options.device)
    setting, device = options.models[model], torch.device(options.device if on_gpu else "cpu")
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("highest")
    size = setting.get("size")
    net = (gpt(torch, **size) if size else resnet18(torch)).to(device)
    run = torch.compile(net) if is_compiled else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    random = torch.Generator().manual_seed(1)
    batch, steps = setting["batch"], setting["steps"]

    def make():
        if size is None:
            inputs = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8, generator=random)
            targets = torch.randint(0, CLASSES, (batch,), generator=random)
        else:
            text = torch.randint(0, BYTES, (batch, size["length"] + 1), dtype=torch.int32, generator=random)
            inputs, targets = text[:, :-1].contiguous(), text[:, 1:].flatten().long()
        return (inputs.pin_memory(), targets.pin_memory()) if on_gpu else (inputs, targets)

    stored = [make() for _ in range(8)]
    upload = lambda step: [part.to(device, non_blocking=True) for part in stored[step % len(stored)]]
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times, following = [], upload(0)
    for step in range(steps):
        begun = time.perf_counter()
        (inputs, targets), following = following, upload(step + 1)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision != "f32"):
            inputs = inputs.float() / 255 if size is None else inputs
            loss = torch.nn.functional.cross_entropy(run(inputs).float(), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()  # shardtrain knows each step's loss, too
        times.append(time.perf_counter() - begun)
    step = statistics.median(times[max(1, steps // 3):])
    memory = torch.cuda.max_memory_reserved() / 2**20 if on_gpu else 0
    return dict(step_ms=step * 1e3, samples_per_s=batch / step, memory_mib=memory)


# --- the measurements, and the checks
# ---------------------------------------------------------------------------


def compare(options):
    """Each in a process of its own, in turns; the best round of each."""
    systems = [("shardtrain", "")] + [("PyTorch", mode) for mode in ("eager", "compiled")]
    found = {}
    for _ in range(options.rounds):
        for model in options.models:
            for precision in ("f32", in_16_bits(options.device)):
                for system, mode in systems:
                    if system == "shardtrain":
                        more = ["--device", options.device, "--precision", precision]
                        try:
                            steps, _, memory = shardtrain(options, model, more)
                        except Failed as failure:
                            print(failure, file=sys.stderr)
                            continue
                        one = figures(steps, options.models[model]["batch"]) | dict(memory_mib=memory)
                    else:
                        command = [sys.executable, "-B", __file__, "--directory", str(options.directory)]
                        command += ["--device", options.device, "--pytorch", f"{model},{precision},{mode}"]
                        command += ["--small"] if options.small else []
                        run = subprocess.run(command, capture_output=True, text=True)
                        if run.returncode != 0:
                            print(f"PyTorch {mode} {model} {precision} failed: {run.stderr[-400:]}", file=sys.stderr)
                            continue
                        one = json.loads(run.stdout.splitlines()[-1])
                    key = (model, precision, f"{system} {mode}".strip())
                    print(f"  {key}: {one['step_ms']:.1f} ms", file=sys.stderr)
                    found.setdefault(key, []).append(one)
    return {key: min(rounds, key=lambda one: one["step_ms"]) for key, rounds in found.items()}


def losses(steps, count=20):
    return [step["loss"] for step in steps[:count]]


def apart(one, other):
    terms = [abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, other, strict=True)]
    return max(terms) if all(map(math.isfinite, terms)) else math.inf


def check(options):
    """Whether the device computes what the CPU does, and two ranks that share it what one does."""
    checks = []
    network, dataset = ("small", "some-images") if options.small else ("resnet18", "images")
    of_images = dict(epochs=1, network=network, setting=dict(dataset=dataset, batch=16))
    few, half = of_images | dict(batch=16), of_images | dict(batch=8)
    cpu = losses(shardtrain(options, "resnet18", ["--device", "cpu"], **few)[0])
    for precision, bound in (("f32", 1e-2), (in_16_bits(options.device), 5e-2)):
        here = ["--device", options.device, "--precision", precision]
        here += ["--loss-scale", "512"] if precision == "f16" else []  # no step is skipped until a scale fits
        there = losses(shardtrain(options, "resnet18", here, **few)[0])
        checks.append((f"first {len(there)} losses of {network}, {options.device} {precision} against cpu f32", apart(cpu, there), bound))
    here = ["--device", options.device, "--virtual-ranks", "2"]
    digests = []
    for reduce, bound in (("exact", 0), ("fast", 1e-2)):
        two = [*here, "--reduce", reduce]
        steps, report, _ = shardtrain(options, "resnet18", two, **half)
        alone = losses(steps)
        digests += [report["weights_digest"]] if reduce == "exact" else []
        steps, report, _ = shardtrain(options, "resnet18", two, ranks=2, **half)
        digests += [report["weights_digest"]] if reduce == "exact" else []
        checks.append((f"{reduce}: two ranks on {options.device} through the host against one", apart(alone, losses(steps)), bound))
        if is_cuda(options.device):
            steps, report, _ = shardtrain(options, "resnet18", [*two, "--transport", "nccl"], **half)
            digests += [report["weights_digest"]] if reduce == "exact" else []
            checks.append((f"{reduce}: a world of one through NCCL against none", apart(alone, losses(steps)), bound))
    checks.append((f"exact: other weights than {digests[0][:12]}, of {len(digests)} runs", sum(it != digests[0] for it in digests), 0))
    return checks


def sums(options):
    """What exact sums cost, of four virtual ranks."""
    rows = []
    for model, setting in options.models.items():
        if setting["dataset"] == "few-images":
            continue  # for one virtual rank
        for reduce in ("exact", "fast"):
            more = ["--device", options.device, "--reduce", reduce, "--virtual-ranks", "4"]
            steps, _, memory = shardtrain(options, model, more, batch=setting["batch"] // 4)
            rows.append(dict(model=model, reduce=reduce, memory_mib=memory, **figures(steps, setting["batch"])))
    return rows


def loader(options):
    """Rows of bytes to a model that computes next to nothing: samples a second, and bytes of floats that reach the device."""
    setting = dict(dataset="rows", batch=512, epochs=1 if options.small else 4)
    steps, _, _ = shardtrain(options, "linear", ["--device", options.device], setting=setting)
    found = figures(steps, 512)
    return found | dict(bytes_per_s=found["samples_per_s"] * COLUMNS * 4)


def trace(options):
    """The activities of a training, for ui.perfetto.dev."""
    path = options.directory / "trace.json"
    shardtrain(options, "gpt", ["--device", options.device, "--trace", str(path)], epochs=1)
    events = json.loads(path.read_text())
    return path, len(events["traceEvents"] if isinstance(events, dict) else events)


def planned(options):
    """Bytes of each rank that `shardtrain plan` foresees on CPUs, by stage."""
    size = options.models["gpt"]["size"]
    command = [str(options.directory / "shardtrain"), "plan", "--model", "gpt", "--ranks", "2", "--memory", "64GiB", "--link", "10Gbit/s"]
    command += ["--flops", "1T", "--optimizer", "adamw", "--batch", str(options.models["gpt"]["batch"]), "--json"]
    for name, value in size.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode > 1:
        raise SystemExit(f"{' '.join(command)}\nended with {run.returncode}:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout)


def slices(options):
    """The stages of ZeRO on two ranks that share the device: what each holds of a transformer, and whether it learns what one rank does."""
    setting = options.models["gpt"]
    adam = ["--device", options.device, "--virtual-ranks", "2", "--optimizer", "adamw", "--zero"]
    few = dict(batch=setting["batch"] // 2, epochs=1)
    steps, report, _ = shardtrain(options, "gpt", [*adam, "0"], **few)
    alone, digest = losses(steps), report["weights_digest"]
    rows, checks = [], []
    for stage in range(4):
        steps, report, memory = shardtrain(options, "gpt", [*adam, str(stage)], ranks=2, **few)
        held = {kind: count / report["parameters"] for kind, count in report["memory"].items()}
        rows.append(dict(stage=stage, memory_mib=memory, held=held, **figures(steps, setting["batch"])))
        named = f"stage {stage} of ZeRO, two ranks on {options.device}, against one rank"
        checks.append((f"{named}: losses", apart(alone, losses(steps)), 0))
        checks.append((f"{named}: other weights", int(report["weights_digest"] != digest), 0))
    return rows, checks


def unpack(program):
    """Builds the program from the archive, unless it is there."""
    packed = program.with_name(f"{program.name}.gz")
    if packed.is_file() and not program.is_file():
        with gzip.open(packed) as source, open(program, "wb") as target:
            shutil.copyfileobj(source, target)
        program.chmod(0o755)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--make-data", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pytorch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make_data:
        return make_data(options.make_data)
    options.models = SMALL if options.small else LARGE
    if options.pytorch:
        model, precision, mode = options.pytorch.split(",")
        return print(json.dumps(pytorch(options, model, precision, mode == "compiled")))
    unpack(options.directory / "shardtrain")
    if not (options.directory / "shardtrain").is_file():
        raise SystemExit(f"no shardtrain in {options.directory}; run benches/gpu/run prepare first")

    import torch

    cores = f"{options.device} on {os.cpu_count()} cores"
    name = torch.cuda.get_device_name(options.device) if is_cuda(options.device) else cores
    title = f"{time.strftime('%Y-%m-%d')}, {name}, {platform.machine()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    peaks = next((peaks for gpu, peaks in PEAKS.items() if gpu in name), None)
    table = compare(options)
    checks, one = attempt(check, options, [])
    orders, two = attempt(sums, options, [])
    rows, three = attempt(loader, options, dict(bytes_per_s=0, samples_per_s=0))
    (stages, more), four = attempt(slices, options, ([], []))
    (traced, events), five = attempt(trace, options, ("none", 0))
    failures, plan = one + two + three + four + five, planned(options)
    checks += more

    memory = lambda one: f"{one['memory_mib']:.0f} MiB" if one["memory_mib"] else ""
    milliseconds = lambda one: f"{one['step_ms']:.1f} ms"
    print(f"\n{title}\n")
    lines = []
    for (model, precision, system), one in table.items():
        one["flop_per_s"] = one["samples_per_s"] * flops(model, options.models[model])
        share = f"{one['data_share']:.1%}" if "data_share" in one else ""
        used = f"{one['flop_per_s'] / peaks[precision != 'f32']:.1%}" if peaks else ""
        speed = f"{one['flop_per_s'] / 1e12:.3g}"
        lines.append((model, precision, system, milliseconds(one), f"{one['samples_per_s']:.0f}", speed, used, share, memory(one)))
    print_table("model | bits | | step | samples/s | TFLOP/s | of the peak | share of data | memory", 3, lines)
    lines = [(one["model"], one["reduce"], milliseconds(one), memory(one)) for one in orders]
    print_table("model, four virtual ranks | `--reduce` | step | memory", 2, lines)
    kinds = ("weights", "gradients", "moments", "gathered", "all")
    count, lines = plan["parameters"], []
    for one, foreseen in zip(stages, plan["stages"]):
        assert one["stage"] == foreseen["stage"]
        held = [f"{one['held'][kind]:.2f} ({foreseen['bytes'][kind] / count:.2f})" for kind in kinds]
        lines.append((one["stage"], *held, milliseconds(one), memory(one)))
    heads = " | ".join(f"{kind}" for kind in kinds)
    print("Bytes a parameter that each of two ranks holds of the gpt on the host, or as weights and moments on the device; in brackets those that `shardtrain plan` foresees on CPUs:\n")
    print_table(f"`--zero` | {heads} | step | memory of the device", 1, lines)
    print(f"Loader to device: {rows['bytes_per_s'] / 1e9:.2f} GB/s of floats, {rows['samples_per_s']:.0f} rows of {COLUMNS} bytes a second.")
    print(f"Trace: {events} events in {traced}.\n")
    lines = [(what, f"{found:.1e}", f"{bound:.0e}", "holds" if found <= bound else "FAILS") for what, found, bound in checks]
    print_table("check | largest difference | bound | ", 1, lines)
    if options.json:
        all_rows = [dict(model=key[0], bits=key[1], system=key[2], **one) for key, one in table.items()]
        found = dict(title=title, table=all_rows, sums=orders, loader=rows, stages=stages, plan=plan)
        found["checks"] = [dict(zip(("what", "found", "bound"), one)) for one in checks]
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if failures or any(not math.isfinite(found) or found > bound for _, found, bound in checks):
        raise SystemExit("a training or a check failed")


def print_table(heads, named, lines):
    """As Markdown; all columns but the first are of numbers."""
    count = heads.count("|") + 1
    print(f"| {heads} |\n|{'---|' * named}{'---:|' * (count - named)}")
    for line in lines:
        print(f"| {' | '.join(str(cell) for cell in line)} |")
    print()


if __name__ == "__main__":
    main()
