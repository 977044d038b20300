#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What a death costs a reduction in order of arrival, in virtual time (banyan_sim): each rank in turn is killed at
several moments of the third call; the others agree, shrink, and take the call again. Every result is checked, and
that its contributors are all who are left. Prints the table of perf/RESULTS.md.

usage: perf/arrival_kill.py BUILD [--ranks 8] [--size 64M] [--gbps 1] [--moments .02,.25,.5,.75,.98] [--victims 0,1,...]
                            [--calls reduce]"""
import argparse
import glob
import os
import re
import statistics
import subprocess
import sys

TIME = re.compile(r"bytes: ([\d.]+) us")
ARRIVALS = {"all ready": [], "one 20 ms late": ["--late", "20", "--late-rank", "3"]}


def run(args, call, arrivals, kill):
    """Milliseconds from the first rank's call to the last return, of the call that was taken again."""
    sim = glob.glob(os.path.join(args.build, "**", "banyan_sim"), recursive=True)[0]
    command = [sim, "--library", os.path.join(os.path.abspath(args.build), "libbanyan.so"), "--ranks", str(args.ranks), "--gbps", str(args.gbps),
               "--latency", "50", "--ops", "3", "--survive", "--schedule", "arrival", *ARRIVALS[arrivals], *(["--kill", kill] if kill else []), call, args.size]
    out = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ, BANYAN_LINK_GBPS=str(args.gbps)))
    found = TIME.search(out.stdout)
    if out.returncode or not found:
        sys.exit(f"{' '.join(command)} failed:\n{out.stdout}{out.stderr}")
    return float(found.group(1)) / 1e3


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("build")
    p.add_argument("--ranks", type=int, default=8)
    p.add_argument("--size", default="64M")
    p.add_argument("--gbps", type=float, default=1)
    p.add_argument("--moments", default=".02,.25,.5,.75,.98", help="of the time without a death")
    p.add_argument("--victims", help="those of all ranks that are killed, in turn (all)")
    p.add_argument("--calls", default="reduce")
    args = p.parse_args()
    victims = [int(r) for r in args.victims.split(",")] if args.victims else range(args.ranks)
    print("| call | arrivals | nobody dies | killed at | median of the victims | most | most, times nobody dies |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for call in args.calls.split(","):
        for arrivals in ARRIVALS:
            free = run(args, call, arrivals, None)
            for moment in map(float, args.moments.split(",")):
                times = [run(args, call, arrivals, f"{r}@{moment * free:.3f}") for r in victims]
                print(f"| {call} {args.size} | {arrivals} | {free:.0f} | {moment * free:.0f} | {statistics.median(times):.0f} | {max(times):.0f} | "
                      f"{max(times) / free:.2f} |", flush=True)


if __name__ == "__main__":
    main()
