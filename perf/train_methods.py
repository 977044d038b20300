#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The methods of training/ and methods/ in real trainings of 4 ranks, over several seeds: losses, accuracy, wire bytes of all ranks, and
seconds on links of a given rate (scripts/netns-cluster), with what the papers say beside it.

    perf/train_methods.py BUILD [--parts accordion,batch,lgc,methods,overlap] [--seeds 1,2,3] [--rates 100,1000]
                          [--steps 300] [--rounds 3] [--json FILE] [--svg FOLDER]

accordion  train_digits, a network on examples that a random one has labelled: little, heavy and adaptive compression; seconds at
           1 Gbit/s
batch      the same with the batch that adapts
lgc        the same: LGC beside dense, top-k and DGC, with as many bytes in all as LGC took
methods    train_text, a character-level language model: every method on links of each rate
overlap    train_text at 1 Gbit/s: one call a tensor after backward beside buckets behind it, with codecs; interleaved rounds

Losses depend on seeds (and on the instruction set), not on timing. Seconds are the slowest rank's, of steps alone; medians over
seeds or rounds, with least and largest."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "..", "scripts", "netns-cluster")
PLOT = os.path.join(HERE, "..", "tools", "banyan_plot")
RANKS = 4
# The setting of the papers' orderings: a rate and a number of steps at which the heaviest codec clearly loses.
TEACHER = "--model teacher --rate 0.15 --epochs 30".split()
EPOCH = 32  # steps: 4000 examples in batches of 128
LITTLE, HEAVY = "topk:delta=0.1", "topk:delta=0.0005"
TEXT_LITTLE, TEXT_HEAVY = "topk:delta=0.25", "topk:delta=0.002"
PAPER_ACCORDION = [  # final accuracy in the logs of the authors' repository (one seed each): task, little, heavy, Accordion
    ("CIFAR10 ResNet18 PowerSGD 2/1", 94.49, 94.25, 94.72), ("CIFAR10 VGG19bn PowerSGD 4/1", 93.47, 67.01, 92.35),
    ("CIFAR10 SENet PowerSGD 4/1", 94.54, 94.37, 94.37), ("CIFAR100 ResNet18 PowerSGD 2/1", 71.77, 69.55, 71.30),
    ("CIFAR100 DenseNet PowerSGD", 71.87, 70.56, 72.47), ("CIFAR100 SENet PowerSGD", 72.50, 71.29, 72.23),
    ("CIFAR10 ResNet18 top-k 99/10", 94.09, 93.08, 93.78), ("CIFAR10 GoogLeNet top-k", 94.64, 94.37, 94.72),
    ("CIFAR10 SENet top-k", 94.77, 93.97, 94.38), ("CIFAR100 ResNet18 top-k 99/25", 72.18, 71.34, 72.23),
    ("CIFAR100 GoogLeNet top-k", 76.42, 75.17, 76.52), ("CIFAR100 SENet top-k", 72.82, 71.80, 72.33)]
PAPER_BATCH = [  # small batch, large batch, Accordion
    ("CIFAR10 ResNet18 512/4096", 94.49, 93.21, 94.34), ("CIFAR10 GoogLeNet", 94.74, 92.55, 94.61),
    ("CIFAR10 DenseNet", 94.06, 92.70, 93.80), ("CIFAR100 ResNet18", 74.06, 69.94, 74.38),
    ("CIFAR100 GoogLeNet", 77.99, 73.71, 78.01), ("CIFAR100 DenseNet", 73.60, 70.37, 74.01)]
