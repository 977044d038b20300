# SPDX-License-Identifier: BSD-3-Clause
"""Promises of banyan_topo simulate: a JSON row for every generator, schedule and collective; nothing is faster than its
bound; what is wrong is said in one line, with exit status 1 (2 for wrong options). And perf/forests_sim's curves are
rows that banyan_plot draws. Usage: check_simulate.py BANYAN_TOPO FORESTS_SIM BANYAN_PLOT"""
import json
import os
import subprocess
import sys
import tempfile

topo, forests_sim, plot = sys.argv[1:4]
failures = []
FIELDS = {"topo", "ranks", "schedule", "bytes", "time_us", "algbw_GBps", "bound_us"}


def run(*args):
    out = subprocess.run(args, capture_output=True, text=True, timeout=100)
    return out.returncode, out.stdout, out.stderr


def expect(ok, what):
    if not ok:
        failures.append(what)


def simulates(name, *args):
    code, out, err = run(topo, "simulate", "--topo", name, "--json", *args)
    expect(code == 0 and out.count("\n") == 1, f"simulate {name} {args}: {err}")
    row = json.loads(out) if code == 0 else {}
    expect(FIELDS <= set(row), f"{name} {args}: {row}")
    if row.get("bound_us"):
        expect(row["time_us"] > 0.999999 * row["bound_us"], f"{name} {args}: faster than its bound: {row}")
    return row


for name in ["torus:4x4", "mesh:3x5", "hypercube:4", "ring:9", "star:4x100+4x25", "fattree:16", "leafspine:4x4,over=2",
             "bigraph:4x4", "dgx-1", "dgx-a100:2", "torus:4x4!dead=0-1"]:
    expect(simulates(name, "--bytes", "1M").get("topo") == name, name)
for schedule in ["multitree", "torus_bucket", "swing", "ordered_ring", "blueconnect", "ring", "bine", "trivance", "pat"]:
    expect(simulates("torus:4x4", "-s", schedule).get("schedule") == schedule, schedule)
for collective in ["allgather", "reduce_scatter", "broadcast", "reduce"]:
    simulates("torus:4x4", "-c", collective, "-s", "multitree", "-r", "0")
half, whole = (simulates("torus:4x4", "-s", "ring", "-b", size)["time_us"] for size in ("32M", "64M"))
expect(1.9 < whole / half < 2.1, f"twice the bytes: {half} and {whole} us")
expect(simulates("torus:8x8", "-s", "multitree", "--lockstep")["time_us"] >=
       simulates("torus:8x8", "-s", "multitree")["time_us"], "lock-step is not faster")

for args, status, word in [(["--schedule", "nope"], 1, "nope"), (["--schedule", "./no.json"], 1, "no.json"),
                           (["--schedule", "swing", "--topo", "torus:3x3"], 1, "swing"),
                           (["-c", "reduce", "-r", "99"], 2, "99"), (["x"], 2, "x"), (["--joint"], 2, "joint")]:
    code, out, err = run(topo, "simulate", "--topo", "torus:4x4", *args)
    expect(code == status and word in err and err.count("\n") == 1 and not out, f"{args}: {code} {err!r}")

code, out, err = run(forests_sim, "curves", "torus:4x4")
rows = [json.loads(line) for line in out.splitlines()]
expect(code == 0 and len({r["transport"] for r in rows}) == 7, f"curves: {err}")
with tempfile.TemporaryDirectory() as folder:
    source, drawn = os.path.join(folder, "r.json"), os.path.join(folder, "r.svg")
    with open(source, "w", encoding="utf-8") as file:
        file.write(out)
    expect(run(sys.executable, plot, source, "-o", drawn)[0] == 0 and os.path.getsize(drawn) > 1000, "the figure")

print("\n".join(failures) or "banyan_topo simulate keeps its promises")
sys.exit(bool(failures))
