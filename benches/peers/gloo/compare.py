"""Measures all-reduce of f32 beside gloo (torch.distributed): see `run`."""

import argparse
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BATCH_S, ALL_BATCHES_S, BATCHES = 0.02, 0.4, (5, 15)  # as in bench_comm/measure.rs


def gloo_rank(rank, world, store):
    """One rank of gloo: rank 0 reads numbers of bytes from standard input, one a line, and prints the median latency."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=datetime.timedelta(hours=1)
    )

    def agreed(value):
        told = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(told, 0)
        return told.item()

    def repeat(numbers, times):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(numbers)
        return time.perf_counter() - started

    while True:
        asked = agreed(float(sys.stdin.readline() or 0) if rank == 0 else 0.0)
        if not asked:
            return
        numbers = torch.arange(int(asked) // 4, dtype=torch.float32) % 97 + rank
        repeat(numbers, 1)
        once = max(agreed(repeat(numbers, 3) / 3), 1e-7)
        batch = min(max(int(BATCH_S / once), 1), 1000)
        batches = min(max(int(ALL_BATCHES_S / (once * batch)), BATCHES[0]), BATCHES[1])
        times = [repeat(numbers, batch) / batch for _ in range(batches)]
        if rank == 0:
            print(json.dumps({"latency_us": sorted(times)[len(times) // 2] * 1e6}), flush=True)


class Player:
    """A program that measures when it is its turn, and is stopped when it is not."""

    def __init__(self, name, commands):
        self.name = name
        self.processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            for command in commands
        ]

    def turn(self, size):
        self.signal(signal.SIGCONT)
        first = self.processes[0]
        first.stdin.write(f"{size}\n")
        first.stdin.flush()
        line = first.stdout.readline()
        if not line:
            sys.exit(f"{self.name} has ended")
        self.signal(signal.SIGSTOP)
        return json.loads(line)["latency_us"]

    def signal(self, number):
        for process in self.processes:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                pass  # it has ended by itself

    def end(self):
        self.signal(signal.SIGCONT)
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def compare(shardtrain, world, sizes, rounds):
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        gloo = [[sys.executable, "-B", __file__, "--gloo", str(rank), str(world), store] for rank in range(world)]
        ours = [shardtrain, "bench-comm", "--world", str(world), "--timeout", "60", "--turns"]
        programs = {"gloo": gloo, "tcp": [ours], "threads": [[*ours, "--transport", "threads"]]}
        players = []
        try:
            for name, commands in programs.items():
                players.append(Player(name, commands))
                players[-1].turn(4096)
            for size in sizes:
                times = {player.name: [] for player in players}
                for turn in range(rounds):
                    # Every other round goes backwards.
                    for player in players if turn % 2 == 0 else players[::-1]:
                        times[player.name].append(player.turn(size))
                medians = {name: statistics.median(all) for name, all in times.items()}
                yield {"world": world, "bytes": size, "latency_us": medians, "all_us": times}
        finally:
            for player in players:
                player.end()


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the programs are ended on the way out
    parser = argparse.ArgumentParser(prog="benches/peers/gloo/run", description="All-reduce of f32 beside gloo.")
    parser.add_argument("--shardtrain", required=True)
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--sizes", default="4096,65536,1048576,67108864", help="bytes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="write all figures to this file, one line each")
    args = parser.parse_args()
    lines = open(args.json, "w") if args.json else None
    print("| ranks | size | gloo | ours, TCP | of gloo's time | ours, threads | of gloo's time |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for world in map(int, args.worlds.split(",")):
        for row in compare(args.shardtrain, world, list(map(int, args.sizes.split(","))), args.rounds):
            gloo, tcp, threads = (row["latency_us"][name] for name in ("gloo", "tcp", "threads"))

            def time_of(us):
                return f"{us / 1000:.1f} ms" if us >= 10_000 else f"{us:.0f} µs"

            cells = [world, size_name(row["bytes"]), time_of(gloo)]
            cells += [time_of(tcp), f"{tcp / gloo:.2f}", time_of(threads), f"{threads / gloo:.2f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            if lines:
                print(json.dumps(row), file=lines, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--gloo"]:
        gloo_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main()
