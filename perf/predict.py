#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Predicted training steps beside measured ones: banyan_topo predict against perf/train_step on shaped links.

    perf/predict.py BUILD [--models even,mixed,wide] [--ranks 2,4,8] [--rates 100,1000] [--rounds 3] [--progress thread,calls]
                    [--measured FILE] [--json FILE] [--svg FILE] [--check]

For each model: a profile of one rank alone (banyan_buckets_profile), the cost of each codec on this machine (banyan_codec) added to it,
and banyan_topo predict of every setting. Then each setting is measured on ranks in network namespaces with shaped links
(scripts/netns-cluster, its `star`), in interleaved rounds; a figure is the median of its rounds. What is compared is dense, int8 and
top-k with buckets of several sizes.

The trainer sleeps where a real one computes: eight ranks that compute on two CPUs would measure the CPUs. Codecs, additions and sockets
are real and share the CPUs, which the prediction is told (--cores, --accelerated). Ranks run at a real-time priority where that is
allowed, as a sleeper that other programs keep from waking is late by milliseconds; and they do not spin (BANYAN_SPIN_US=0), which on a
machine of its own a rank's progress thread may.

Needs root or user namespaces. --check: exit status 1 where an aim is missed."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "..", "scripts", "netns-cluster")
PLOT = os.path.join(HERE, "..", "tools", "banyan_plot")
FROM = 16384  # elements of the smallest tensor that has a codec
MODELS = {  # tensors in order of registration, milliseconds of forward and backward
    "even": ("8x1024,8x65536", 10, 40),
    "mixed": ("262144," + ",".join(["256,2x16384,512,2x65536,256"] * 6) + ",8192", 20, 60),
    "wide": ("1000,400000,8x500,200000,16x2000,3x100000", 8, 16),
}
CODECS = ["none", "int8", "topk:delta=0.01"]
SETTINGS = [("none", 128 << 10), ("none", 1 << 20), ("none", 4 << 20), ("int8", 1 << 20), ("topk:delta=0.01", 1 << 20)]
AIM_STEP, AIM_CHOICE, AIM_SHARE = 0.15, 0.05, 0.9


def output(command, timeout=300, **env):
    p = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **env})
    if p.returncode:
        sys.exit(f"{' '.join(command)} failed ({p.returncode}):\n{p.stdout[-500:]}{p.stderr[-2000:]}")
    return p.stdout


def result(text):
    line = next(x for x in text.splitlines() if x.startswith("result "))
    return {k: float(v) for k, v in (x.split("=", 1) for x in line.split()[1:])}


def priority():
    """A command before commands: SCHED_RR, where this user may."""
    chrt = shutil.which("chrt")
    able = chrt and subprocess.run([chrt, "-r", "1", "true"], capture_output=True, check=False).returncode == 0
    return [chrt, "-r", "1"] if able else []


def burst(rate):
    """Milliseconds. Less than four packets of segmentation offload (64 KiB each) and a shaper loses what it had saved up while a rank
    waited for another: 8 ranks, dense, 100 Mbit/s take 390 ms at 2 and at 5 ms, 343 at 10, 316 at 20 (the rate alone: 318)."""
    return max(2, 2000 / rate)


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder, self.first = args, folder, priority()

    def program(self, *path):
        return os.path.join(self.args.build, *path)

    def codec_costs(self):
        """Seconds and bytes an element, data from memory; of the fastest loops of this machine."""
        costs = []
        for codec in CODECS[1:]:
            best = {}
            for line in output([*self.first, self.program("tools", "banyan_codec"), "--codec", codec, "--where", "dram", "--json"]).splitlines():
                row = json.loads(line)
                best[row["kernel"]] = max(best.get(row["kernel"], 0), row["GBps"])
                ratio = row["compression_ratio"]
            costs.append({"codec": codec, "encode_s": 4e-9 / best["encode_ef"], "decode_s": 4e-9 / best["decode_add"],
                          "wire_bytes": 4 / ratio})
        return costs

    def trainer(self, model, progress):
        tensors, forward, backward = MODELS[model]
        return [self.program("perf", "train_step"), "--tensors", tensors, "--forward", str(1000 * forward), "--backward",
                str(1000 * backward)] + (["--thread"] if progress == "thread" else [])

    def profile(self, model, progress, costs):
        path = os.path.join(self.folder, f"{model}-{progress}.json")
        output([*self.first, *self.trainer(model, progress), "--profile", path], BANYAN_SPIN_US="0")
        with open(path, encoding="utf-8") as f:
            profile = json.load(f)
        profile["codecs"] = costs
        with open(path, "w", encoding="utf-8") as f:
            json.dump(profile, f, indent=1)
        return path

    def predict(self, path, ranks, rate):
        command = [self.program("tools", "banyan_topo"), "predict", path, "--ranks", str(ranks), "--rate", f"{rate}Mbit", "--codec",
                   ";".join(CODECS), "--bucket", ",".join(str(b) for b in sorted({b for _, b in SETTINGS})), "--from", str(FROM),
                   "--burst", f"{self.args.burst or burst(rate):g}", "--cores", str(len(os.sched_getaffinity(0))), "--accelerated", "--json"]
        rows = [json.loads(line) for line in output(command).splitlines()]
        return {(r["codec"], r["bucket_bytes"]): r for r in rows}

    def measured_before(self, *what):
        if not self.args.measured:
            return []
        fields = ("model", "progress", "ranks", "rate", "codec", "bucket")
        with open(self.args.measured, encoding="utf-8") as f:
            for row in map(json.loads, f):
                if tuple(row[k] for k in fields) == what:
                    return [row["least_s"], row["measured_s"], row["most_s"]]
        sys.exit(f"{self.args.measured} has no row of {what}")

    def measure(self, model, progress, ranks, rate, codec, bucket):
        rules = "*=none" if codec == "none" else f"*:<{FROM}=none;*={codec}"
        steps = 10 if rate <= 100 else 24
        command = [*self.first, CLUSTER, "--net", f"star:{rate}*{ranks}", "--burst", str(self.args.burst or burst(rate)), "--timeout", "200", "--",
                   *self.trainer(model, progress), "--rules", rules, "--bucket", str(bucket), "--steps", str(steps)]
        return result(output(command, BANYAN_LINK_GBPS=f"{rate / 1000:g}", BANYAN_SPIN_US="0"))["step_s"]


