"""What a step of training a GPT takes in PyTorch, on processors: eager, compiled, DistributedDataParallel or FSDP2 over gloo.

    benches/peers/gpt.py [--mode eager|compiled|ddp|fsdp] [--ranks N] [--threads N] [--layers N] [--heads N] [--width N]
                         [--vocabulary N] [--length N] [--batch ROWS] [--micro-batches N] [--seconds S]

Needs a Python that has torch (benches/peers/requirements.txt). The model and the optimizer are those of
client/python/tests/torch_gpt.py, which is tested to learn as `shardtrain --model gpt` does; as there, gradients are clipped and
every step's loss is asked for. A step has --batch rows altogether, each rank an equal share of them, which goes through the model in
--micro-batches passes. Prints one line of JSON: the median step of rank 0 and the fastest, tokens a second by the median, the
processor time of a step (the mean; all ranks and threads together), and of each rank the most memory it ever
had resident and its memory before there was a model (Python and PyTorch themselves).
"""

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FEWEST_STEPS = 5
TESTS = Path(__file__).resolve().parents[2] / "client" / "python" / "tests"


def resident_mib(what):
    """VmRSS: what this process has in memory. VmHWM: the most that it had; unlike ru_maxrss, it does not begin with its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status says nothing of {what}")


def sharded(model, layers):
    """FSDP2, a unit for each layer and one for the rest; no rank ever has all of the model."""
    import torch
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            own = parameter.to_local()
            own.fill_(1) if "norm" in name and name.endswith("weight") else own.normal_(std=0.02)
    return model


def rank_of(options):
    """Trains as one rank; returns its figures."""
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(TESTS))
    from torch_gpt import Gpt, adamw, mean_loss

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.group:
        place, limit = f"file://{options.group}", datetime.timedelta(minutes=5)
        dist.init_process_group("gloo", init_method=place, rank=options.rank, world_size=options.ranks, timeout=limit)
    before = resident_mib("VmRSS")
    with torch.device("meta" if options.mode == "fsdp" else "cpu"):
        model = Gpt(options.vocabulary, options.length, options.layers, options.heads, options.width)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if options.mode == "fsdp":
        model = sharded(model, model.layers)
    elif options.mode == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = adamw(model, 3e-4, 0.1)

    def loss_of(sequences):
        return mean_loss(model, sequences)

    forward = torch.compile(loss_of) if options.mode == "compiled" else loss_of

    def alone(is_last):
        """All passes of a step but the last keep their gradients to themselves."""
        if options.mode == "fsdp":
            model.set_requires_gradient_sync(is_last)
        return model.no_sync() if options.mode == "ddp" and not is_last else contextlib.nullcontext()

    own_rows = options.batch // options.ranks
    stored = torch.randint(0, options.vocabulary, (8, own_rows, options.length + 1))

    def step(number):
        optimizer.zero_grad(set_to_none=True)
        found = 0.0
        for at, rows in enumerate(stored[number % len(stored)].chunk(options.micro_batches)):
            with alone(at + 1 == options.micro_batches):
                loss = forward(rows) / options.micro_batches
                loss.backward()
            found += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return found

    def agreed(value):
        """What rank 0 says."""
        if not options.group:
            return value
        told = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(told, 0)
        return told.item()

    for number in range(2):  # in which it is compiled, and the optimizer's state made
        step(number)
    times, began, cpu_before = [], time.perf_counter(), time.process_time()
    while agreed(float(len(times) < FEWEST_STEPS or time.perf_counter() - began < options.seconds)):
        start = time.perf_counter()
        step(len(times))
        times.append(time.perf_counter() - start)
    cpu_s = (time.process_time() - cpu_before) / len(times)
    if options.group:
        dist.destroy_process_group()
    return {
        "parameters": parameters, "steps": len(times), "step_s": statistics.median(times), "fastest_s": min(times),
        "cpu_s": cpu_s, "peak_rss_mib": resident_mib("VmHWM"), "before_rss_mib": before,
    }  # fmt: skip


def measure(options):
    """All ranks, each a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        group = ["--group", os.path.join(directory, "group")] if options.mode in ("ddp", "fsdp") else []
        environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-B", __file__, *sys.argv[1:], "--rank", str(rank), *group],
                env=environment, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            for rank in range(options.ranks)
        ]
        try:
            told = [rank.communicate()[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    for number, rank in enumerate(ranks):
        if rank.returncode != 0:
            raise SystemExit(f"rank {number} ended with {rank.returncode}")
    return [json.loads(line) for line in told]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["eager", "compiled", "ddp", "fsdp"], default="eager")
    parser.add_argument("--ranks", type=int, default=1, help="processes, with ddp and fsdp (1)")
    parser.add_argument("--threads", type=int, default=1, help="of each rank (1)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--length", type=int, default=128, help="tokens of a row that are learnt (128)")
    parser.add_argument("--batch", type=int, default=32, help="rows of a step, all ranks together (32)")
    parser.add_argument("--micro-batches", type=int, default=1, help="passes of each rank in a step (1)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long at least, after two steps (10)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--group", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranks > 1 and options.mode not in ("ddp", "fsdp"):
        parser.error(f"--mode {options.mode} is one process; several are ddp or fsdp")
    if options.batch < 1 or options.batch % (options.ranks * options.micro_batches):
        parser.error(f"--batch {options.batch} is not the same for {options.ranks} ranks of {options.micro_batches} passes")
    if options.rank is not None:
        return print(json.dumps(rank_of(options)))
    found = measure(options)
    first = found[0]
    shape = ("mode", "ranks", "threads", "layers", "heads", "width", "vocabulary", "length", "batch", "micro_batches")
    print(json.dumps(
        {name: getattr(options, name) for name in shape}
        | {name: first[name] for name in ("parameters", "steps", "step_s", "fastest_s")}
        | {"tokens_per_s": options.batch * options.length / first["step_s"], "cpu_s": sum(rank["cpu_s"] for rank in found)}
        | {name: [round(rank[name], 1) for rank in found] for name in ("peak_rss_mib", "before_rss_mib")}
    ))  # fmt: skip


if __name__ == "__main__":
    main()
