#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A codec that is allowed never loses: allreduces in network namespaces behind ports that keep to a rate
(scripts/netns-cluster), raw and with each codec as a permission, nothing forced and no rate named. The first calls of a
job measure the link and are not timed. Raw and the codecs take turns, and a column's time is its least median of all
rounds.

    perf/never_loses.py BUILD [--rates 100,1000,10000] [--shapes 2x1,4x1,2x4] [--sizes 64K,1M,16M]
                        [--codecs int8,int4,topk:delta=0.01,lossless] [--rounds 3] [--seconds 1]
                        [--most 1.05] [--wrong 1.5] [--json FILE]

A shape is HOSTSxRANKS. A rate is in Mbit/s, and 0 is as fast as the processor moves it. Encoding threads are off, as
ranks have no CPU to spare here. The columns are raw's time in ms, and for each codec its time, and the bytes that left
the first host in the whole job, over those of raw; then what banyan_comm_plan() predicts behind the last call, over the
round's median. The last line counts the cells whose prediction is within 1.5 of it. Exit status 1: a ratio of bytes is
above 1, or one of times above --most, where that is given, or more than a tenth of the predictions are off by more than
--wrong, where that is given."""
import argparse
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "..", "scripts", "netns-cluster")
WARM = 20  # calls, of which some measure the link
# Rank 0 tells what left its host.
COUNTED = """out() { awk '!/lo:|[|]/ { sub(/.*:/, ""); s += $9 } END { print s + 0 }' /proc/self/net/dev; }
before=$(out); "$0" "$@" || exit; [ $RANK != 0 ] || echo "# left $(($(out) - before))"
"""


def size_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def measure(args, hosts, near, rate, size, codec):
    """Microseconds of a call, bytes that left a host, and the predicted microseconds over those."""
    once = 2 * size / ((rate or 10000) * 125e3)  # s
    # ms: less than a call, which otherwise spends what a pause before it has saved
    burst = max(.05, min(5, 250 * once))
    n = max(3, min(200, int(args.seconds / once)))
    cluster = [CLUSTER, "--net", f"star:{rate}*{hosts}", "--burst", f"{burst:.2f}", "--timeout", "100",
               "--ranks-per-host", str(near), "--", "sh", "-c", COUNTED]
    perf = [os.path.join(args.build, "perf", "banyan_perf"), "allreduce", "-b", str(size), "-e", str(size),
            "-w", str(WARM), "-n", str(n), "--no-roofline", "--inplace", "0", "--data", "gauss", "--codec", codec,
            "-J", "-"]
    ran = subprocess.run(cluster + perf, capture_output=True, text=True, timeout=120,
                         env={**os.environ, "BANYAN_ENCODE_THREADS": "0"})
    rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    left = re.search("# left ([0-9]+)", ran.stdout)
    if ran.returncode or not rows or not left:
        sys.exit(f"{hosts}x{near} at {rate} Mbit/s, {codec}: {ran.stdout}{ran.stderr}")
    median = rows[0]["time_us"]["median"]
    return median, int(left[1]), (rows[0]["predicted_us"] or 0) / median


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    for name, text in (("rates", "100,1000,10000"), ("shapes", "2x1,4x1,2x4"), ("sizes", "64K,1M,16M"),
                       ("codecs", "int8,int4,topk:delta=0.01,lossless")):
        parser.add_argument("--" + name, default=text, type=lambda s: s.split(","))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--most", type=float)
    parser.add_argument("--wrong", type=float)
    parser.add_argument("--json")
    args = parser.parse_args()
    probe = subprocess.run([CLUSTER, "--probe"], capture_output=True, text=True)
    if probe.returncode == 77:
        print(probe.stderr.strip())
        sys.exit(77)
    lost, rows, wrong = [], [], 0
    for shape, rate, size in ((s, int(r), z) for s in args.shapes for r in args.rates for z in args.sizes):
        hosts, near = map(int, shape.split("x"))
        columns = {"none": None, **{codec: None for codec in args.codecs}}
        for _ in range(args.rounds):
            for codec, best in columns.items():
                got = measure(args, hosts, near, rate, size_of(size), codec if codec == "none" else "may:" + codec)
                columns[codec] = min(best or got, got)
        raw = columns.pop("none")
        line = f"{shape} {rate:6} Mbit/s {size:>4} raw {raw[0] / 1e3:9.3f} ms"
        for codec, got in columns.items():
            time, sent = got[0] / raw[0], got[1] / raw[1]
            line += f"  {codec} {time:.2f} {sent:.2f} {got[2]:.2f}"
            rows.append({"shape": shape, "Mbit/s": rate, "bytes": size_of(size), "codec": codec, "time": time,
                         "sent": sent, "predicted": got[2]})
            wrong += not 1 / (args.wrong or 1.5) <= got[2] <= (args.wrong or 1.5)
            if sent > 1.02 or (args.most and time > args.most):
                lost.append(f"{shape} {rate} Mbit/s {size} {codec}: {time:.3f} of raw's time, {sent:.3f} of its bytes")
        print(line, flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)
    print(f"{len(rows) - wrong} of {len(rows)} predictions are within {args.wrong or 1.5}")
    if args.wrong and wrong > len(rows) / 10:
        lost.append(f"{wrong} of {len(rows)} predictions are off by more than {args.wrong}")
    sys.exit("\n".join(lost) or 0)


main()
