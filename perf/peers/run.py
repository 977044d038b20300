#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures banyan beside Open MPI, MPICH, Gloo and a hand-written limit, interleaved: in every round each size
is run by each library once, so that a slow minute of the machine hits all of them. Prints a markdown table
(median over the rounds of the medians; spread of ours), and writes all numbers as JSON.

    perf/peers/run.py --build build --quick
    perf/peers/run.py --build build --collective allreduce --ranks 2,4 --transport shm,tcp --rounds 5
"""
import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = "4,64,1K,4K,32K,256K,1M,4M,16M,64M"
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


def build(out):
    """Compiles what can be compiled; returns {name: path} and says what is missing."""
    out = os.path.abspath(out)
    os.makedirs(out, exist_ok=True)
    jobs = [
        ("limit", "gcc", ["-O3", "-march=native", "-std=gnu11", "limit.c"], [], "gcc"),
        ("openmpi", "mpicc.openmpi", ["-O2", "-std=gnu11", '-DPEER_NAME="openmpi"', "mpi_peer.c"], [],
         "libopenmpi-dev openmpi-bin"),
        ("mpich", "mpicc.mpich", ["-O2", "-std=gnu11", '-DPEER_NAME="mpich"', "mpi_peer.c"], [],
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


def libraries(have, perf, transport, ranks, collective, schedule):
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

    def openmpi(*mca):
        def command(coll, nbytes, iters, warmup, tmp):
            place = ["--bind-to", "none"] if crowded else ["--bind-to", "core"]
            yields = ["--mca", "mpi_yield_when_idle", "1"] if crowded else []
            return [["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *place, *yields,
                     *mca, have["openmpi"], *peer_args(coll, nbytes, iters, warmup)]]
        return command

    def mpich(coll, nbytes, iters, warmup, tmp):
        place = [] if crowded else ["-bind-to", "core"]
        return [["mpirun.mpich", "-n", str(ranks), *place, have["mpich"], *peer_args(coll, nbytes, iters, warmup)]]

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
        if transport == "shm":
            cols.append(Library("Open MPI CMA", openmpi("--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca",
                                                        "btl_vader_single_copy_mechanism", "cma")))
            cols.append(Library("Open MPI UCX", openmpi("--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any",
                                                        "--mca", "pml_ucx_devices", "any"),
                                {"UCX_TLS": "self,posix,cma"}))
        else:
            cols.append(Library("Open MPI tcp", openmpi("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca",
                                                        "btl_tcp_if_include", "lo")))
    # MPICH only spins: with more ranks than CPUs each exchange costs it time slices.
    if "mpich" in have and not crowded:
        env = {} if transport == "shm" else {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "self,tcp", "UCX_NET_DEVICES": "lo",
                                             "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}
        cols.append(Library("MPICH" if transport == "shm" else "MPICH tcp", mpich, env))
    if "gloo" in have and transport == "tcp" and collective not in ("reduce_scatter", "sendrecv"):
        cols.append(Library("Gloo", gloo))
    if "limit" in have and transport == "shm" and ranks == 2 and collective == "allreduce":
        cols.append(Library("limit", limit("private"), is_limit=True))
        if perf:
            cols.append(Library("limit (shared memory)", limit("shared"), is_limit=True))
    return cols


def measure_all(cols, collective, sizes, args):
    """{column name: {size: [median of each round]}}"""
    got = {c.name: {s: [] for s in sizes} for c in cols}
    for rnd in range(args.rounds):
        for size in sizes:
            for c in cols:
                if c.failed:
                    continue
                try:
                    us = c.measure(collective, size, iterations(size, args.quick), args.warmup, args.timeout)
                    got[c.name][size].append(us)
                except (RuntimeError, OSError, ValueError) as e:
                    print(f"run.py: {c.name}, {collective}, {show_size(size)}: {e}", file=sys.stderr)
                    # A peer that does not start is left out; one that fails at one size may work at others.
                    if rnd == 0 and size == sizes[0] and not c.ours:
                        c.failed = str(e)
            print(f"run.py: round {rnd + 1} of {args.rounds}, {collective} {show_size(size)}", file=sys.stderr)
    return got


def table(cols, got, sizes):
    med = {c.name: {s: statistics.median(v) if (v := got[c.name][s]) else None for s in sizes} for c in cols}
    ours = [c.name for c in cols if c.ours]
    peers = [c.name for c in cols if not c.ours and not c.is_limit and not c.failed]
    limits = [c.name for c in cols if c.is_limit and not c.failed]
    head = ["size"] + [f"{n} us" for n in ours + peers + limits]
    head += [f"best peer / {n}" for n in ours]
    head += [f"{n} / {m}" for n, m in zip(ours, limits)] + (["spread of ours"] if ours else [])
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    for s in sizes:
        best = min((med[p][s] for p in peers if med[p][s] is not None), default=None)
        row = [show_size(s)] + [show_us(med[n][s]) for n in ours + peers + limits]
        for n in ours:
            row.append(f"{best / med[n][s]:.2f}" if best and med[n][s] else "-")
        for n, m in zip(ours, limits):
            row.append(f"{med[n][s] / med[m][s]:.2f}" if med[n][s] and med[m][s] else "-")
        if ours:
            v = got[ours[0]][s]
            row.append(f"{min(v):.4g}-{max(v):.4g}" if v else "-")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines), med


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
    ap.add_argument("--out", help="write the markdown there as well")
    ap.add_argument("--json", help="write all numbers there")
    args = ap.parse_args()
    args.rounds = args.rounds or (2 if args.quick else 5)
    sizes = [parse_size(s) for s in (args.sizes or (QUICK_SIZES if args.quick else SIZES)).split(",")]
    perf = find_perf(args)
    have = build(os.path.join(args.build, "peers") if os.path.isdir(args.build) else tempfile.mkdtemp())
    parts, record = [header()], []
    for transport in args.transport.split(","):
        for ranks in (int(r) for r in args.ranks.split(",")):
            for collective in args.collective.split(","):
                cols = libraries(have, perf, transport, ranks, collective, args.schedule)
                got = measure_all(cols, collective, sizes, args)
                text, med = table(cols, got, sizes)
                place = "in place" if collective in ("allreduce", "broadcast", "reduce") else "out of place"
                parts.append(f"### {collective}, {transport}, {ranks} ranks on {len(os.sched_getaffinity(0))} cores, "
                             f"f32, {place}\n\n{text}")
                record.append({"collective": collective, "transport": transport, "ranks": ranks,
                               "rounds_us": got, "median_us": med})
    text = "\n\n".join(parts) + "\n"
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"header": header(), "tables": record}, f, indent=1)
    return 0 if any(v for r in record for c in r["rounds_us"].values() for v in c.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
