#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Plans every topology of tests/topo/zoo.h with banyan_topo and writes what came out, as Markdown rows and an SVG table.

    perf/forests.py --tool build/tools/banyan_topo --svg perf/forests.svg > forests.md

For each topology: the exact allgather bound 1/x* (shards over capacity 1), packed trees for it and what they claim above
it; reduce-scatter + allgather (packed) and joint allreduce times over S; MultiTree's gap for comparison; buffers a channel with
which all programs are proven free of deadlock; seconds to build (the median of --repeat). Plans of more than --most
ranks are skipped. It fails where a bound is not the one known, a plan is more than 1 % above it or needs more than 4 buffers. Exact fractions are what the plan claims and its cut proves, so only the seconds depend on the machine.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
from fractions import Fraction
from html import escape
from pathlib import Path

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .head { font-weight: 600 } .title { font-size: 16px; font-weight: 600 }
.back { fill: #ffffff } .band { fill: #f3f5f8 } .bar { fill: #009e73 } .far { fill: #d55e00 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .back { fill: #0d1117 } .band { fill: #161b22 }
}
"""
COLUMNS = [("topology", 200), ("ranks", 50), ("1/x*", 64), ("trees", 50), ("height", 52), ("above bound", 88),
           ("slots", 44), ("seconds", 66), ("RS+AG / S", 92), ("joint / S", 92), ("gain", 52), ("MultiTree above", 110)]


def zoo(path):
    return [(m[1], m[2], int(m[3])) for m in
            re.finditer(r'\{ "([^"]+)", "([^"]+)", (\d+) \}', Path(path).read_text(encoding="utf-8"))]


def ask(tool, *words):
    p = subprocess.run([tool, *words, "--json"], capture_output=True, text=True, timeout=600, check=False)
    if p.returncode:
        return None
    return json.loads(p.stdout)


def percent(gap):
    return "0" if gap == 0 else f"{100 * gap:.0f} %" if gap >= 0.1 else f"{100 * gap:.2g} %"


def measure(tool, topo, known, ranks, repeat):
    bound = ask(tool, "bound", "--topo", topo, "-c", "allgather")
    if bound is None or Fraction(bound["bound"]) != Fraction(known):
        sys.exit(f"forests.py: {topo}: the bound is {bound and bound['bound']}, not {known}")
    rows = [ask(tool, "plan", "--topo", topo, "-c", "allgather", "-s", "packed") for _ in range(repeat)]
    gather = rows[0]
    apart = ask(tool, "plan", "--topo", topo, "-s", "packed") if ranks <= 256 else None
    joint = ask(tool, "plan", "--topo", topo, "-s", "joint", "-j") if ranks <= 256 else None
    multitree = ask(tool, "plan", "--topo", topo, "-c", "allgather", "-s", "multitree")
    plans = [gather] + ([apart, joint] if ranks <= 256 else [])
    if None in plans:
        sys.exit(f"forests.py: {topo}: no plan")
    for p in plans:
        if p["gap"] > 0.01 or not 0 <= p["slots"] <= 4:
            sys.exit(f"forests.py: {topo}: {p['schedule']} is {percent(p['gap'])} above the bound, with {p['slots']} buffers a channel")
    gain = float(Fraction(apart["claimed"]) / Fraction(joint["claimed"])) if joint else None
    return [topo, ranks, known, gather["trees"], gather["height"], percent(gather["gap"]),
            max(p["slots"] for p in plans),
            f"{statistics.median(r['seconds'] for r in rows):.3f}",
            apart["claimed"] if apart else "-", joint["claimed"] if joint else "-",
            f"{gain:.2f}x" if gain else "-", percent(multitree["gap"]) if multitree else "-"]


def svg(rows):
    width, high = sum(w for _, w in COLUMNS) + 24, 22
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{(len(rows) + 3) * high}" '
           f'viewBox="0 0 {width} {(len(rows) + 3) * high}"><style>{STYLE}</style>',
           '<rect class="back" width="100%" height="100%"/>',
           '<text class="title" x="12" y="22">Packed and joint plans against the cut bound</text>']
    for i, row in enumerate([[name for name, _ in COLUMNS], *rows]):
        y, x = (i + 2) * high, 12
        if i % 2 == 0 and i:
            out.append(f'<rect class="band" y="{y - 15}" width="100%" height="{high}"/>')
        for value, (name, w) in zip(row, COLUMNS):
            right = name != "topology"
            head, end = 'class="head" ' if i == 0 else "", ' text-anchor="end"' if right else ""
            out.append(f'<text {head}x="{x + (w - 8 if right else 0)}" y="{y}"{end}>{escape(str(value))}</text>')
            x += w
    return "\n".join(out) + "\n</svg>\n"


def speed(program, repeat):
    times = {}
    for _ in range(repeat):
        p = subprocess.run([program, "speed"], capture_output=True, text=True, timeout=600, check=True)
        for r in map(json.loads, p.stdout.splitlines()):
            times.setdefault((r["what"], r["topo"], r["aim_s"]), []).append(r["seconds"])
    print("| what | of | seconds (least .. most) | aim |\n|---|---|---:|---:|")
    for (what, topo, aim), s in times.items():
        print(f"| {what} | {topo} | {statistics.median(s):.3g} ({min(s):.3g} .. {max(s):.3g}) | {aim:g} |")


def main():
    here = Path(__file__).resolve().parent.parent
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tool", default=str(here / "build/tools/banyan_topo"))
    p.add_argument("--zoo", default=str(here / "tests/topo/zoo.h"))
    p.add_argument("--svg", help="file for the table as a picture")
    p.add_argument("--most", type=int, default=1024, help="ranks")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--speed", metavar="FORESTS_SIM", help="instead: the times that build/perf/forests_sim speed takes, of --repeat runs")
    o = p.parse_args()
    if o.speed:
        speed(o.speed, o.repeat)
        return
    rows = [measure(o.tool, t, k, n, o.repeat) for t, k, n in zoo(o.zoo) if n <= o.most]
    print("| " + " | ".join(name for name, _ in COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for row in rows:
        print("| " + " | ".join(str(v) for v in row) + " |")
    if o.svg:
        Path(o.svg).write_text(svg(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
