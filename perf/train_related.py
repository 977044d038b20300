#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Related systems in real trainings, beside dense: losses, accuracy and bytes over several seeds, with what the papers claim.

    perf/train_related.py BUILD [--parts gossip,graph,sketch,stale,study] [--seeds 1,2,3] [--rate MBIT] [--json FILE] [--svg FILE] [--check]
    perf/train_related.py --rows FILE,FILE --svg FILE           the picture of what earlier runs wrote with --json

gossip   train_digits on 8 ranks: plain and PowerGossip on graphs, no allreduce at all; with --rate also seconds on links of that
         rate (scripts/netns-cluster, its `ring`: a link to each neighbour alone)
graph    train_graph on 4 ranks: dense, cached and variable exchange of features and their gradients, parts that are communities or mixed
sketch   train_digits, a network on examples that a random one has labelled, on 4 ranks: count sketches of rows and cells, beside dense and
         top-k
stale    the same, smaller: gradients some steps old, and of K of n ranks, lost or late
study    the same: what sparse communication depends on; blocks, layers, own or shared indices, momentum

Losses and bytes depend on seeds (and on the instruction set), not on timing. --check: exit status 1 where an aim is missed."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from train_methods import middle, table

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "..", "scripts", "netns-cluster")
PLOT = os.path.join(HERE, "..", "tools", "banyan_plot")
FAMILIES = ["plain gossip", "PowerGossip", "dense, int8", "cached", "variable", "top-k", "FetchSGD", "Adam type"]  # those in the picture


def run(command, timeout=1200, diverges=False):
    """The fields of the line that begins with `result`; None: numbers grew beyond all bounds, where that may be."""
    p = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if diverges and p.returncode and "no finite number" in p.stderr:
        return None
    line = next((x for x in p.stdout.splitlines() if x.startswith("result ")), None)
    if p.returncode or not line:
        sys.exit(f"{' '.join(command)} failed ({p.returncode}):\n{p.stdout[-500:]}{p.stderr[-2000:]}")
    return {k: v for k, v in (x.split("=", 1) for x in line.split()[1:] if "=" in x)}


class Bench:
    def __init__(self, args):
        self.args, self.rows, self.missed = args, [], []
        self.seeds = [int(s) for s in args.seeds.split(",")]

    def program(self, name):
        return os.path.join(self.args.build, "examples", name)

    def local(self, program, ranks, options, seed, diverges=False):
        return run([self.program(program), "-P", str(ranks), *options, "--seed", str(seed)], diverges=diverges)

    def shaped(self, net, program, options, seed):
        return run([CLUSTER, "--net", net, "--timeout", "1100", "--", self.program(program), *options, "--seed", str(seed)])

    def keep(self, part, title, fields):
        self.rows.append({"part": part, "title": title, **fields})

    def aim(self, text, met):
        print(f"\n{'Met' if met else 'MISSED'}: {text}", flush=True)
        if not met:
            self.missed.append(text)


def median(values):
    return statistics.median(float(v) for v in values)


# ---- gossip --------------------------------------------------------------------------------------

GOSSIP = [  # title, options
    ("allreduce", "--controller calls"),
    ("plain gossip, ring", "--controller gossip --low-rank 0"),
    ("plain gossip, ring, a round a step", "--controller gossip --low-rank 0 --rounds 1"),
    ("PowerGossip r1, ring", "--controller gossip --low-rank 1"),
    ("PowerGossip r1, ring, 2 iterations", "--controller gossip --low-rank 1 --iterations 2"),
    ("PowerGossip r2, ring", "--controller gossip --low-rank 2"),
    ("PowerGossip r2, ring, a round a step", "--controller gossip --low-rank 2 --rounds 1"),
    ("PowerGossip r2, torus:4x2", "--controller gossip --low-rank 2 --graph torus:4x2"),
    ("PowerGossip r1, exponential", "--controller gossip --low-rank 1 --graph exponential"),
    ("PowerGossip r2, exponential, a round a step", "--controller gossip --low-rank 2 --graph exponential --rounds 1"),
    ("PowerGossip r2, random:degree=3", "--controller gossip --low-rank 2 --graph random:degree=3"),
]


