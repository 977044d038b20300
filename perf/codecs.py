#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs banyan_codec some times and prints, per codec, loop and instruction set, the median time as a multiple of
memcpy's of the same run, with the spread, beside the figure wanted. Exit status 1 when a wanted figure is missed."""
import argparse
import json
import statistics
import subprocess

# (codec, kernel): at most this many times memcpy in cache; AVX2 where it may differ.
WANTED = {
    ("int8", "encode"): {"avx512": 2.5, "avx2": 3.5},
    ("int8", "encode_ef"): {"avx512": 4, "avx2": 4},
    ("int8", "decode_add"): {"avx512": 1.3, "avx2": 1.3},
    ("int8", "owner"): {"avx512": 3.5, "avx2": 3.5},
    ("e4m3", "encode"): {"avx512": 4, "avx2": 5},
    ("bf16", "encode"): {"avx512": 1.3, "avx2": 1.3},
    ("sign", "encode_ef"): {"avx512": 2.5, "avx2": 2.5},
    ("-", "select_1%"): {"avx512": 1.5, "avx2": 1.5},
}
# From memory: at least memcpy's rate.
WANTED_DRAM = {("int8", "encode"), ("f16", "encode"), ("bf16", "encode"), ("-", "select_1%")}


def wanted(row):
    key = (row["codec"], row["kernel"])
    if row["where"] == "cache":
        return WANTED.get(key, {}).get(row["isa"])
    return 1 if key in WANTED_DRAM and row["isa"] != "scalar" else None


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("program", help="the banyan_codec to run")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--all", action="store_true", help="also rows without a wanted figure")
    ap.epilog = "Other options go to banyan_codec."
    args, options = ap.parse_known_args()
    rows = {}
    for _ in range(args.runs):
        text = subprocess.run([args.program, "--json", *options], check=True, capture_output=True, text=True).stdout
        for line in text.splitlines():
            row = json.loads(line)
            rows.setdefault((row["codec"], row["kernel"], row["isa"], row["where"]), []).append(row)
    missed = 0
    print("| codec | loop | isa | where | GB/s | memcpy | x memcpy (min-max) | wanted |\n|---|---|---|---|---|---|---|---|")
    for key, same in rows.items():
        want = wanted(same[0])
        times = [r["times_memcpy"] for r in same]
        middle = statistics.median(times)
        if want is None and not args.all:
            continue
        missed += want is not None and middle > want
        print("| %s | %s | %s | %s | %.1f | %.1f | %.2f (%.2f-%.2f) | %s |" % (
            *key, statistics.median(r["GBps"] for r in same), statistics.median(r["memcpy_GBps"] for r in same), middle,
            min(times), max(times), "" if want is None else "%g%s" % (want, "" if middle <= want else " missed")))
    return missed > 0


if __name__ == "__main__":
    raise SystemExit(main())
