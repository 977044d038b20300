#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Uploads of ordered and lazy gradients until the loss of a logistic regression is 1e-6 above its optimum: 9 ranks, each a
worker with its own data (train_lazy.c), several seeds, the numbers that others have beside ours.

    perf/train_lazy.py BUILD [--seeds 1,2,3] [--rules gd,lag,chb,r1,r2] [--data both|heterogeneous|homogeneous]
                       [--json FILE] [--check]

Counts depend on seeds, not on timing; seconds are of this machine. --check exits with 1 unless every seed of the heterogeneous
data has gd > 30000, lag <= 800 and r2 <= lag uploads, and all runs reached the gap."""
import argparse
import json
import os
import statistics
import subprocess
import sys

RULES = {"gd": "every rank, each step", "lag": "LAG-WK", "chb": "censored heavy ball", "r1": "ordered R1", "r2": "ordered R2"}
# Uploads of two seeds, numpy, by the same rules: problem of the same smoothness constants and gap, other data.
THEIRS = {("heterogeneous", "gd"): [34569, 33669], ("heterogeneous", "lag"): [681, 581], ("heterogeneous", "r1"): [689, 564],
          ("heterogeneous", "r2"): [608, 475], ("homogeneous", "gd"): [4959, 4419], ("homogeneous", "lag"): [333, 319],
          ("homogeneous", "r1"): [336, 303], ("homogeneous", "r2"): [239, 210]}
RANKS, GAP = 9, 1e-6


def train(program, rule, seed, data):
    """The fields of the result line."""
    command = [program, "-P", str(RANKS), "--rule", rule, "--seed", str(seed), "--gap", str(GAP)]
    command += ["--homogeneous"] if data == "homogeneous" else []
    p = subprocess.run(command, capture_output=True, text=True, timeout=900)
    lines = [line for line in p.stdout.splitlines() if line.startswith("result ")]
    if p.returncode or not lines:
        sys.exit(f"{' '.join(command)} failed ({p.returncode}):\n{p.stdout[-500:]}{p.stderr[-1000:]}")
    fields = dict(x.split("=", 1) for x in lines[-1].split()[1:])
    return {k: v if k == "rule" else float(v) for k, v in fields.items()}


def spread(values):
    low, high = min(values), max(values)
    return f"{statistics.median(values):.0f}" + (f" ({low:.0f}-{high:.0f})" if low != high else "")


def row(data, rule, runs):
    def all_of(field):
        return [r[field] for r in runs]

    return {"data": data, "rule": rule, "title": RULES[rule], "seeds": [int(r["seed"]) for r in runs],
            "uploads": [int(u) for u in all_of("uploads")], "uploads_median": statistics.median(all_of("uploads")),
            "theirs": THEIRS.get((data, rule)), "steps": [int(s) for s in all_of("steps")],
            "silent": [int(s) for s in all_of("silent")], "gap_max": max(all_of("gap")),
            "upload_bytes": [int(b) for b in all_of("upload_bytes")], "norms_bytes": [int(b) for b in all_of("norms_bytes")],
            "seconds": statistics.median(all_of("seconds"))}


def show(rows):
    print("| data | rule | uploads | theirs | steps | without upload | kB of gradients | kB of norms | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        theirs = "/".join(map(str, r["theirs"])) if r["theirs"] else "-"
        print(f"| {r['data']} | {r['title']} | {spread(r['uploads'])} | {theirs} | {spread(r['steps'])} | {spread(r['silent'])} "
              f"| {statistics.median(r['upload_bytes']) / 1e3:.0f} | {statistics.median(r['norms_bytes']) / 1e3:.0f} | {r['seconds']:.2f} |")


def check(rows):
    """Sentences about what is wrong."""
    by = {r["rule"]: r for r in rows if r["data"] == "heterogeneous"}
    wrong = [f"{r['data']} {r['rule']}: gap {r['gap_max']:.3g}" for r in rows if not r["gap_max"] <= GAP]
    for i, seed in enumerate(next(iter(by.values()))["seeds"] if by else []):
        uploads = {rule: by[rule]["uploads"][i] for rule in ("gd", "lag", "r2") if rule in by}
        if not uploads.get("gd", 0) > 30000:
            wrong.append(f"seed {seed}: gd takes {uploads.get('gd')} uploads, not more than 30000")
        if not uploads.get("lag", 1e9) <= 800:
            wrong.append(f"seed {seed}: lag takes {uploads.get('lag')} uploads, not 800 or less")
        if not uploads.get("r2", 1e9) <= uploads.get("lag", 0):
            wrong.append(f"seed {seed}: r2 takes {uploads.get('r2')} uploads, lag {uploads.get('lag')}")
    return wrong if by else wrong + ["nothing heterogeneous was run"]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("build")
    a.add_argument("--seeds", default="1,2,3")
    a.add_argument("--rules", default=",".join(RULES))
    a.add_argument("--data", default="both", choices=["both", "heterogeneous", "homogeneous"])
    a.add_argument("--json")
    a.add_argument("--check", action="store_true")
    a = a.parse_args()
    program = a.build if os.path.isfile(a.build) else os.path.join(a.build, "perf", "train_lazy")
    rules, rows = a.rules.split(","), []
    for name in rules:
        if name not in RULES:
            sys.exit(f"--rules: no rule {name}; there are {', '.join(RULES)}")
    for data in ["heterogeneous", "homogeneous"] if a.data == "both" else [a.data]:
        for rule in rules:
            rows.append(row(data, rule, [train(program, rule, int(s), data) for s in a.seeds.split(",")]))
    show(rows)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump({"ranks": RANKS, "gap": GAP, "rows": rows}, f, indent=1)
            f.write("\n")
    wrong = check(rows) if a.check else []
    for sentence in wrong:
        print("not as expected:", sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
