#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Intel MPI Benchmarks (IMB-MPI1) plain and with libbanyan-mpi.so preloaded, interleaved: in every round each benchmark runs
under each MPI once without and once with it, over all sizes. Prints a markdown table an MPI: the median of the rounds' ratios
plain / interposed (1.1: a tenth faster with the library), in brackets the least and the greatest. The barriers between the calls are IMB's own, of
messages, and so the same for both: MPICH's lets ranks go at times that hide a part of its next broadcast.

    perf/peers/imb.py --build build --source FOLDER --rounds 5
    perf/peers/imb.py --build build --source FOLDER --only PingPong,Sendrecv --mpi mpich

FOLDER is a clone of github.com/intel/mpi-benchmarks; each MPI's program is built from a copy, beside the build."""
import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import mpi_interposer
import mpi_programs
import run

MESSAGES = ("PingPong", "PingPing", "Sendrecv", "Exchange")
COLLECTIVES = ("Allreduce", "Bcast", "Reduce", "Allgather", "Allgatherv", "Alltoall", "Reduce_scatter", "Gather", "Scatter", "Barrier")


def program(mpi, source, where):
    folder = where / f"imb-{mpi}"
    exe = folder / "IMB-MPI1"
    if not exe.exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        with open(where / f"imb-{mpi}.log", "w", encoding="utf-8") as log:
            subprocess.run(["make", "IMB-MPI1", f"CC=mpicc.{mpi}", f"CXX=mpicxx.{mpi} -DOMPI_SKIP_MPICXX", "CFLAGS=-O2 -w", "CXXFLAGS=-O2 -w"],
                           cwd=folder, check=True, stdout=log, stderr=subprocess.STDOUT)
    return str(exe)


def times(text):
    """{bytes: us} of one benchmark's output: the mean of all ranks where it tells one."""
    head, got = None, {}
    for line in text.splitlines():
        words = line.split()
        if "#repetitions" in line:
            head = [w.lstrip("#") for w in words]
        elif head and words and re.fullmatch(r"\d+", words[0]) and len(words) >= len(head):
            row = dict(zip(head, words))
            got[int(row.get("bytes", 0))] = float(row["t_avg[usec]"] if "t_avg[usec]" in row else row["t[usec]"])
    return got


def measure(mpi, exe, ranks, benchmark, sizes, library, seconds, limit):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lengths:
        lengths.write("".join(f"{n}\n" for n in sizes))
        lengths.flush()
        job = subprocess.run(mpi_interposer.command(mpi, exe, ranks, ["-npmin", str(ranks), "-msglen", lengths.name, "-time", str(seconds),
                             "-iter", "5000", "-imb_barrier", "on", benchmark], ranks > os.cpu_count()),
                             env=mpi_programs.environment(library), capture_output=True, text=True, timeout=limit, check=False)
    got = times(job.stdout)
    if job.returncode or not got:
        raise RuntimeError(f"{mpi} {benchmark}: {job.returncode}: {job.stdout[-300:]} {job.stderr[-300:]}")
    return got


def show(mpi, got, sizes):
    print(f"\n### IMB under {mpi}, plain / interposed\n\n| |" + "".join(f" {run.show_size(n)} |" for n in sizes))
    print("|---|" + "---:|" * len(sizes))
    for benchmark in (*MESSAGES, *COLLECTIVES):
        cells = {n: sorted(r) for (m, b, n), r in got.items() if (m, b) == (mpi, benchmark)}
        if not cells:
            continue
        line = f"| {benchmark} |"
        for n in sizes:
            ratios = cells.get(0 if benchmark == "Barrier" and n == sizes[0] else n)
            line += f" {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) |" if ratios else " |"
        print(line, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--source", type=pathlib.Path, required=True, help="a clone of github.com/intel/mpi-benchmarks")
    p.add_argument("--mpi", choices=("openmpi", "mpich"), action="append", help="default: both")
    p.add_argument("--only", default=",".join((*MESSAGES, *COLLECTIVES)), help="benchmarks")
    p.add_argument("--sizes", default="4,64,1K,4K,32K,256K,1M,4M")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.25, help="at most, for one size")
    p.add_argument("--timeout", type=float, default=120, help="seconds for one run")
    args = p.parse_args()
    library = os.path.abspath(os.path.join(args.build, "integrations", "mpi", "libbanyan-mpi.so"))
    where = pathlib.Path(args.build, "peers").resolve()
    where.mkdir(exist_ok=True)
    sizes = [run.parse_size(s) for s in args.sizes.split(",")]
    mpis = [m for m in args.mpi or ("openmpi", "mpich") if shutil.which("mpicxx." + m) or print(f"skipped: no mpicxx.{m}", file=sys.stderr)]
    exes = {m: program(m, args.source, where) for m in mpis}
    got = {}
    for _ in range(args.rounds):
        for mpi in mpis:
            for benchmark in args.only.split(","):
                plain, ours = (measure(mpi, exes[mpi], args.ranks, benchmark, sizes, lib, args.seconds, args.timeout) for lib in (None, library))
                for n, us in plain.items():
                    if n in ours and ours[n] > 0:
                        got.setdefault((mpi, benchmark, n), []).append(us / ours[n])
    print(run.header().replace("run.py", "imb.py"))
    for mpi in mpis:
        show(mpi, got, sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