METHODS = [  # title, options of train_text
    ("dense, a call a tensor", "--controller calls"),
    ("dense, buckets", "--controller buckets"),
    ("int8", "--controller buckets --codec int8"),
    ("int4", "--controller buckets --codec int4"),
    ("PowerSGD r2", "--controller buckets --codec powersgd:rank=2"),
    ("top-k 1 %", "--controller buckets --codec topk:delta=0.01"),
    ("Accordion int8 / top-k 0.1 %", "--controller accordion --little int8 --codec topk:delta=0.001 --interval 30"),
    ("ordered (R2)", "--controller ordered"),
    ("LAG", "--controller lag"),
    ("CHB", "--controller chb"),
    ("LGC, ring", "--controller lgc --phases 50,100"),
    ("local SGD, 8", "--controller local --period 8"),
    ("local SGD, 8, overlapped", "--controller local --local overlapped --period 8"),
    ("local SGD, 8, adaptive", "--controller local --local adaptive --period 8"),
    ("shared mask 10 %", "--controller shared-mask --delta 0.1"),
]
OVERLAP = [  # title, options
    ("dense, a call a tensor", "--controller calls"), ("dense, buckets", "--controller buckets"),
    ("bf16, buckets", "--controller buckets --codec bf16"), ("int8, buckets", "--controller buckets --codec int8"),
    ("int4, buckets", "--controller buckets --codec int4")]


def run(command, timeout=1200):
    """The fields of the line that begins with `result`."""
    p = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    line = next((x for x in p.stdout.splitlines() if x.startswith("result ")), None)
    if p.returncode or not line:
        sys.exit(f"{' '.join(command)} failed ({p.returncode}):\n{p.stdout[-500:]}{p.stderr[-2000:]}")
    return dict(x.split("=", 1) for x in line.split()[1:] if "=" in x)


class Bench:
    def __init__(self, args):
        self.args, self.rows = args, []
        self.seeds = [int(s) for s in args.seeds.split(",")]

    def example(self, name):
        return os.path.join(self.args.build, "examples", name)

    def local(self, program, options, seed):
        return run([self.example(program), "-P", str(RANKS), *options, "--seed", str(seed)])

    def shaped(self, program, options, seed, rate):
        return run([CLUSTER, "--net", f"star:{rate}*{RANKS}", "--timeout", "1100", "--", self.example(program), *options, "--seed", str(seed)])

    def keep(self, part, title, fields):
        self.rows.append({"part": part, "title": title, **fields})


def middle(values, form="{:.4f}"):
    values = [float(v) for v in values]
    return f"{form.format(statistics.median(values))} ({form.format(min(values))} .. {form.format(max(values))})"


def table(title, heads, rows):
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|---|" + "---:|" * (len(heads) - 1))
    for r in rows:
        print(f"| {' | '.join(str(x) for x in r)} |", flush=True)


# ---- Accordion -----------------------------------------------------------------------------------

def levels(little, heavy, interval):
    """(title, options) of little, heavy and adaptive compression."""
    return [("little", ["--controller", "buckets", "--codec", little]), ("heavy", ["--controller", "buckets", "--codec", heavy]),
            ("Accordion", ["--controller", "accordion", "--little", little, "--codec", heavy, "--interval", str(interval)])]


def accordion(b):
    runs = {t: [b.shaped("train_digits", TEACHER + o, s, 1000) for s in b.seeds] for t, o in levels(LITTLE, HEAVY, 2 * EPOCH)}
    most = statistics.median(float(r["wire_all"]) for r in runs["little"])
    rows = []
    for title in runs:
        part = [float(r["wire_all"]) / most for r in runs[title]]
        rows.append((title, middle(r["loss"] for r in runs[title]), middle((100 * float(r["test_accuracy"]) for r in runs[title]), "{:.2f}"),
                     middle((100 * p for p in part), "{:.0f}"), middle((r["seconds"] for r in runs[title]), "{:.2f}")))
        b.keep("accordion", title, {"loss": [float(r["loss"]) for r in runs[title]], "part": part,
                                    "accuracy": [float(r["test_accuracy"]) for r in runs[title]],
                                    "seconds": [float(r["seconds"]) for r in runs[title]]})
    table(f"Accordion: `train_digits {' '.join(TEACHER)}`, little {LITTLE}, heavy {HEAVY}, decisions every 2 epochs, 1 Gbit/s, seeds "
          f"{b.args.seeds}", ["compression", "train loss", "accuracy %", "bytes, % of little's", "seconds"], rows)
    accordion_text(b)
    table("The paper's runs (final accuracy %, logs of the authors' repository)", ["task", "little", "heavy", "Accordion"], PAPER_ACCORDION)


