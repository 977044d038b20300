#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What it costs to protect tcp data: two ranks over loopback with BANYAN_INTEGRITY=plain, mac and encrypt, interleaved.

    perf/tcp_integrity.py BUILD [--rounds 5] [--sizes 8,4K,64K,1M,16M] [--collective sendrecv]

A row is a size: median over the rounds of the medians of banyan_perf, microseconds of the slowest rank; GB/s of the user's data; the ratio to plain;
and the least processor time of an operation, which also holds beside other programs, in ns a byte of each rank's data.
The ciphers that encrypt took are printed last (level info tells)."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

MODES = ["plain", "mac", "encrypt"]


def size_of(text):
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * unit[text[-1]] if text[-1] in unit else int(text)


def once(perf, collective, size, mode, said):
    n = "100" if size <= 32 << 10 else "50" if size <= 1 << 20 else "10"
    p = subprocess.run([perf, collective, "-P", "2", "--transport", "tcp", "-b", str(size), "-e", str(size), "-n", n, "-c", "0", "--inplace", "0",
                        "--no-roofline", "-J", "-"], capture_output=True, text=True, timeout=120,
                       env={**os.environ, "BANYAN_INTEGRITY": mode, "BANYAN_DEBUG": "info"})
    if p.returncode:
        sys.exit(f"{mode}, {size} bytes: {p.stdout}{p.stderr}")
    said.update(re.findall(r"tcp: data are protected by ([\w-]+)", p.stderr))
    row = json.loads([line for line in p.stdout.splitlines() if line.startswith("{")][-1])
    return row["time_us"]["median"], row["cpu_s"] * 1e9 / (row["iters"] * 2 * size)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--sizes", default="8,4K,64K,1M,16M")
    p.add_argument("--collective", default="sendrecv")
    args = p.parse_args()
    said = set()
    print("| size | " + " | ".join(f"{m} us | GB/s" for m in MODES) + " | mac / plain | encrypt / plain | " +
          " | ".join(f"{m} ns/B" for m in MODES) + " |")
    print("|" + "---|" * 12)
    for text in args.sizes.split(","):
        size, runs = size_of(text), {m: [] for m in MODES}
        for r in range(args.rounds):
            for m in MODES[r % 3:] + MODES[:r % 3]:
                runs[m].append(once(os.path.join(args.build, "perf/banyan_perf"), args.collective, size, m, said))
        us = {m: statistics.median(run[0] for run in runs[m]) for m in MODES}
        print(f"| {text} | " + " | ".join(f"{us[m]:.1f} | {size / us[m] * 1e-3:.3f}" for m in MODES) +
              f" | {us['mac'] / us['plain']:.2f} | {us['encrypt'] / us['plain']:.2f} | " +
              " | ".join(f"{min(run[1] for run in runs[m]):.2f}" for m in MODES) + " |", flush=True)
    print("\nciphers:", ", ".join(sorted(said)))


main()
