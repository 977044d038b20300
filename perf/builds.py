#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Two builds of banyan beside each other, interleaved: has a change made allreduce over shared memory faster or slower? Hosts drift by a quarter
within a day, so tables of different hours do not tell. Prints a table: medians (least .. most) of the rounds, and new / old.
Usage: perf/builds.py OLD_BUILD NEW_BUILD [--ranks 2] [--sizes 4,64,1K,32K,256K,1M,16M] [--rounds 7]"""
import argparse
import os
import statistics
import subprocess
import sys

UNIT = {"K": 1 << 10, "M": 1 << 20}


def size_of(text):
    return int(text[:-1]) * UNIT[text[-1]] if text[-1] in UNIT else int(text)


def once(build, ranks, size, mem):
    """Microseconds of one operation, the median of many."""
    n = max(20, min(5000, (64 << 20) // size_of(size)))
    p = subprocess.run([os.path.join(build, "perf/banyan_perf"), "allreduce", "-P", str(ranks), "-b", size, "-e", size, "-n", str(n), "-w", "10",
                        "-c", "0", "--mem", mem, "--inplace", "1", "--no-roofline"], capture_output=True, text=True, timeout=120)
    rows = [line.split() for line in p.stdout.splitlines() if line and not line.startswith("#")]
    if p.returncode or not rows:
        sys.exit(f"builds.py: {build}: banyan_perf ended with {p.returncode}: {p.stderr.strip()[-300:]}")
    return float(rows[0][5])


def shown(times):
    return f"{statistics.median(times):.4g} ({min(times):.4g} .. {max(times):.4g})"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("old")
    a.add_argument("new")
    a.add_argument("--ranks", type=int, default=2)
    a.add_argument("--sizes", default="4,64,1K,32K,256K,1M,16M")
    a.add_argument("--rounds", type=int, default=7)
    o = a.parse_args()
    print("| size | memory | old us | new us | new / old |\n|---|---|---:|---:|---:|")
    for size in o.sizes.split(","):
        for mem in ("malloc", "banyan"):
            times = {o.old: [], o.new: []}
            for _ in range(o.rounds):
                for build in times:
                    times[build].append(once(build, o.ranks, size, mem))
            ratio = statistics.median(times[o.new]) / statistics.median(times[o.old])
            print(f"| {size} | {mem} | {shown(times[o.old])} | {shown(times[o.new])} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