def accordion_text(b):
    base = ["--batch", "8", "--steps", str(b.args.steps), "--every", "1000"]
    cases = levels(TEXT_LITTLE, TEXT_HEAVY, max(1, b.args.steps // 15))
    runs = {t: [b.shaped("train_text", base + o, s, 1000) for s in b.seeds] for t, o in cases}
    most = statistics.median(float(r["wire_bytes"]) for r in runs["little"])
    rows = []
    for title in runs:
        part = [float(r["wire_bytes"]) / most for r in runs[title]]
        rows.append((title, middle((r["loss"] for r in runs[title]), "{:.3f}"), middle((100 * p for p in part), "{:.0f}"),
                     middle((r["seconds"] for r in runs[title]), "{:.1f}")))
        b.keep("accordion_text", title, {"loss": [float(r["loss"]) for r in runs[title]], "part": part,
                                         "seconds": [float(r["seconds"]) for r in runs[title]]})
    table(f"Accordion: `train_text {' '.join(base[:4])}`, little {TEXT_LITTLE}, heavy {TEXT_HEAVY}, 15 decisions, 1 Gbit/s, seeds "
          f"{b.args.seeds}", ["compression", "test loss", "bytes, % of little's", "seconds"], rows)


def batch(b):
    cases = [("small batch, 128", ["--controller", "buckets"]), ("large batch, 1024", ["--controller", "buckets", "--batch", "1024"]),
             ("Accordion, 128 to 1024", ["--controller", "accordion", "--accumulate", "8", "--interval", str(4 * EPOCH)])]
    rows = []
    for title, options in cases:
        rate = ["--rate", "0.4"] if "large" in title else ["--rate", "0.05"]
        runs = [b.local("train_digits", ["--model", "teacher", "--epochs", "40", *options, *rate], s) for s in b.seeds]
        rows.append((title, middle(r["loss"] for r in runs), middle((100 * float(r["test_accuracy"]) for r in runs), "{:.2f}"),
                     middle((r["steps"] for r in runs), "{:.0f}"), middle((float(r["wire_all"]) / 1e6 for r in runs), "{:.0f}")))
        b.keep("batch", title, {"loss": [float(r["loss"]) for r in runs], "steps": [int(r["steps"]) for r in runs],
                                "accuracy": [float(r["test_accuracy"]) for r in runs], "wire": [float(r["wire_all"]) for r in runs]})
    table("Accordion over the batch: `train_digits --model teacher --epochs 40`, the rate grows with the batch",
          ["batch", "train loss", "accuracy %", "updates", "MB, all ranks"], rows)
    table("The paper's runs (final accuracy %)", ["task", "small", "large", "Accordion"], PAPER_BATCH)


# ---- LGC -----------------------------------------------------------------------------------------

def with_bytes(b, options, parameter, start, wanted, seed):
    """A run whose bytes are within 3 % of those wanted, or the nearest of three tries."""
    best, delta = None, start
    for _ in range(4):
        r = b.local("train_digits", TEACHER + options + ["--codec", parameter.format(delta)], seed)
        wire = float(r["wire_all"])
        if best is None or abs(wire - wanted) < abs(float(best["wire_all"]) - wanted):
            best = {**r, "delta": delta}
        if abs(wire - wanted) < 0.03 * wanted:
            break
        delta = min(0.5, max(1e-5, delta * wanted / wire))
    return best


def lgc(b):
    base = TEACHER + ["--controller", "lgc", "--delta", "0.01", "--phases", "100,300"]
    titles = {"dense": [], "LGC, ring": [], "LGC, ring, gate open": [], "LGC, server": [], "top-k, as many bytes": [], "DGC, as many bytes": []}
    for s in b.seeds:
        titles["dense"].append(b.local("train_digits", TEACHER + ["--controller", "buckets"], s))
        titles["LGC, ring"].append(b.local("train_digits", base, s))
        titles["LGC, ring, gate open"].append(b.local("train_digits", base + ["--gate", "-2"], s))
        titles["LGC, server"].append(b.local("train_digits", base + ["--lgc", "server", "--gate", "-2"], s))
        wanted = float(titles["LGC, ring, gate open"][-1]["wire_all"])
        titles["top-k, as many bytes"].append(with_bytes(b, ["--controller", "buckets"], "topk:delta={:.6f}", 0.1, wanted, s))
        titles["DGC, as many bytes"].append(with_bytes(b, ["--controller", "buckets"], "dgc:delta={:.6f}", 0.1, wanted, s))
    dense = [float(r["test_accuracy"]) for r in titles["dense"]]  # of the same seeds, which are other data each
    rows = []
    for title, runs in titles.items():
        more = [f"coded {r['coded']}, correlation {r['correlation']}, error {r['error']}, largest quarter {r['error_largest']}"
                for r in runs if "coded" in r]
        gap = [100 * (float(r["test_accuracy"]) - d) for r, d in zip(runs, dense)]
        rows.append((title, middle(r["loss"] for r in runs), middle(gap, "{:+.2f}"),
                     middle((float(r["wire_all"]) / 1e6 for r in runs), "{:.1f}"), more[0] if more else ""))
        b.keep("lgc", title, {"loss": [float(r["loss"]) for r in runs], "gap": gap, "wire": [float(r["wire_all"]) for r in runs],
                              "more": more})
    table(f"LGC: `train_digits {' '.join(TEACHER)}`, phases of 100 and 300 steps of 960, top 1 %; the paper: -0.18 points (ResNet101, CIFAR10)",
          ["method", "train loss", "accuracy, points from dense", "MB, all ranks", "seed 1: reconstruction"], rows)
    open_gate, topk = titles["LGC, ring, gate open"], titles["top-k, as many bytes"]
    loses = statistics.median(float(r["loss"]) for r in open_gate) > statistics.median(float(r["loss"]) for r in topk)
    print(f"\nVerdict: with as many bytes, {'top-k trains to the lower loss: LGC loses here' if loses else 'LGC trains to the lower loss'}.")


# ---- all methods ---------------------------------------------------------------------------------

def methods(b):
    rates = [int(r) for r in b.args.rates.split(",")]
    base = ["--batch", "8", "--steps", str(b.args.steps), "--every", str(max(1, b.args.steps // 12))]
    rows, curves = [], []
    with tempfile.TemporaryDirectory() as folder:
        for title, text in METHODS:
            runs = {}
            for rate in rates:
                for s in b.seeds[:b.args.slow_seeds] if rate < 1000 else b.seeds:
                    log = os.path.join(folder, f"{len(curves)}-{rate}-{s}.json")
                    runs[rate, s] = b.shaped("train_text", base + text.split() + ["--log", log], s, rate)
                    with open(log, encoding="utf-8") as f:
                        points = [json.loads(x) for x in f]
                    if s == b.seeds[0]:
                        curves += [{**p, "name": title, "rate": rate} for p in points]
            first = [r for (rate, _), r in runs.items() if rate == max(rates)]
            seconds = {r: [float(x["seconds"]) for (rate, _), x in runs.items() if rate == r] for r in rates}
            rows.append((title, middle((r["loss"] for r in first), "{:.3f}"), f"{float(first[0]['wire_bytes']) / 1e6:.0f}",
                         *(middle(seconds[r], "{:.1f}") for r in rates)))
            b.keep("methods", title, {"loss": [float(r["loss"]) for r in first], "wire": [float(r["wire_bytes"]) for r in first],
                                      "seconds": seconds, "identical": [r["identical"] for r in first]})
            print(f"# {title}: {rows[-1][1:]}", file=sys.stderr, flush=True)
    table(f"All methods: `train_text {' '.join(base[:4])}`, {RANKS} ranks, test loss in nats a character, seeds {b.args.seeds}",
          ["method", "test loss", "MB, all ranks", *(f"seconds at {r} Mbit/s" for r in rates)], rows)
    if b.args.svg:
        draw(b, curves, rates)


def draw(b, curves, rates):
    shown = ["dense, a call a tensor", "dense, buckets", "int8", "top-k 1 %", "Accordion int8 / top-k 0.1 %", "LGC, ring",
             "local SGD, 8, overlapped", "ordered (R2)"]
    for name, x, label in [("training_bytes", "wire_bytes", "bytes on the wire, all ranks"),
                           *((f"training_{r}mbit", "seconds", f"seconds on links of {r} Mbit/s") for r in rates)]:
        rate = int(re.sub(r"\D", "", name) or rates[0])
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            for c in (c for c in curves if c["rate"] == rate and c["name"] in shown and c[x] > 0):
                f.write(json.dumps({"name": c["name"], x: c[x], "test_loss": c["test_loss"]}) + "\n")
            f.flush()
            subprocess.run([sys.executable, PLOT, f.name, "--x", x, "--y", "test_loss", "--xlabel", label, "--ylabel",
                            "test loss (nats a character)", "--title", f"A language model trained by {RANKS} ranks",
                            "-o", os.path.join(b.args.svg, name + ".svg")], check=True)


# ---- overlap -------------------------------------------------------------------------------------

def overlap(b):
    for batch_size in b.args.batches.split(","):
        overlap_at(b, ["--batch", batch_size, "--steps", "100", "--every", "1000"])


def overlap_at(b, base):
    runs = {t: [] for t, _ in OVERLAP}
    for k in range(b.args.rounds):
        for title, text in OVERLAP:
            runs[title].append(b.shaped("train_text", base + text.split(), 1, 1000))
    dense = [float(r["seconds"]) for r in runs[OVERLAP[0][0]]]
    rows = []
    for title, _ in OVERLAP:
        rs = runs[title]
        hidden = [float(r["hidden_s"]) / (float(r["hidden_s"]) + float(r["exposed_s"])) for r in rs if "hidden_s" in r]
        times = [d / float(r["seconds"]) for d, r in zip(dense, rs)]
        rows.append((title, middle((10 * float(r["seconds"]) for r in rs), "{:.1f}"), middle((100 * h for h in hidden), "{:.0f}") if hidden else "0",
                     middle(times, "{:.2f}"), middle((r["loss"] for r in rs), "{:.4f}")))
        b.keep("overlap", title, {"batch": int(base[1]), "step_ms": [10 * float(r["seconds"]) for r in rs], "hidden": hidden, "times": times,
                                  "loss": [float(r["loss"]) for r in rs]})
    table(f"Overlap: `train_text {' '.join(base[:4])}`, {RANKS} ranks at 1 Gbit/s, {b.args.rounds} interleaved rounds",
          ["", "ms a step", "communication hidden, %", "times the first row", "test loss"], rows)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build")
    ap.add_argument("--parts", default="accordion,batch,lgc,methods,overlap")
    ap.add_argument("--seeds", default="1,2,3")
    ap.add_argument("--rates", default="100,1000", help="Mbit/s, of `methods`")
    ap.add_argument("--slow-seeds", type=int, default=1, help="seeds on links below 1 Gbit/s, where dense takes minutes")
    ap.add_argument("--steps", type=int, default=300, help="of `methods`")
    ap.add_argument("--rounds", type=int, default=3, help="of `overlap`")
    ap.add_argument("--batches", default="8,16", help="sequences a step, of `overlap`")
    ap.add_argument("--json", help="write an object a row there")
    ap.add_argument("--svg", help="folder for the pictures of `methods`")
    args = ap.parse_args()
    b = Bench(args)
    parts = {"accordion": accordion, "batch": batch, "lgc": lgc, "methods": methods, "overlap": overlap}
    for part in args.parts.split(","):
        if part not in parts:
            ap.error(f"--parts: {part} is none of {', '.join(parts)}")
        parts[part](b)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in b.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
