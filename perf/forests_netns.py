#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Forests on real ranks: network namespaces joined by shaped links (scripts/netns-cluster), wall-clock times of allreduce against
the ring's and against the prediction. Schedules take turns, so that what else the machine does hits all alike.

    perf/forests_netns.py BUILD [--sizes 4M,16M] [--rounds 5] [--iters 3] [--cases torus,star,leaf] [--json FILE]
    perf/forests_netns.py BUILD --probe       plans for a graph that banyan_topo probe has measured, beside those for the given one

Prints the table of perf/RESULTS.md; times are medians of the rounds, with the least and the largest; CPUs are what the job kept busy on the
mean, start-up included."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "..", "scripts", "netns-cluster")
MBIT = 1e6 / 8 / 1e9  # GB/s
SHUFFLED = [0, 4, 1, 5, 2, 6, 3, 7]  # every edge of the ring crosses the spine: the worst order
RANDOM = [5, 0, 3, 6, 1, 7, 2, 4]


def order(hosts):
    return ",".join(map(str, hosts))


def graph(folder, name, ranks, switches, edges):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write("@rank " + " ".join(ranks) + "\n")
        if switches:
            f.write("@switch " + " ".join(switches) + "\n")
        for a, b, mbit in edges:
            f.write(f"{a} {b} {mbit * MBIT:.9g}\n")
    return path


def torus(folder):
    edges = []
    for v in range(9):
        x, y = divmod(v, 3)
        edges += [(f"h{v}", f"h{x * 3 + (y + 1) % 3}", 100), (f"h{v}", f"h{(x + 1) % 3 * 3 + y}", 100)]
    topo = graph(folder, "torus", [f"h{v}" for v in range(9)], [], edges)
    best = "0,1,2,5,3,4,7,8,6"
    runs = [("ring, best order", ["--schedule", "ring"], best, None),
            ("multitree", ["--schedule", "multitree"], None, topo), ("packed", ["--schedule", "packed"], None, topo),
            ("mirrored bucket", ["--schedule", "torus_bucket"], None, topo), ("auto", [], None, topo)]
    return "3x3 torus, 100 Mbit/s a link", "torus:3x3:100", runs


def star(folder):
    rates = [100] * 4 + [25] * 4
    topo = graph(folder, "star", [f"h{v}" for v in range(8)], ["s"], [(f"h{v}", "s", r) for v, r in enumerate(rates)])
    runs = [("ring (equal shards)", ["--schedule", "ring"], None, None),
            ("reduce-scatter + allgather, direct", ["--schedule", "star"], None, None),
            ("packed", ["--schedule", "packed"], None, topo), ("joint", ["--schedule", "joint"], None, topo),
            ("auto", [], None, topo)]
    return "star, 4 x 100 + 4 x 25 Mbit/s", "star:100*4,25*4", runs


def leaf(folder):
    """Two leaves of 4 hosts at 100 Mbit/s, 200 Mbit/s upwards: 2:1. Rank r is on host order[r]."""
    def topo(name, hosts):
        edges = [(f"h{h}", f"leaf{h // 4}", 100) for h in range(8)] + [("leaf0", "spine", 200), ("leaf1", "spine", 200)]
        return graph(folder, name, [f"h{h}" for h in hosts], ["leaf0", "leaf1", "spine"], edges)

    worst, some, ordered = topo("worst", SHUFFLED), topo("random", RANDOM), topo("ordered", range(8))
    runs = [("ring, ordered", ["--schedule", "ring"], None, None), ("auto, ordered", [], None, ordered),
            ("ring, random order", ["--schedule", "ring"], order(RANDOM), None), ("auto, random order", [], order(RANDOM), some),
            ("ring, worst order", ["--schedule", "ring"], order(SHUFFLED), None),
            ("ordered_ring, worst order", ["--schedule", "ordered_ring"], order(SHUFFLED), worst),
            ("auto, worst order", [], order(SHUFFLED), worst)]
    return "2 leaves x 4 hosts, 2:1 oversubscribed", "leaf:2x4:100:200", runs


CASES = {"torus": torus, "star": star, "leaf": leaf}


