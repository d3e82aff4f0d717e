"""Accuracy on CIFAR-10 with RandAugment and CutMix: pictures by shardd in PyTorch and in shardtrain, and by torchvision.

    accuracy.py --data cifar10-jpeg.tar.gz --programs DIRECTORY [--seeds N] [--epochs N] [--jobs N] [--json FILE]

One network (two convolutions with batch normalisation and a linear layer), Adam with a rate that falls as half a cosine, batches of
64. Each seed is a training of its own.
Prints the mean accuracy of each contestant, and the difference to torchvision's with its 95 % interval (Welch). With --json, each
training is written to the file as it ends, and one that the file has is not repeated: call it again for more seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev, variance
from typing import Any

CLASSES, BATCH, RATE = 10, 64, 0.001
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
CONTESTANTS = ("torchvision", "shardd in PyTorch", "shardtrain")


# --- one training in a process of its own -----------------------------------------------------------------------------------


def augmentation(T: Any, dtype: Any) -> list[Any]:
    """The same names and arguments for both."""
    return [
        T.RandomCrop(32, padding=4),
        T.RandomHorizontalFlip(),
        T.RandAugment(),
        T.ToDtype(dtype, scale=True),
        T.Normalize(mean=MEAN, std=STD),
    ]


def batches_of_shardd(directory: Path, seed: int):
    import shardd
    from shardd import transforms as T

    augment = T.Compose([*augmentation(T, "float32"), T.CutMix(num_classes=CLASSES)])
    dataset = shardd.StreamingDataset(str(directory / "store"), dataset="train", q=1.0, shuffle_seed=seed, partitions=1)
    return shardd.DataLoader(dataset, batch_size=BATCH, transform=augment, last_batch="drop")


def batches_of_torchvision(directory: Path, seed: int):
    import torch
    from torchvision.datasets import ImageFolder
    from torchvision.io import decode_image
    from torchvision.transforms import v2

    mix = v2.CutMix(num_classes=CLASSES)

    def collate(samples: list[Any]) -> dict[str, Any]:
        image, label = mix(*torch.utils.data.default_collate(samples))
        return {"image": image, "label": label}

    dataset = ImageFolder(directory / "train", v2.Compose(augmentation(v2, torch.float32)), loader=decode_image)
    generator = torch.Generator().manual_seed(seed)
    return torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, drop_last=True, collate_fn=collate, generator=generator)


def train(contestant: str, directory: Path, seed: int, epochs: int) -> float:
    """The accuracy of a network that PyTorch trains."""
    import torch
    from torch import nn
    from torchvision.datasets import ImageFolder
    from torchvision.io import decode_image
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU()]
    layers += [nn.Conv2d(24, 48, 3, 2, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 64, CLASSES)]
    # As `shardtrain` begins: the last layer as PyTorch's default, with a bias of 0.
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    loader = (batches_of_shardd if contestant == "shardd" else batches_of_torchvision)(directory, seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    plain = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean=MEAN, std=STD)])
    test = torch.utils.data.DataLoader(ImageFolder(directory / "test", plain, loader=decode_image), 500)
    with torch.no_grad():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in test)
    return right / len(test.dataset)


# --- all of them ------------------------------------------------------------------------------------------------------------


def by_pytorch(contestant: str, directory: Path, seed: int, epochs: int) -> float:
    child = [sys.executable, "-B", __file__, "--child", contestant, "--directory", str(directory)]
    done = subprocess.run([*child, "--seeds", str(seed), "--epochs", str(epochs)], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def by_shardtrain(programs: Path, directory: Path, seed: int, epochs: int) -> float:
    report = directory / f"report-{seed}.json"
    plan = [programs / "shardctl", "--store", directory / "store", "partition", "train", "--q", "1", "--partitions", "1"]
    plan = subprocess.run([*map(str, plan), "--seed", str(seed), "--id"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    command = [programs / "shardtrain", "--store", directory / "store", "--plan", plan, "--test-dataset", "test"]
    command += ["--transforms", directory / "train.json", "--test-transforms", directory / "test.json", "--model", "small"]
    command += ["--optimizer", "adam", "--lr", str(RATE), "--schedule", "cosine", "--warmup-epochs", "0"]
    command += ["--batch-size", str(BATCH), "--virtual-ranks", "1", "--last-batch", "drop"]
    command += ["--epochs", str(epochs), "--seed", str(seed), "--threads", "1", "--report", report]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text())["test_accuracy"]


def prepare(data: Path, programs: Path, directory: Path) -> None:
    """Unpacks the pictures, and puts them into a store."""
    if (directory / "train.json").exists():
        return
    from shardd import transforms as T

    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(data) as archive:
        archive.extractall(directory, filter="data")
    for part in ("train", "test"):
        [found] = [path for path in directory.glob(f"**/{part}") if path.is_dir()]
        if found != directory / part:
            found.rename(directory / part)
        ingest = [programs / "shardctl", "--store", directory / "store", "ingest", "--name", part, directory / part]
        subprocess.run([str(part) for part in ingest], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    plain = [T.CenterCrop(32), T.ToDtype("float32", scale=True), T.Normalize(mean=MEAN, std=STD)]
    (directory / "test.json").write_text(T.Compose(plain).to_json())
    (directory / "train.json").write_text(T.Compose([*augmentation(T, "float32"), T.CutMix(num_classes=CLASSES)]).to_json())


def interval(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """The difference of the means, and half of its 95 % interval (Welch), in points."""
    from scipy.stats import t

    parts = [variance(ours) / len(ours), variance(theirs) / len(theirs)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (ours, theirs)))
    return 100 * (mean(ours) - mean(theirs)), 100 * float(t.ppf(0.975, freedom)) * math.sqrt(sum(parts))


def known(file: Path | None, setting: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What the file has, by contestant and seed."""
    if file is None or not file.exists():
        return {contestant: {} for contestant in CONTESTANTS}
    document = json.loads(file.read_text())
    if {name: document.get(name) for name in setting} != setting:
        raise SystemExit(f"{file} is of other trainings than {setting}: name another file")
    return {contestant: document["accuracy"].get(contestant, {}) for contestant in CONTESTANTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="cifar10-jpeg.tar.gz")
    parser.add_argument("--programs", type=Path, help="directory of shardctl and shardtrain")
    parser.add_argument("--directory", type=Path, required=True, help="directory for the pictures and the store, which may be there")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(train(options.child, options.directory, options.seeds, options.epochs))
        return
    prepare(options.data, options.programs, options.directory)

    def run(task: tuple[str, int]) -> tuple[str, float]:
        contestant, seed = task
        if contestant == "shardtrain":
            return contestant, by_shardtrain(options.programs, options.directory, seed, options.epochs)
        child = "shardd" if contestant.startswith("shardd") else contestant
        return contestant, by_pytorch(child, options.directory, seed, options.epochs)

    setting = {"epochs": options.epochs, "batch": BATCH, "rate": RATE}
    by_seed = known(options.json, setting)
    tasks = [
        (contestant, seed)
        for seed in range(1, options.seeds + 1)
        for contestant in CONTESTANTS
        if str(seed) not in by_seed[contestant]
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        for (contestant, seed), (_, accuracy) in zip(tasks, pool.map(run, tasks)):
            by_seed[contestant][str(seed)] = accuracy
            print(f"{contestant}, seed {seed}: {100 * accuracy:.2f} %", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps({**setting, "accuracy": by_seed}, indent=1) + "\n")
    found = {contestant: list(accuracies.values()) for contestant, accuracies in by_seed.items()}
    print("| contestant | mean accuracy | standard deviation | difference to torchvision, 95 % interval |\n|---|--:|--:|--:|")
    for contestant, accuracies in found.items():
        row = f"| {contestant} | {100 * mean(accuracies):.2f} % | {100 * stdev(accuracies):.2f} |"
        difference, half = interval(accuracies, found["torchvision"])
        print(row + (" |" if contestant == "torchvision" else f" {difference:+.2f} ± {half:.2f} |"))


if __name__ == "__main__":
    main()