def compare(bench, model, progress, ranks, rate, path):
    """Rows of one network: what was predicted and measured of each setting."""
    predicted = bench.predict(path, ranks, rate)
    measured = {s: bench.measured_before(model, progress, ranks, rate, *s) for s in SETTINGS}
    for _ in range(0 if bench.args.measured else bench.args.rounds):
        for s in SETTINGS:
            measured[s].append(bench.measure(model, progress, ranks, rate, *s))
    rows = []
    for s in SETTINGS:
        got, said = statistics.median(measured[s]), predicted[s]["step_s"]
        rows.append({"model": model, "progress": progress, "ranks": ranks, "rate": rate, "codec": s[0], "bucket": s[1],
                     "schedule": predicted[s]["schedule"], "predicted_s": said, "measured_s": got, "least_s": min(measured[s]),
                     "most_s": max(measured[s]), "error": said / got - 1})
        print(f"| {model} | {progress} | {ranks} | {rate} | {s[0]} | {s[1] >> 10}K | {rows[-1]['schedule']} | {1e3 * said:.1f} | "
              f"{1e3 * got:.1f} ({1e3 * min(measured[s]):.1f} .. {1e3 * max(measured[s]):.1f}) | {100 * (said / got - 1):+.1f} % |", flush=True)
    return rows


def choice(rows):
    """How much slower the recommended setting is than the fastest one, as measured."""
    chosen = min(rows, key=lambda r: r["predicted_s"])
    fastest = min(rows, key=lambda r: r["measured_s"])
    return chosen, fastest, chosen["measured_s"] / fastest["measured_s"] - 1


def plot(rows, path):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        for r in rows:
            f.write(json.dumps({"name": f"{r['codec'].split(':')[0]}, {r['rate']} Mbit/s", "label": "", "predicted": 1e3 * r["predicted_s"],
                                "measured": 1e3 * r["measured_s"]}) + "\n")
        f.flush()
        output([sys.executable, PLOT, f.name, "--x", "measured", "--y", "predicted", "--points", "--xlabel", "measured step (ms)",
                "--ylabel", "predicted step (ms)", "--title", "Training steps: predicted against measured", "-o", path])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build")
    ap.add_argument("--models", default="even,mixed,wide", help=", ".join(MODELS))
    ap.add_argument("--ranks", default="2,4,8")
    ap.add_argument("--rates", default="100,1000", help="Mbit/s")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--progress", default="thread", help="thread, calls or both")
    ap.add_argument("--burst", type=float, help="milliseconds of its rate that a link may send at once (250 kB, at least 2 ms)")
    ap.add_argument("--measured", help="a file of --json: its measured steps, and predictions of today")
    ap.add_argument("--json", help="write an object a line there")
    ap.add_argument("--svg")
    ap.add_argument("--check", action="store_true")
    args = ap.parse_args()
    rows, choices = [], []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, folder)
        costs = bench.codec_costs()
        for c in costs:
            print(f"{c['codec']}: encode {1e9 * c['encode_s']:.2f} ns, decode {1e9 * c['decode_s']:.2f} ns, {c['wire_bytes']:.3f} bytes an element")
        print("\n| model | progress | ranks | Mbit/s | codec | bucket | schedule | predicted ms | measured ms (least .. most) | error |\n"
              "|---|---|---:|---:|---|---:|---|---:|---:|---:|")
        for model in args.models.split(","):
            for progress in args.progress.split(","):
                path = bench.profile(model, progress, costs)
                for ranks in map(int, args.ranks.split(",")):
                    for rate in map(int, args.rates.split(",")):
                        part = compare(bench, model, progress, ranks, rate, path)
                        rows += part
                        choices.append((model, progress, ranks, rate, *choice(part)))
    print("\n| model | progress | ranks | Mbit/s | recommended | fastest as measured | slower by |\n|---|---|---:|---:|---|---|---:|")
    for model, progress, ranks, rate, chosen, fastest, loss in choices:
        print(f"| {model} | {progress} | {ranks} | {rate} | {chosen['codec']}, {chosen['bucket'] >> 10}K | {fastest['codec']}, "
              f"{fastest['bucket'] >> 10}K | {100 * loss:.1f} % |")
    near = sum(abs(r["error"]) <= AIM_STEP for r in rows)
    good = sum(c[-1] <= AIM_CHOICE for c in choices)
    print(f"\n{near} of {len(rows)} steps within {100 * AIM_STEP:.0f} %, the median error {100 * statistics.median(abs(r['error']) for r in rows):.1f} %, "
          f"the largest {100 * max(abs(r['error']) for r in rows):.1f} %; {good} of {len(choices)} choices within {100 * AIM_CHOICE:.0f} % of the fastest")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    if args.svg:
        plot(rows, args.svg)
    return 1 if args.check and (near < len(rows) or good < AIM_SHARE * len(choices)) else 0


if __name__ == "__main__":
    sys.exit(main())