def measure(args, net, size, options, hosts, topo):
    command = [CLUSTER, "--net", net, "--timeout", "120"] + (["--order", hosts] if hosts else [])
    command += ["--", os.path.join(args.build, "perf", "banyan_perf"), "allreduce", "-b", size, "-e", size, "-w", "1", "-n", str(args.iters),
                "--inplace", "0", "--no-roofline", *options] + (["--topo", topo] if topo else ["--chunk", "32K"])
    start, before = time.monotonic(), os.times()
    p = subprocess.run(command, capture_output=True, text=True, timeout=180, env={**os.environ, "BANYAN_DEBUG": "info"})
    wall, after = time.monotonic() - start, os.times()
    row = re.search(r"^ +(\d+) +(\d+) +\S+ +\S+ +-?\d+ +([\d.]+)", p.stdout, re.M)
    if p.returncode or not row or "# Out of bounds values : 0 OK" not in p.stdout:
        sys.exit(f"{' '.join(command)} failed:\n{p.stdout}{p.stderr}")
    plan = re.search(rf"rank 0: info: plan: allreduce of {row.group(2)} f32 .*schedule (\S+), .*predicted (\S+) us", p.stderr)
    cpus = (after.children_user + after.children_system - before.children_user - before.children_system) / wall
    return float(row.group(3)) / 1e6, plan.group(1), float(plan.group(2)) / 1e6, cpus


def probed(args, net, hosts, path):
    """A graph that banyan_topo probe measures on the same ranks."""
    command = [CLUSTER, "--net", net, "--timeout", "150"] + (["--order", hosts] if hosts else [])
    p = subprocess.run(command + ["--", os.path.join(args.build, "tools", "banyan_topo"), "probe", "-o", path], capture_output=True,
                       text=True, timeout=170)
    if p.returncode:
        sys.exit(f"probe of {net} failed:\n{p.stdout}{p.stderr}")
    return path


def run_case(args, case, size, folder):
    title, net, runs = CASES[case](folder)
    if args.probe:
        name, options, hosts, _ = next(r for r in reversed(runs) if r[3])
        runs.append((name.replace("auto", "auto, measured graph"), options, hosts,
                     probed(args, net, hosts, os.path.join(folder, f"{case}.json"))))
    times = {name: [] for name, *_ in runs}
    plans = {}
    for _ in range(args.rounds):
        for name, options, hosts, topo in runs:
            seconds, *plans[name] = measure(args, net, size, options, hosts, topo)
            times[name].append(seconds)
    first = statistics.median(times[runs[0][0]])
    rows = []
    for name, *_ in runs:
        t = statistics.median(times[name])
        schedule, predicted, cpus = plans[name]
        rows.append({"case": title, "size": size, "name": name, "schedule": schedule, "seconds": t, "least": min(times[name]),
                     "most": max(times[name]), "ratio": first / t, "predicted": predicted or None,
                     "cpus": cpus, "error": t / predicted - 1 if predicted and name != runs[0][0] else None})
        r = rows[-1]
        known = f"{r['predicted']:.3f} s | {100 * r['error']:+.0f} %" if r["error"] is not None else " | "
        print(f"| {size} | {name} | {schedule} | {t:.3f} s ({r['least']:.3f} .. {r['most']:.3f}) | {r['ratio']:.2f} | {known} | {cpus:.2f} |",
              flush=True)
    return rows


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--sizes", default="4M,16M")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--iters", type=int, default=3, help="of a round")
    p.add_argument("--cases", default="torus,star,leaf")
    p.add_argument("--probe", action="store_true", help="also with a graph that banyan_topo probe measures first")
    p.add_argument("--json")
    args = p.parse_args()
    probe = subprocess.run([CLUSTER, "--probe"], capture_output=True, text=True)
    if probe.returncode:
        sys.exit(probe.stderr.strip())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in args.cases.split(","):
            print(f"\n{CASES[case](folder)[0]}\n\n| bytes | what | schedule | time (least .. most) | faster by | predicted | off by | CPUs |"
                  "\n|---|---|---|---|---|---|---|---|")
            for size in args.sizes.split(","):
                rows += run_case(args, case, size, folder)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"load": os.getloadavg(), "cpus": os.cpu_count(), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
