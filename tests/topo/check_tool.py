# SPDX-License-Identifier: BSD-3-Clause
"""Promises of banyan_topo show and probe: every generator, file and machine is shown and its JSON parses; what is wrong is said in
one line that names it, with exit status 1 (or 2 for wrong options); a probe's file is a graph again.
Usage: check_tool.py BANYAN_TOPO BANYAN_RUN SEEDS MACHINES"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

topo, launcher = sys.argv[1:3]
seeds, machines = map(pathlib.Path, sys.argv[3:5])
failures = []


def tool(*args, prefix=(), **env):
    out = subprocess.run([*prefix, topo, *args], capture_output=True, text=True, timeout=60, env={**os.environ, **env})
    return out.returncode, out.stdout, out.stderr


def expect(ok, what):
    if not ok:
        failures.append(what)


def shows(name):
    code, out, err = tool("show", "--topo", name, "--json")
    expect(code == 0, f"show {name}: {err}")
    return json.loads(out) if code == 0 else {}


def works(name, folder):
    """Everything that banyan_topo does with a graph: bound, plan to a file, verify, simulate and draw that file."""
    plan, picture = os.path.join(folder, "plan.json"), os.path.join(folder, "plan.svg")
    for args in (["bound"], ["plan", "-s", "packed", "-o", plan], ["verify", plan], ["simulate", "-s", plan],
                 ["draw", "-s", plan, "-o", picture]):
        code, out, err = tool(*args, "--topo", name, *([] if args[0] == "draw" else ["--json"]))
        expect(code == 0, f"{args[0]} of {name}: {err}")
        if code == 0 and args[0] in ("bound", "verify", "simulate"):
            answer = json.loads(out)
            expect(args[0] != "verify" or (answer["ok"] and answer["gap"] < 0.01), f"{name}: {answer}")
    if os.path.exists(picture):
        with open(picture, encoding="utf-8") as svg:
            expect("</svg>" in svg.read(), f"picture of {name}")


with tempfile.TemporaryDirectory() as pictures:
    for topology, schedule, collective in (("torus:3x3", "packed", "allreduce"), ("ring:5", "multitree", "allgather"),
                                           ("torus:2x3", "ring", "allreduce"), ("dgx-1", "halving", "reduce_scatter")):
        algorithm = os.path.join(pictures, "a.xml")
        code, out, err = tool("plan", "-s", schedule, "-c", collective, "--topo", topology, "-o", algorithm)
        expect(code == 0, f"{schedule} of {topology} as XML: {err}")
        code, out, err = tool("verify", algorithm, "--topo", topology, "-c", collective, "--json")
        expect(code == 0 and json.loads(out)["kind"] == "program", f"verify {schedule} of {topology} as XML: {out}{err}")
        code, out, err = tool("draw", algorithm, "--topo", topology)
        expect(code == 0 and "</svg>" in out, f"draw {schedule} of {topology} as XML: {err}")
        code, out, err = tool("simulate", "-s", algorithm, "--topo", topology)
        expect(code == 1 and "MSCCL XML has no trees" in err, f"simulate XML: {err}")
    os.remove(algorithm)
    code, out, err = tool("plan", "-c", "broadcast", "--topo", "ring:5", "-o", algorithm)
    expect(code == 1 and "no place in MSCCL XML" in err and not os.path.exists(algorithm), f"broadcast as XML: {err}")
    for algorithm in sorted((seeds.parent / "plan").glob("*.xml")):  # MSCCL's, for two ranks
        picture = os.path.join(pictures, "a.svg")
        code, out, err = tool("draw", str(algorithm), "--topo", "hypercube:1", "-o", picture)
        expect(code == 0, f"draw {algorithm}: {err}")
        with open(picture, encoding="utf-8") as svg:
            expect(f"{algorithm}" in svg.read(), f"title of {algorithm}")
        code, out, err = tool("draw", str(algorithm), "--topo", "ring:5")
        expect(code == 1 and "it is for 2 ranks, ring:5 has 5" in err, f"{algorithm} on 5 ranks: {err}")

GENERATED = ["torus:4x4", "mesh:3x5", "hypercube:5", "ring:9", "random:20", "star:4x100+4x25", "fattree:64,over=4",
             "leafspine:4x8,over=2", "bigraph:4x8", "dragonfly:9x4x2", "dgx-1", "dgx-a100:2", "dgx-h100:2", "mi250:2",
             "torus:4x4!dead=0-1"]
for name in GENERATED:
    expect(shows(name).get("topo") == name, name)
for file in [*seeds.iterdir(), *machines.glob("*.xml")]:
    expect(shows(str(file)).get("ranks", 0) > 1, str(file))

for file in sorted(machines.glob("*.xml")):
    code, out, err = tool("show", "--json", HWLOC_XMLFILE=str(file))
    expect(code == 0 and json.loads(out)["cores"], f"machine {file.name}: {err}")
    expect(shows(str(file))["ranks"] == len(json.loads(out)["cores"]), file.name)
def started(*args, **env):
    out = subprocess.run([launcher, *args], capture_output=True, text=True, timeout=60, env={**os.environ, **env})
    return out.returncode, out.stdout, out.stderr


# Where ranks run: spread over packages, each with free CPUs near it; what this machine allows is kept.
code, out, err = started("-n", "4", "--report-bindings", "true", HWLOC_SYNTHETIC="package:2 core:4 pu:2")
places = [line.split(": ", 2)[2] for line in err.splitlines()]
expect(code == 0 and [p.split(",")[0] for p in places] == ["CPU 0", "CPU 4", "CPU 8", "CPU 12"], f"four of sixteen: {err}")
expect([("package 0" in p, "package 1" in p) for p in places] == [(True, False)] * 2 + [(False, True)] * 2, f"packages: {err}")
# Each rank's line is one write: print() with PYTHONUNBUFFERED set makes two, and another rank's may come between.
code, out, err = started("-n", "2", "--bind", sys.executable, "-c",
                         "import os; os.write(1, b'%s\\n' % ' '.join(map(str, sorted(os.sched_getaffinity(0)))).encode())")
given = [set(map(int, line.split())) for line in out.splitlines()]
allowed = os.sched_getaffinity(0)
expect(code == 0 and len(given) == 2 and all(g and g <= allowed for g in given), f"--bind: {given} of {allowed} {err}")
expect(len(allowed) < 2 or not given[0] & given[1], f"--bind: {given} are not apart")
code, out, err = started("-n", "1", "--bind", sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))",
                         HWLOC_SYNTHETIC="package:1 core:1 pu:1")
expect(code == 0, f"--bind on a made-up machine: {err}")
code, out, err = started("-n", "1", "--bind=everywhere", "true")
expect(code == 2 and "near, list or none" in err, f"--bind=everywhere: {code} {err}")

code, out, err = tool("show", "--topo", "machine:6", "--json", HWLOC_SYNTHETIC="package:2 core:4 pu:1")
expect(code == 0 and json.loads(out)["ranks"] == 6, f"synthetic: {err}")

with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "tune")
    code, out, err = tool("show", BANYAN_TUNE=file)
    measured = os.path.exists(file)  # not with one CPU, or where processes may not be read
    expect(code == 0 and ("a word" if measured else "not measured") in out, f"show: {out!r}")
    code, out, err = tool("show", "--json", BANYAN_TUNE=file)
    shm = json.loads(out)["shm"]
    expect(not measured or shm["hand_ns"] > 0 and all(s["ring_ns"] > 0 and s["plain_ns"] > 0 and s["single_ns"] > 0 for s in shm["sizes"]), f"show --json: {out!r}")
    code, out, err = tool("show", "--json", BANYAN_TUNE="0")
    expect(code == 0 and json.loads(out)["shm"] is None, f"show without numbers: {out!r}")
for args, status, word in [(["show", "--topo", "torus:4y"], 1, "torus:AxB"), (["show", "--topo", "nowhere"], 1, "nowhere"),
                           (["show", "--topo", "./no.json"], 1, "no.json"), (["show", "--bytes", "4"], 2, "--bytes"),
                           (["show", "x"], 2, "x"), (["sho"], 2, "sho"), ([], 2, "command"),
                           (["probe"], 1, "banyan_run"), (["plan", "-t", "ring:4", "-s", "nosuch"], 1, '"nosuch" is neither a builder'),
                           (["verify", "nosuch"], 1, '"nosuch" is neither a builder'),
                           *[([*c.split(), "-t", "ring:4", "-c", "reduce", "-r", "9"], 2, "--root 9: ring:4 has ranks 0 to 3")
                             for c in ("bound", "plan", "simulate", "verify packed", "verify binomial", "draw", "draw binomial")]]:
    code, out, err = tool(*args)
    expect(code == status and word in err and err.count("\n") == 1 and not out, f"{args}: {code} {err!r}")

for args in (["show", "--nosuch"], ["show", "-t"]):  # a line of getopt's before ours
    code, out, err = tool(*args)
    expect(code == 2 and "banyan_topo: " in err and "--help" in err and not err.startswith("show"), f"{args}: {code} {err!r}")

with tempfile.TemporaryDirectory() as folder:
    for name in [*GENERATED, *map(str, seeds.iterdir()), *map(str, machines.glob("*.xml"))]:
        works(name, folder)
    code, out, err = tool("verify", "packed", "-t", "torus:16x16", "-c", "allreduce", "--json")  # 256 ranks, proven
    expect(code == 0 and json.loads(out)["slots"] >= 0, f"256 ranks: {err}")

def coded(codec, *args):
    """plan --codec: what a codec loses on a plan."""
    code, out, err = tool("plan", "--codec", codec, "--json", *args)
    expect(code == 0, f"plan --codec {codec}: {err}")
    return json.loads(out) if code == 0 else {}


star = ["-t", "star:8", "-s", "star"]
row = coded("int8", *star)
expect(abs(row["nmse"] - 1.875e-4) < 1e-8 and abs(row["max"] - 2 / 254) < 1e-5, f"int8 on a star: {row}")
row = coded("int8", "-t", "ring:8", "-s", "ring")  # encoded once a hop
expect(row["nmse"] > 3e-4 and abs(row["max"] - 8 / 254) < 1e-5, f"int8 on a ring: {row}")
row = coded("levels:up=raw,down=int8", "-t", "ring:8", "-s", "ring")
expect((row["up"], row["down"]) == ("raw", "int8") and abs(row["nmse"] - 1e-4) < 1e-8, f"results in int8: {row}")
expect(coded("topk", *star)["nmse"] is None, "what top-k loses is not known")
for budget in "nmse=1e-3", "max=2e-2", "max=5e-3", "nmse=0":
    kind, limit = budget.split("=")
    for args in star, ["-t", "torus:4x4"], ["-t", "fattree:16", "-c", "reduce_scatter"]:
        row = coded(f"auto:{budget}", *args)
        gains = max(row.get("wire_s", 9), row.get("cpu_s", 9)) < row["raw_s"]
        expect(row["codec"].startswith("levels:") == gains and row.get(kind, 0) <= float(limit), f"auto:{budget} on {args}: {row}")
expect(coded("auto:max=0,from=raw+int8", *star)["codec"] == "none", "a budget that no codec keeps")
row = coded("auto:nmse=.1", "-t", "star:8x1000", "-s", "star")
expect(row["codec"] == "none" and row["raw_s"] > 0, f"raw data on fast links: {row}")
row = coded("auto:nmse=100,feedback=1,from=int4", *star)
expect(row.get("nmse", 0) <= .5, f"residuals that grow: {row}")
expect(coded("auto:nmse=.1", "-t", "torus:4x4", "-s", "packed").get("refused"), "a budget on schedule packed")
expect("refused" not in coded("auto:nmse=.1", *star), "a budget on schedule star")
code, out, err = tool("plan", "--codec", "topk", *star)
expect(code == 0 and "nmse unknown, max unknown" in out and "; raw data " in out, f"plan --codec topk: {out!r} {err}")
code, out, err = tool("plan", "--codec", "none", *star)
expect(code == 0 and "codec none: raw data " in out and "raw data 0 ms" not in out, f"plan --codec none: {out!r} {err}")
code, out, err = tool("plan", "--codec", "auto:like=int8", *star)
expect(code == 0 and "codec auto:like=int8: up " in out and " ms on the wire, " in out, f"plan --codec: {out!r} {err}")

with tempfile.TemporaryDirectory() as folder:
    large = os.path.join(folder, "large.json")
    code, out, err = tool("plan", "-t", "star:520", "-c", "broadcast", "-s", "binomial", "-o", large)
    expect(code == 0, f"plan of 520 ranks: {err}")
    code, out, err = tool("probe", prefix=(launcher, "--timeout", "50", "-n", "2"), BANYAN_SCHEDULE=large)
    expect(code != 0 and "large.json is for 520 ranks; plans of more than 512 cannot be proven" in err, f"a large plan: {code} {err}")

with tempfile.TemporaryDirectory() as folder:
    copy = os.path.join(folder, "copy.json")
    expect(tool("show", "-t", "dgx-a100:2", "-o", copy)[0] == 0, "writing JSON")
    expect(shows(copy) == shows("dgx-a100:2"), "own JSON changed the graph")
    measured = os.path.join(folder, "measured.json")
    code, out, err = tool("probe", "-o", measured, prefix=(launcher, "--timeout", "50", "-n", "3"))
    expect(code == 0, f"probe: {err}")
    if code == 0:
        expect(shows(measured)["ranks"] == 3, "the measured graph")
        with open(measured, encoding="utf-8") as file:
            probe = json.load(file)["probe"]
        expect(probe["levels"][-1]["clusters"] == 1 and probe["pair_GBps"]["min"] > 0, str(probe))

print("\n".join(failures) or "banyan_topo keeps its promises")
sys.exit(bool(failures))