def gossip(b):
    ranks, runs, rows = 8, {}, []
    for title, text in GOSSIP:
        runs[title] = [b.local("train_digits", ranks, text.split(), s) for s in b.seeds]
    dense = runs["allreduce"]
    bound = float(dense[0]["raw_bytes"])  # of a rank and step: 2 (n-1)/n of all gradients in f32, what no dense allreduce goes below
    for title, text in GOSSIP:
        rs = runs[title]
        ratio = [float(r["loss"]) / float(d["loss"]) for r, d in zip(rs, dense)]
        sent = [float(r["step_bytes"]) for r in rs] if "step_bytes" in rs[0] else [bound]
        part = median(sent) / bound
        fields = {"loss": [float(r["loss"]) for r in rs], "ratio": ratio, "bytes_part": part, "accuracy": [float(r["test_accuracy"]) for r in rs],
                  "consensus": [float(r.get("consensus", 0)) for r in rs]}
        row = [title, middle(fields["loss"]), f"{median(ratio):.2f}", middle((100 * a for a in fields["accuracy"]), "{:.1f}"),
               f"{100 * median(fields['consensus']):.2f}", f"{median(sent):.0f}", f"{100 * part:.1f}"]
        if b.args.rate:
            fields["seconds"] = [float(b.shaped(f"ring:{ranks}:{b.args.rate}", "train_digits", text.split(), s)["seconds"])
                                 for s in b.seeds[:1]]
            row.append(f"{median(fields['seconds']):.2f}")
        rows.append(row)
        b.keep("gossip", title, fields)
    table(f"Gossip: `train_digits`, 20 epochs of 23 steps, {ranks} ranks, seeds {b.args.seeds}; dense bytes are the least that an allreduce sends",
          ["exchange", "train loss", "of dense's", "accuracy %", "consensus distance, %", "bytes a rank and step", "% of dense's"]
          + ([f"seconds at {b.args.rate} Mbit/s"] if b.args.rate else []), rows)
    good = [r["title"] for r in b.rows if r["part"] == "gossip" and r["title"].startswith("PowerGossip") and "ring" in r["title"]
            and r["bytes_part"] <= 0.1 and median(r["ratio"]) <= 1.05]
    b.aim("PowerGossip on a ring of 8 reaches dense's loss within 5 % with at most a tenth of its bytes: " + (", ".join(good) or "none"),
          bool(good))


# ---- rows of a graph -----------------------------------------------------------------------------

ROWS = [  # title, options
    ("dense", ""), ("dense, int8", "--bits 8"), ("cached", "--exchange cached"), ("cached, int8", "--exchange cached --bits 8"),
    ("cached, up to 0.5, int8", "--exchange cached --most 0.5 --bits 8"),
    ("variable, full at the end", "--exchange variable --slope 1"), ("variable, full at half", "--exchange variable --slope 2"),
    ("variable, full at half, int8", "--exchange variable --slope 2 --bits 8")]


def graph(b):
    ranks = 4
    for epochs in 40, 200:
        rows, good = [], []
        for where in [], ["--mixed"]:
            runs = {t: [b.local("train_graph", ranks, [*o.split(), *where, "--epochs", str(epochs)], s) for s in b.seeds] for t, o in ROWS}
            for title, _ in ROWS:
                rs = runs[title]
                part = [float(r["bytes"]) / float(r["dense_bytes"]) for r in rs]
                gap = [100 * (float(r["accuracy"]) - float(d["accuracy"])) for r, d in zip(rs, runs["dense"])]
                sent = [float(r["sent"]) / float(r["rows"]) for r in rs]
                name = title + (", mixed" if where else "")
                rows.append((name, middle(r["loss"] for r in rs), middle((100 * float(r["accuracy"]) for r in rs), "{:.1f}"),
                             middle(gap, "{:+.1f}"), f"{100 * median(sent):.1f}", f"{100 * median(part):.1f}"))
                b.keep("graph", name, {"epochs": epochs, "loss": [float(r["loss"]) for r in rs], "gap": gap, "bytes_part": part, "sent": sent})
                if title.startswith("cached") and max(part) <= 0.5 and min(gap) >= -1:
                    good.append(name)
        table(f"Rows: `train_graph --epochs {epochs}`, {ranks} ranks, 2000 nodes, 8 communities, seeds {b.args.seeds}; CDFGNN: 63 % fewer remote "
              "accesses on average; VARCO: full accuracy for any ratio that falls",
              ["exchange", "loss", "accuracy %", "points from dense", "rows sent, %", "bytes, % of dense's"], rows)
        b.aim(f"{epochs} epochs: the cached exchange sends at most half of dense's bytes at an accuracy within 1 point, at every seed: "
              + (", ".join(good) or "none"), "cached, int8" in good and "cached, int8, mixed" in good)


# ---- sketches ------------------------------------------------------------------------------------

