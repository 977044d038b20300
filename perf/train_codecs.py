#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What codecs do to training: train_digits with each codec, several seeds, a table of loss, accuracy and wire bytes.

    perf/train_codecs.py BUILD [--setting teacher,heavy,digits] [--seeds 1,2,3] [--codecs none,topk] [--jobs 2]
                         [--json FILE] [--svg FILE]

All figures but the time are the same on every machine with the same instruction set: losses depend on seeds, not on
timing. Ranks are processes of this machine, 4 of them; encoding is forced (no codec pays in shared memory)."""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PLOT = os.path.join(HERE, "..", "tools", "banyan_plot")
SETTINGS = {
    "teacher": ["--model", "teacher"],
    # A rate and a number of steps at which the heaviest codecs clearly lose.
    "heavy": ["--model", "teacher", "--rate", "0.15", "--epochs", "30"],
    "digits": ["--model", "digits"],
}
# (name in the table, codec, feedback)
CODECS = [
    ("dense", "none", 1), ("lossless", "lossless", 1), ("bf16", "bf16", 1), ("int8", "int8", 1), ("int8, no EF", "int8", 0),
    ("int4", "int4", 1), ("int4, no EF", "int4", 0), ("mxfp4", "mxfp4", 1), ("int2", "adaq:error=1", 1), ("int2, no EF", "adaq:error=1", 0),
    ("eden 2 bits, no EF", "eden:bits=2", 0), ("terngrad, no EF", "terngrad", 0), ("qsgd s=1", "qsgd:levels=1", 1),
    ("qsgd s=1, no EF", "qsgd:levels=1", 0), ("natural, no EF", "natural", 0), ("onebit", "onebit", 1),
    ("onebit, no EF", "onebit", 0), ("sign", "sign", 1), ("sign, no EF", "sign", 0),
    ("top-k 10 %", "topk:delta=0.1", 1), ("top-k 10 %, no EF", "topk:delta=0.1", 0),
    ("top-k 1 %", "topk:delta=0.01", 1), ("top-k 1 %, no EF", "topk:delta=0.01", 0),
    ("top-k 0.1 %", "topk:delta=0.001", 1), ("top-k 0.1 %, no EF", "topk:delta=0.001", 0),
    ("top-k 0.05 %", "topk:delta=0.0005", 1), ("gtop-k 1 %", "topk:delta=0.01,reselect=1", 1),
    ("DGC 1 %", "dgc:delta=0.01", 1), ("DGC 0.1 %", "dgc:delta=0.001", 1), ("adacomp", "adacomp", 1),
    ("wangni 10 %, no EF", "wangni:delta=0.1", 0), ("random-k 10 %", "randomk:delta=0.1,block=1", 1),
    ("random-k 1 %", "randomk:delta=0.01,block=1", 1), ("PowerSGD r1", "powersgd:rank=1", 1),
    ("PowerSGD r1, no EF", "powersgd:rank=1", 0), ("PowerSGD r4", "powersgd:rank=4", 1),
    ("PowerSGD r4, no EF", "powersgd:rank=4", 0), ("count sketch", "sketch", 1),
]


def train(program, options, codec, feedback, seed, timeout=900):
    """The fields of the result line."""
    command = [program, "-P", "4", *options, "--seed", str(seed), "--codec", codec] + ([] if feedback else ["--no-feedback"])
    p = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    lines = p.stdout.splitlines()
    if p.returncode or not lines or not lines[-1].startswith("result "):
        sys.exit(f"{' '.join(command)} failed ({p.returncode}):\n{p.stdout[-500:]}{p.stderr}")
    return dict(x.split("=", 1) for x in lines[-1].split()[1:])


def summary(setting, name, codec, feedback, results):
    def all_of(field):
        return [float(r[field]) for r in results]

    loss, wire = all_of("loss"), statistics.mean(all_of("wire_bytes"))
    diverges = any(x != x for x in loss)
    return {"setting": setting, "codec": codec, "feedback": feedback, "title": name,
            "loss": None if diverges else statistics.median(loss),
            "loss_min": min(loss), "loss_max": max(loss), "accuracy": 100 * statistics.mean(all_of("test_accuracy")),
            "wire_bytes": wire, "ratio": all_of("raw_bytes")[0] / wire, "seeds": [int(r["seed"]) for r in results],
            "identical": all(r["identical"] == "1" for r in results)}


def plot(rows, path):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        for r in (r for r in rows if r["loss"]):
            kind = "dense" if r["codec"] == "none" else "with feedback" if r["feedback"] else "without feedback"
            label = r["title"].replace(", no EF", "")
            f.write(json.dumps({"name": kind, "label": label, "ratio": r["ratio"], "loss": r["loss"]}) + "\n")
        f.flush()
        subprocess.run([sys.executable, PLOT, f.name, "--x", "ratio", "--y", "loss", "--points", "--xlabel",
                        "raw bytes / wire bytes", "--ylabel", "train loss (median of seeds)", "--title",
                        "Training with codecs: loss against compression", "-o", path], check=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build")
    ap.add_argument("--setting", default="teacher,heavy,digits", help=", ".join(SETTINGS))
    ap.add_argument("--seeds", default="1,2,3")
    ap.add_argument("--codecs", help="names of codecs; all")
    ap.add_argument("--options", default="", help="more options of train_digits")
    ap.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    ap.add_argument("--json", help="write an object a line there")
    ap.add_argument("--svg", help="of the first setting")
    args = ap.parse_args()
    program = os.path.join(args.build, "examples", "train_digits")
    wanted = args.codecs.split(",") if args.codecs else None
    codecs = [c for c in CODECS if not wanted or c[1].split(":")[0] in wanted]
    seeds, rows = [int(s) for s in args.seeds.split(",")], []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for setting in args.setting.split(","):
            options = SETTINGS[setting] + args.options.split()
            runs = {(c, s): pool.submit(train, program, options, c[1], c[2], s) for c in codecs for s in seeds}
            print(f"\n{setting}: `train_digits -P 4 {' '.join(options)}`, seeds {args.seeds}\n\n"
                  "| codec | train loss (min .. max) | test accuracy % | wire bytes a step | ratio |\n|---|---:|---:|---:|---:|")
            for c in codecs:
                r = summary(setting, *c, [runs[c, s].result() for s in seeds])
                rows.append(r)
                loss = f"{r['loss']:.4f} ({r['loss_min']:.4f} .. {r['loss_max']:.4f})" if r["loss"] else "diverges"
                print(f"| {r['title']} | {loss} | {r['accuracy']:.2f} | {r['wire_bytes']:.0f} | {r['ratio']:.1f} |", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    if args.svg:
        plot([r for r in rows if r["setting"] == rows[0]["setting"]], args.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
