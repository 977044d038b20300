# SPDX-License-Identifier: BSD-3-Clause
"""banyan beside gloo in torch.distributed, in turn within one run: all_reduce by size, blocking and asynchronous, and
steps of DDP. Needs torch and banyan-torch (scripts/test-frameworks).

    torch_gloo.py --ranks 2 --rounds 5 --loops 4 --json out.json

--loops: so many processes that compute beside. Prints p10, median and p90 over all rounds, in microseconds."""
import argparse
import json
import multiprocessing
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

BACKENDS = ("banyan", "gloo")
SIZES = (4, 4096, 65536, 1 << 20, 1 << 24)


def spread(times):
    times = sorted(times)
    return [round(1e6 * times[len(times) * k // 10], 1) for k in (1, 5, 9)]


def sums(group, size, asynchronous):
    x = torch.zeros(size // 4)
    count = max(5, min(300, (1 << 25) // size))
    found = []
    for i in range(count + 3):
        begin = time.perf_counter()
        work = dist.all_reduce(x, group=group, async_op=asynchronous)
        if asynchronous:
            work.wait()
        if i >= 3:
            found.append(time.perf_counter() - begin)
    return found


class Training:
    """DDP of a perceptron with 2.9 million parameters."""

    def __init__(self, group):
        torch.manual_seed(0)
        sizes = (784, 1024, 1024, 1024, 10)
        layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers[:-1]), process_group=group)
        self.optimizer = torch.optim.SGD(self.net.parameters(), .01)
        self.x, self.y = torch.randn(32, 784), torch.randint(0, 10, (32,))
        self.steps(5)

    def steps(self, n):
        found = []
        for _ in range(n):
            begin = time.perf_counter()
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.net(self.x), self.y).backward()
            self.optimizer.step()
            found.append(time.perf_counter() - begin)
        return found


def rank_main(rank, args, folder, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=args.ranks)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    training = {name: Training(groups[name]) for name in BACKENDS}
    times = {}
    for turn in range(args.rounds):
        for name in BACKENDS if turn % 2 else reversed(BACKENDS):
            dist.barrier(group=groups["gloo"])
            for size in SIZES:
                for how in ("blocking", "async"):
                    times.setdefault((name, f"{how} {size}"), []).extend(sums(groups[name], size, how == "async"))
            times.setdefault((name, "ddp step"), []).extend(training[name].steps(20))
    if rank == 0:
        out.put({f"{name} {what}": spread(found) for (name, what), found in times.items()})
    dist.destroy_process_group()


def busy():
    while True:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--loops", type=int, default=0)
    parser.add_argument("--json")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    fork = multiprocessing.get_context("fork")
    loops = [fork.Process(target=busy, daemon=True) for _ in range(args.loops)]
    out = fork.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=rank_main, args=(r, args, folder, out)) for r in range(args.ranks)]
        for process in loops + ranks:
            process.start()
        found = out.get()
        for process in ranks:
            process.join()
    for loop in loops:
        loop.terminate()
    for what in [f"{how} {size}" for how in ("blocking", "async") for size in SIZES] + ["ddp step"]:
        ours, theirs = found[f"banyan {what}"], found[f"gloo {what}"]
        print(f"{what:18} banyan {ours} gloo {theirs} ratio {theirs[1] / ours[1]:.2f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"ranks": args.ranks, "loops": args.loops, "torch": torch.__version__, "us": found}, file, indent=1)


if __name__ == "__main__":
    main()