TEACHER = "--model teacher --rate 0.15 --epochs 30".split()
SKETCH = [  # title, options, part of dense's numbers
    ("dense", "--controller buckets", 1.0), ("top-k 5 %, residual", "--controller buckets --codec topk:delta=0.05", None),
    ("FetchSGD, 5 rows, a tenth", "--controller sketch --cells 0.1 --delta 0.01 --sketch-rows 5", 0.1),
    ("FetchSGD, 1 row, a tenth", "--controller sketch --cells 0.1 --delta 0.01", 0.1),
    ("FetchSGD, 5 rows, a quarter", "--controller sketch --momentum 0 --cells 0.25 --delta 0.02 --sketch-rows 5", 0.25),
    ("FetchSGD, 3 rows, a quarter", "--controller sketch --momentum 0 --cells 0.25 --delta 0.02 --sketch-rows 3", 0.25),
    ("FetchSGD, 1 row, a quarter", "--controller sketch --momentum 0 --cells 0.25 --delta 0.02 --sketch-rows 1", 0.25),
    ("FetchSGD, 5 rows, a half", "--controller sketch --momentum 0 --cells 0.5 --delta 0.05 --sketch-rows 5", 0.5),
    ("FetchSGD, 1 row, a half", "--controller sketch --momentum 0 --cells 0.5 --delta 0.05 --sketch-rows 1", 0.5),
    ("Adam type, 5 rows, a half", "--controller sketch --momentum 0 --sketch adam --rate 0.005 --cells 0.5 --delta 0.05 --sketch-rows 5", 0.5),
    ("Adam type, 1 row, a half", "--controller sketch --momentum 0 --sketch adam --rate 0.005 --cells 0.5 --delta 0.05 --sketch-rows 1", 0.5)]


def sketch(b):
    runs = {t: [b.local("train_digits", 4, [*TEACHER, *o.split()], s, True) for s in b.seeds] for t, o, _ in SKETCH}
    wire = median(r["wire_all"] for r in runs["dense"])
    rows = []
    for title, _, part in SKETCH:
        rs = [r for r in runs[title] if r]
        if not rs:
            rows.append((title, "diverges", "", f"{100 * part:.1f}", ""))
            b.keep("sketch", title, {"loss": [], "bytes_part": part})
            continue
        gap = [100 * (float(r["test_accuracy"]) - float(d["test_accuracy"])) for r, d in zip(runs[title], runs["dense"]) if r]
        lost = len(runs[title]) - len(rs)
        part = part or median(r["wire_all"] for r in rs) / wire
        rows.append((title + (f" ({lost} of {len(runs[title])} seeds diverge)" if lost else ""), middle(r["loss"] for r in rs),
                     middle(gap, "{:+.1f}"), f"{100 * part:.1f}", f"{median(r['wire_all'] for r in rs) / 1e6:.0f}"))
        b.keep("sketch", title, {"loss": [float(r["loss"]) for r in rs], "gap": gap, "bytes_part": part,
                                 "wire": [float(r["wire_all"]) for r in rs]})
    table(f"Sketched updates: `train_digits {' '.join(TEACHER)}`, 4 ranks, seeds {b.args.seeds}; FetchSGD: converges as SGD, at 1/sqrt(T), where a "
          "sketch of O(k log d) cells recovers the k that matter; SketchedAMSGrad: O(1/sqrt(nT) + 1/((k/d)^2 T)) with k log d numbers a step",
          ["exchange", "train loss", "accuracy, points from dense", "numbers summed, % of dense's", "MB on the wire"], rows)


# ---- stale and K-of-n updates --------------------------------------------------------------------

SMALL = "--model teacher --hidden 128 --examples 1500 --epochs 20 --rate 0.1".split()
STALE = [("synchronous", "--controller stale --delay 0"), *((f"{d} step{'s' if d > 1 else ''} old", f"--controller stale --delay {d}") for d in (1, 2, 4, 8)),
         ("3 of 4 ranks, the others lost", "--controller stale --delay 0 --k 3"), ("2 of 4, lost", "--controller stale --delay 0 --k 2"),
         ("1 of 4, lost", "--controller stale --delay 0 --k 1"), ("3 of 4, late", "--controller stale --delay 0 --k 3 --late"),
         ("2 of 4, late", "--controller stale --delay 0 --k 2 --late"), ("1 of 4, late", "--controller stale --delay 0 --k 1 --late"),
         ("2 of 4, late, 2 steps old", "--controller stale --delay 2 --k 2 --late")]


