# SPDX-License-Identifier: BSD-3-Clause
"""Trains LightGBM on ranks of this machine over its own sockets and over banyan, in turn, and compares times and models. Needs
numpy, lightgbm and banyan for Python.

    python3 perf/train_lightgbm.py [--ranks 2] [--rows 100000] [--columns 50] [--trees 50] [--rounds 5] [--loops 4] [--json FILE]

--loops: so many processes that compute all the time run beside. Exit status 1: the models differ."""
import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

WAYS = "sockets", "banyan"


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def rank_main(args):
    """A rank: trains by each way in each round; rank 0 prints a line of JSON for each."""
    import banyan
    import banyan.lightgbm
    import lightgbm
    import numpy

    with banyan.Comm.from_env() as comm:
        rng = numpy.random.default_rng(comm.rank)
        x = rng.normal(size=(args.rows // comm.size, args.columns))
        y = (x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=len(x)) > 0).astype("float32")
        common = {"objective": "binary", "num_leaves": 31, "num_threads": 1, "verbose": -1, "seed": 1, "deterministic": True}
        for _ in range(args.rounds):
            for way in WAYS:
                ports = comm.broadcast_object(free_ports(comm.size) if comm.rank == 0 else None)
                comm.barrier()
                start = time.perf_counter()
                if way == "banyan":
                    with banyan.lightgbm.start(comm) as network:
                        model = train(lightgbm, x, y, {**common, **network.params}, args.trees)
                else:
                    model = train(lightgbm, x, y, {
                        **common, "num_machines": comm.size, "tree_learner": "data", "pre_partition": True,
                        "machines": ",".join(f"127.0.0.1:{p}" for p in ports), "local_listen_port": ports[comm.rank]}, args.trees)
                comm.barrier()
                seconds = time.perf_counter() - start
                models = comm.allgather_object(model)
                if comm.rank == 0:
                    print(json.dumps({"way": way, "seconds": seconds, "alike": len(set(models)) == 1, "model": models[0]}))


def train(lightgbm, x, y, params, trees):
    """The model's text without its parameters, which name ports."""
    booster = lightgbm.train(params, lightgbm.Dataset(x, y), num_boost_round=trees)
    text = booster.model_to_string().split("\nparameters:")[0]
    booster.free_network()
    return text


def spin():
    while True:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in ("ranks", 2), ("rows", 100000), ("columns", 50), ("trees", 50), ("rounds", 5), ("loops", 0):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if "BANYAN_RANK" in os.environ:
        return rank_main(args)
    import banyan.run
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(args.loops)]
    for loop in loops:
        loop.start()
    try:
        run = subprocess.run([banyan.run.path(), "-n", str(args.ranks), sys.executable, *sys.argv], stdout=subprocess.PIPE, check=True)
    finally:
        for loop in loops:
            loop.terminate()
    results = [json.loads(line) for line in run.stdout.splitlines() if line.startswith(b"{")]
    seconds = {way: [r["seconds"] for r in results if r["way"] == way] for way in WAYS}
    same = all(r["alike"] for r in results) and len({r["model"] for r in results}) == 1
    medians = {way: statistics.median(seconds[way]) for way in WAYS}
    for way in WAYS:
        print(f"{way:8} median {medians[way]:.3f} s, {min(seconds[way]):.3f} to {max(seconds[way]):.3f}")
    print(f"banyan is {medians['sockets'] / medians['banyan']:.2f} times as fast; the models are {'identical' if same else 'DIFFERENT'}")
    if args.json:
        args.json.write_text(json.dumps({**vars(args), "json": None, "seconds": seconds, "identical": same}, indent=1) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
