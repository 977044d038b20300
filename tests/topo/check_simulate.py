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

code, out, err = run(topo, "compare", "--topo", "torus:4x4", "-b", "1M")
times = {line.split()[0]: float(line.split()[1]) for line in out.splitlines()[2:]}
expect(code == 0 and {"packed", "multitree", "ring", "swing", "halving", "star"} <= set(times), f"compare: {out}{err}")
expect(list(times.values()) == sorted(times.values()), f"compare sorts: {out}")
code, out, err = run(topo, "compare", "star", "ring", "--topo", "torus:4x4", "-b", "1M", "--json")
rows = [json.loads(line) for line in out.splitlines()]
expect([r["schedule"] for r in rows] == ["star", "ring"], f"compare what is named: {out}{err}")
expect(all(abs(times[r["schedule"]] / r["time_us"] - 1) < 1e-3 for r in rows), f"compare in JSON: {out}")
expect(rows[1]["time_us"] == simulates("torus:4x4", "-s", "ring", "-b", "1M")["time_us"], "compare as simulate")
code, out, err = run(topo, "compare", "ring", "nope", "--topo", "torus:4x4")
expect(code == 1 and "nope" in err and not out, f"compare an unknown one: {out}{err}")

with tempfile.TemporaryDirectory() as folder:
    trace = os.path.join(folder, "trace.json")
    row = simulates("torus:4x4", "-s", "multitree", "-b", "1M", "--trace", trace)
    with open(trace, encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
    expect(abs(max(e["ts"] + e["dur"] for e in events) / row["time_us"] - 1) < 1e-3, "a trace ends when the schedule does")
    expect({e["pid"] for e in events} == set(range(16)), "a trace has all ranks")
    # 16 trees of a sixteenth of the data each; each of 15 ranks sends it up and gets it down
    expect(abs(sum(e["args"]["bytes"] for e in events) - 2 * 15 * 2**20) < 1, "a trace has all bytes")
    tracks = {}
    for e in sorted(events, key=lambda e: e["ts"]):
        expect(e["ts"] >= tracks.get((e["pid"], e["tid"]), 0) - .002, "messages of a track follow each other")
        tracks[e["pid"], e["tid"]] = e["ts"] + e["dur"]
    code, out, err = run(topo, "simulate", "--topo", "torus:4x4", "--trace", "/nonexistent/x")
    expect(code == 1 and "/nonexistent/x" in err, f"a trace that cannot be written: {err}")

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