def compare(b, part, title, cases, base, heads):
    """Losses, accuracy and bytes of cases (title, options) beside the first."""
    runs = {t: [b.local("train_digits", 4, [*base, *o.split()], s, True) for s in b.seeds] for t, o in cases}
    first, rows = runs[cases[0][0]], []
    for name, _ in cases:
        rs = [(r, d) for r, d in zip(runs[name], first) if r]
        lost = len(first) - len(rs)
        if not rs:
            rows.append((name, "diverges", "", ""))
            b.keep(part, name, {"loss": []})
            continue
        gap = [100 * (float(r["test_accuracy"]) - float(d["test_accuracy"])) for r, d in rs]
        bytes_part = [float(r["wire_all"]) / float(d["wire_all"]) for r, d in rs]
        rows.append((name + (f" ({lost} of {len(first)} seeds diverge)" if lost else ""), middle(r["loss"] for r, _ in rs),
                     middle(gap, "{:+.1f}"), f"{100 * median(bytes_part):.1f}"))
        b.keep(part, name, {"loss": [float(r["loss"]) for r, _ in rs], "gap": gap, "bytes_part": bytes_part})
    table(f"{title}: `train_digits {' '.join(base)}`, 4 ranks, seeds {b.args.seeds}", heads, rows)


def stale(b):
    compare(b, "stale", "Stale and K-of-n updates, momentum 0.9", STALE, SMALL,
            ["updates", "train loss", "accuracy, points from synchronous", "wire, %"])
    compare(b, "stale", "The same without momentum", STALE, [*SMALL, "--momentum", "0", "--rate", "0.5"],
            ["updates", "train loss", "accuracy, points from synchronous", "wire, %"])


# ---- what sparse communication depends on --------------------------------------------------------

STUDY = [("dense", "--controller buckets"), ("own indices: top-k", "--controller buckets --codec topk:delta=0.05"),
         *((f"shared indices at random, blocks of {n}", f"--controller shared-mask --delta 0.05 --block {n}") for n in (1, 16, 64, 512)),
         *((f"only {t}", f"--controller buckets --rules {t}*=topk:delta=0.05,force=1;*=none") for t in ("layer0.w", "layer1.w", "layer2.w")),
         ("all but the last layer", "--controller buckets --rules layer2*=none;*:>=1024=topk:delta=0.05,force=1"),
         ("DGC: momentum in the codec", "--controller buckets --codec dgc:delta=0.05")]


def study(b):
    """Five in a hundred elements travel: of which layers, in which blocks, by whose choice, with which momentum."""
    heads = ["what travels", "train loss", "accuracy, points from dense", "wire, %"]
    for momentum, rate in ("0.9", "0.1"), ("0.5", "0.3"), ("0", "0.5"):
        compare(b, f"study {momentum}", f"Sparse communication, momentum {momentum}", STUDY, [*SMALL[:-1], rate, "--momentum", momentum], heads)


def plot(rows, path):
    """Loss against bytes, both over dense's: medians of the seeds."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        dense = {}
        for r in rows:
            group = (r["part"], r.get("epochs"), r["title"].endswith("mixed"))
            dense.setdefault(group, r)  # each table begins with dense
            family = next((f for f in FAMILIES if r["title"].startswith(f)), None)
            if r["part"] in ("gossip", "graph", "sketch") and family and r["loss"]:
                sent = r["bytes_part"] if isinstance(r["bytes_part"], list) else [r["bytes_part"]]
                f.write(json.dumps({"name": family, "label": "", "bytes": 100 * median(sent),
                                    "loss": median(a / b for a, b in zip(r["loss"], dense[group]["loss"]))}) + "\n")
        f.flush()
        subprocess.run([sys.executable, PLOT, f.name, "--x", "bytes", "--y", "loss", "--points", "--xlabel", "bytes (% of dense's)",
                        "--ylabel", "training loss (times dense's)", "--title", "Related systems beside dense", "-o", path], check=True)


PARTS = {"gossip": gossip, "graph": graph, "sketch": sketch, "stale": stale, "study": study}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build", nargs="?")
    ap.add_argument("--parts", default=",".join(PARTS))
    ap.add_argument("--seeds", default="1,2,3")
    ap.add_argument("--rate", type=int, default=0, help="Mbit/s, of `gossip`; 0: without links")
    ap.add_argument("--json", help="write an object a row there")
    ap.add_argument("--rows", help="files of --json, with commas: draws --svg of them, runs nothing")
    ap.add_argument("--svg", help="loss against bytes")
    ap.add_argument("--check", action="store_true", help="exit status 1 where an aim is missed")
    args = ap.parse_args()
    if bool(args.build) == bool(args.rows):
        ap.error("a build folder, or --rows")
    b = Bench(args)
    for path in args.rows.split(",") if args.rows else ():
        with open(path, encoding="utf-8") as f:
            b.rows += map(json.loads, f)
    for part in args.parts.split(",") if args.build else ():
        if part not in PARTS:
            ap.error(f"--parts: {part} is none of {', '.join(PARTS)}")
        PARTS[part](b)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in b.rows)
    if args.svg:
        plot(b.rows, args.svg)
    return 1 if args.check and b.missed else 0


if __name__ == "__main__":
    sys.exit(main())
