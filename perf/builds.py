#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Two builds of banyan beside each other, interleaved: what has a change made faster or slower? Hosts drift by a quarter within a day, so tables of
different hours do not tell. A cell is a transport, a number of ranks, a collective, a codec, a kind of memory and a size.

    perf/builds.py OLD_BUILD NEW_BUILD [--transports shm,tcp] [--ranks 2,4] [--collectives allreduce,sendrecv] [--sizes 4,1K,1M] [--mem malloc]
                   [--codecs none,int8:force=1] [--rounds 4] [--limit 1.03] [--most 40] [--seconds 240] [--json FILE]

First each cell gets --rounds pairs of runs: old, new; new, old; ... Then those whose ratio (median over the pairs of new / old) is above --limit get
pairs of their own, which alone count for them, since what looked worst of many was partly bad luck; until the 95 % interval of the median excludes
the limit, or there are --most pairs. --seconds ends a call early; with --json the next one goes on where FILE ends. The exit status is 1 when a run failed or a
cell is slower than the limit beyond its interval. verbs needs a device; dpdk goes over memif, which needs none."""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

UNIT = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
COLLECTIVES = "allreduce,reduce,broadcast,reduce_scatter,allgather,alltoall,gather,scatter,barrier,sendrecv"
LEAST = 6  # pairs, from which on there is an interval of 95 %
CLASSES = [(32 << 10, 100), (4 << 20, 25), (1 << 40, 4)]  # up to these bytes, so many timed iterations; 16 operations each in the first
ENV = {"dpdk": {"BANYAN_DPDK_PORT": "memif", "BANYAN_DPDK": "mtu=9000"}}


def size_of(text):
    return int(text[:-1]) * UNIT[text[-1]] if text[-1] in UNIT else int(text)


def iterations(size):
    return next(n for most, n in CLASSES if size_of(size) <= most)


def sweeps(sizes):
    """Sizes of as many iterations, a constant factor apart, are run by one process: lists of them, and their factors."""
    out = []
    for size in sorted(sizes, key=size_of):
        if out:
            last, factor = out[-1]
            step = size_of(size) / size_of(last[-1])
            if iterations(last[-1]) == iterations(size) and step == int(step) and factor in (None, int(step)):
                out[-1] = (last + [size], int(step))
                continue
        out.append(([size], None))
    return out


def once(build, where, sizes, factor):
    """{size: microseconds}: each the median of the iterations. Raises RuntimeError with what was said."""
    transport, ranks, collective, codec, mem = where
    command = [os.path.join(build, "perf/banyan_perf"), collective, "-P", str(ranks), "--bind", "--transport", transport, "-b", sizes[0], "-e", sizes[-1],
               "-f", str(factor or 2), "-n", str(iterations(sizes[0])), "-w", "4", "-c", "0", "--mem", mem, "--inplace", "1" if collective == "broadcast" else "0", "--no-roofline", "-J", "-"]
    if codec != "none":
        command += ["--codec", codec.replace(";", ","), "--data", "gauss"]
    try:
        p = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **ENV.get(transport, {})})
    except subprocess.TimeoutExpired:
        raise RuntimeError("no end within 60 s") from None
    rows = [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]
    if p.returncode or len(rows) != len(sizes):
        raise RuntimeError(f"status {p.returncode}, {len(rows)} rows of {len(sizes)}: {p.stderr.strip()[-300:]}")
    return {size: row["time_us"]["median"] for size, row in zip(sizes, rows) if codec == "none" or row["codec"] != "none"}


def ratio_of(pairs):
    return statistics.median(new / old for old, new in pairs)


def interval(pairs):
    """Of the median ratio, by order statistics: at least 95 %; None with fewer than LEAST pairs."""
    n = len(pairs)
    if n < LEAST:
        return None
    k, below = 0, 0.0
    while 2 * (below + math.comb(n, k) / 2 ** n) <= 0.05:
        below += math.comb(n, k) / 2 ** n
        k += 1
    ratios = sorted(new / old for old, new in pairs)
    return ratios[k - 1], ratios[n - k]


class Bench:
    def __init__(self, options):
        self.o = options
        self.builds = (options.old, options.new)
        self.end = time.monotonic() + options.seconds
        self.failed = {}
        self.cells = {}  # (transport, ranks, collective, codec, mem, size): {"first": pairs, "again": pairs}
        self.turns = 0
        if options.json and os.path.exists(options.json):
            with open(options.json) as f:
                self.cells = {tuple(c["cell"]): {"first": c["first"], "again": c["again"]} for c in json.load(f)["cells"]}

    def save(self):
        if self.o.json:
            with open(self.o.json + ".new", "w") as f:
                json.dump({"cells": [{"cell": cell, **pairs} for cell, pairs in self.cells.items()]}, f, indent=0)
            os.replace(self.o.json + ".new", self.o.json)

    def pair(self, stage, where, sizes, factor):
        """Each build once, and first by turns. Pairs of which a run failed do not count."""
        self.turns += 1
        got = {}
        for build in self.builds if self.turns % 2 else self.builds[::-1]:
            try:
                got[build] = once(build, where, sizes, factor)
            except RuntimeError as e:
                self.failed[(build, *where, sizes[0])] = str(e)
                print(f"builds.py: {build}: {' '.join(map(str, where))} {sizes[0]}: {e}", file=sys.stderr, flush=True)
                return
        for size in sizes:
            if all(size in got[b] for b in self.builds):
                pairs = self.cells.setdefault((*where, size), {"first": [], "again": []})
                pairs[stage].append([got[b][size] for b in self.builds])

    def late(self):
        return time.monotonic() > self.end

    def first(self):
        o = self.o
        places = [(t, int(n), c, codec, mem) for t in o.transports.split(",") for n in o.ranks.split(",") for codec in o.codecs.split(",")
                  for c in o.collectives.split(",") for mem in o.mem.split(",") if not (c == "barrier" and (codec, mem) != ("none", o.mem.split(",")[0]))]
        for k in range(o.rounds):
            for where in places:
                for sizes, factor in sweeps(["4"] if where[2] == "barrier" else o.sizes.split(",")):
                    if self.late():
                        return False
                    if all(len(self.cells.get((*where, s), {"first": []})["first"]) <= k for s in sizes) and not any(key[1:6] == where for key in self.failed):
                        self.pair("first", where, sizes, factor)
            self.save()
        return True

    def suspects(self):
        return [cell for cell, pairs in self.cells.items() if pairs["first"] and ratio_of(pairs["first"]) > self.o.limit]

    def is_open(self, cell):
        again = self.cells[cell]["again"]
        span = interval(again)
        return len(again) < self.o.most and (not span or span[0] <= self.o.limit <= span[1])

    def again(self):
        failed = set()
        while True:
            left = [cell for cell in self.suspects() if cell not in failed and self.is_open(cell)]
            if not left:
                return
            for cell in left:
                before = len(self.cells[cell]["again"])
                if self.late():
                    return
                self.pair("again", cell[:5], [cell[5]], None)
                if len(self.cells[cell]["again"]) == before:
                    failed.add(cell)  # it would again
            self.save()

    # ---- what is printed ----

    def table(self):
        sizes = sorted({cell[5] for cell in self.cells if cell[2] != "barrier"}, key=size_of) or ["4"]
        spread = []
        print("Microseconds old, new: median of the pairs' new / old.\n")
        print("| transport | ranks | collective | codec | memory | " + " | ".join(sizes) + " |\n|" + "---|" * 5 + "---:|" * len(sizes))
        for where in dict.fromkeys(cell[:5] for cell in self.cells):
            shown = []
            for size in sizes:
                pairs = self.cells.get((*where, size), {"first": []})["first"]
                if pairs:
                    old, new = (statistics.median(p[i] for p in pairs) for i in (0, 1))
                    shown.append(f"{old:.4g}, {new:.4g}: {ratio_of(pairs):.2f}")
                    ratios = [b / a for a, b in pairs]
                    spread.append(max(ratios) / min(ratios))
                else:
                    shown.append("")
            print("| " + " | ".join(map(str, where)) + " | " + " | ".join(shown) + " |")
        ratios = [ratio_of(p["first"]) for p in self.cells.values() if p["first"]]
        if ratios:
            rounds = [len(p["first"]) for p in self.cells.values() if p["first"]]
            print(f"\n{len(ratios)} cells, {min(rounds)} to {max(rounds)} pairs each: median ratio {statistics.median(ratios):.3f}, least {min(ratios):.2f}, largest {max(ratios):.2f}; "
                  f"largest / least ratio of a cell's pairs: median {statistics.median(spread):.2f}.")

    def verdicts(self):
        """How many are slower."""
        slower = 0
        print(f"\nCells above {self.o.limit}, measured again:\n")
        print("| cell | first ratio | pairs | old us | new us | new / old | 95 % interval | |\n|---|---:|---:|---:|---:|---:|---|---|")
        for cell in self.suspects():
            first, again = self.cells[cell]["first"], self.cells[cell]["again"]
            span = interval(again)
            verdict = "open" if not span or self.is_open(cell) or span[0] <= self.o.limit <= span[1] else "slower" if span[0] > self.o.limit else "not slower"
            slower += verdict == "slower"
            times = [f"{statistics.median(t):.4g} ({min(t):.4g} .. {max(t):.4g})" for t in ([p[i] for p in again] for i in (0, 1)) if t] or ["", ""]
            print(f"| {' '.join(map(str, cell))} | {ratio_of(first):.2f} | {len(again)} | {times[0]} | {times[1]} | " +
                  (f"{ratio_of(again):.3f}" if again else "") + " | " + (f"{span[0]:.3f} .. {span[1]:.3f}" if span else "") + f" | {verdict} |")
        return slower


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("old")
    a.add_argument("new")
    a.add_argument("--transports", default="shm")
    a.add_argument("--collectives", default=COLLECTIVES)
    a.add_argument("--ranks", default="2")
    a.add_argument("--sizes", default="4,64,1K,16K,256K,4M,64M")
    a.add_argument("--mem", default="malloc,banyan", help="malloc: any memory; banyan: from banyan_mem_alloc")
    a.add_argument("--codecs", default="none", help="semicolons part parameters here: int8:force=1;block=64")
    a.add_argument("--rounds", type=int, default=4)
    a.add_argument("--limit", type=float, default=1.03)
    a.add_argument("--most", type=int, default=40)
    a.add_argument("--seconds", type=float, default=math.inf)
    a.add_argument("--json")
    bench = Bench(a.parse_args())
    if bench.first():
        bench.again()
    else:
        print("builds.py: the time is over; more with the same --json", file=sys.stderr)
    bench.save()
    bench.table()
    return 1 if bench.verdicts() or bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
