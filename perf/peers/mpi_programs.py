#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What MPI programs do besides collectives of MPI_COMM_WORLD (mpi_programs.c), and HPC Challenge, plain and with
libbanyan-mpi.so preloaded, interleaved: in every round each case runs under each MPI once without and once with it, in turns first.
Prints a markdown table: medians over the rounds, and the median of the rounds' ratios.

    perf/peers/mpi_programs.py --build build --rounds 5
    perf/peers/mpi_programs.py --build build --mpi mpich --case threads --case windows

HPC Challenge is Debian's package hpcc, which is linked with Open MPI; --hpcc names it, and its input is test_mpi.py's
with a matrix of 1000. LAMMPS is Debian's packages lammps and lammps-examples, of Open MPI too: what it prints of each step
(energies, pressure, momenta) must be the same plain and with the library. What is not there is left out by name."""
import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import mpi_interposer
import run

CASES = {
    "split": "(split, 40 Allreduces of 4 B, free) x 100: ms",
    "dups": "300 communicators by dup, each 20 Allreduces: ms",
    "iallreduce": "1000 Iallreduces of 4 B, Waitall: ms",
    "threads": "four threads of MPI_THREAD_MULTIPLE, each 1000 Allreduces on its own communicator: ms",
    "one_thread": "one thread of MPI_THREAD_MULTIPLE, 4000 Allreduces: ms",
    "persistent": "100 times MPI_Start and MPI_Wait of a persistent Allreduce of 4 B: ms",
    "ping_4": "100 times 4 B there and back: ms",
    "ping_8k": "20 times 8 KiB there and back: ms",
    "ping_1m": "2 times 1 MiB there and back: ms",
    "windows": "5 windows of 64 sends and receives, each by MPI_Test: ms",
}
HPCC = {"hpcc": "HPC Challenge, all of it: s", "MPIRandomAccess_GUPs": "its RandomAccess: 1 / GUPS",
        "MPIFFT_Gflops": "its FFT: 1 / Gflops", "PTRANS_GBs": "its PTRANS: s / GB", "HPL_Tflops": "its HPL: 1 / Tflops"}

EXAMPLES = pathlib.Path("/usr/share/lammps/examples")
LAMMPS = {"lammps_lj": ("LAMMPS, Lennard-Jones liquid, 32000 atoms, 100 steps: s", "melt", [(r"block 0 10 0 10 0 10", "block 0 20 0 20 0 20"),
                        (r"(?m)^run\t+250", "run 100")]),
          "lammps_pppm": ("LAMMPS, peptide in water, PPPM, 2004 atoms, 100 steps: s", "peptide", [(r"(?m)^run\t+300", "run 100")])}


def environment(library):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BANYAN_", "LD_PRELOAD"))}
    return {**env, "LD_PRELOAD": library} if library else env


def small(exe, mpi, ranks, library, case, limit):
    """{row: figure} of one run."""
    job = subprocess.run(mpi_interposer.command(mpi, exe, ranks, [case], case == "threads" or ranks > os.cpu_count()), env=environment(library),
                         capture_output=True, text=True, timeout=limit, check=False)
    if job.returncode == 77:
        return {}
    if job.returncode:
        raise RuntimeError(f"{mpi} {case}: {job.returncode}: {job.stderr[-500:]}")
    ms, mib = map(float, job.stdout.split())
    return {case: ms, **({case + " memory": mib} if case == "dups" else {})}


def hpcc_input():
    text = (pathlib.Path(__file__).parents[2] / "tests/integrations/mpi/test_mpi.py").read_text(encoding="utf-8")
    text = re.search(r'HPCC_INPUT = """(.*?)"""', text, re.S).group(1)
    text = re.sub(r"(?m)^400( +Ns)", r"1000\1", text)
    return re.sub(r"(?m)^2( +Ps)", r"1\1", text)


def hpcc(program, ranks, library, limit):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "hpccinf.txt").write_text(hpcc_input(), encoding="ascii")
        start = time.monotonic()
        subprocess.run(mpi_interposer.command("openmpi", program, ranks, [], ranks > os.cpu_count()), env=environment(library),
                       cwd=folder, capture_output=True, timeout=limit, check=True)
        seconds = time.monotonic() - start
        said = dict(line.split("=", 1) for line in pathlib.Path(folder, "hpccoutf.txt").read_text(encoding="ascii", errors="replace")
                    .splitlines() if line.count("=") == 1)
    if said.get("Success") != "1":
        raise RuntimeError("hpcc failed")
    return {"hpcc": seconds, **{k: 1 / float(said[k]) for k in HPCC if k in said and float(said[k]) > 0}}


def lammps(program, case, ranks, library, limit):
    """({row: seconds}, what it printed of the steps)."""
    _, folder, changes = LAMMPS[case]
    text = (EXAMPLES / folder / f"in.{folder}").read_text(encoding="utf-8")
    for what, by in changes:
        text, n = re.subn(what, by, text)
        if n != 1:
            raise RuntimeError(f"{case}: the example has changed: {what}")
    with tempfile.TemporaryDirectory() as where:
        for data in (EXAMPLES / folder).glob("data.*"):
            shutil.copy(data, where)
        pathlib.Path(where, "in").write_text(text, encoding="utf-8")
        job = subprocess.run(mpi_interposer.command("openmpi", program, ranks, ["-in", "in", "-log", "none"], ranks > os.cpu_count()),
                             env={**environment(library), "OMP_NUM_THREADS": "1"}, cwd=where, capture_output=True, text=True,
                             timeout=limit, check=True)
    loop = re.search(r"Loop time of ([\d.]+)", job.stdout)
    steps = re.search(r"(?s)(Per MPI rank memory.*?)Loop time", job.stdout)
    if not loop or not steps:
        raise RuntimeError(f"{case}: no loop time: {job.stdout[-500:]}")
    return {case: float(loop.group(1))}, re.sub(r"Per MPI rank.*|CPU = *[\d.]+ .*", "", steps.group(1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--mpi", choices=("openmpi", "mpich"), action="append", help="default: both")
    p.add_argument("--case", choices=(*CASES, "hpcc", *LAMMPS), action="append", help="default: all")
    p.add_argument("--hpcc", default=shutil.which("hpcc"))
    p.add_argument("--lammps", default=shutil.which("lmp"))
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--timeout", type=float, default=120, help="seconds for one run")
    args = p.parse_args()
    library = os.path.abspath(os.path.join(args.build, "integrations", "mpi", "libbanyan-mpi.so"))
    where = os.path.join(args.build, "peers")
    os.makedirs(where, exist_ok=True)
    names = {**CASES, "dups memory": "memory they take at rank 0: MiB", **HPCC,
             **{case: row[0] for case, row in LAMMPS.items()}}
    got, printed = {}, {}
    for program, package in (args.hpcc, "hpcc"), (args.lammps and EXAMPLES.is_dir(), "lammps and lammps-examples"):
        if not program:
            print(f"skipped: no {package}", file=sys.stderr)
    for mpi in args.mpi or ("openmpi", "mpich"):
        if not shutil.which("mpicc." + mpi):
            print(f"skipped: no mpicc.{mpi}", file=sys.stderr)
            continue
        exe = os.path.abspath(os.path.join(where, "mpi_programs_" + mpi))
        subprocess.run(["mpicc." + mpi, "-O2", os.path.join(run.HERE, "mpi_programs.c"), "-o", exe, "-lpthread"], check=True)
        for turn in range(args.rounds):
            for case in args.case or (*CASES, "hpcc", *LAMMPS):
                for ours in (turn % 2 == 1, turn % 2 == 0):
                    preload = library if ours else None
                    if case in CASES:
                        rows = small(exe, mpi, args.ranks, preload, case, args.timeout)
                    elif mpi == "openmpi" and case == "hpcc" and args.hpcc:
                        rows = hpcc(args.hpcc, args.ranks, preload, args.timeout)
                    elif mpi == "openmpi" and case in LAMMPS and args.lammps and EXAMPLES.is_dir():
                        rows, steps = lammps(args.lammps, case, args.ranks, preload, args.timeout)
                        if printed.setdefault(case, steps) != steps:
                            raise RuntimeError(f"{case}: other results:\n{printed[case]}\n{steps}")
                    else:
                        continue
                    for row, figure in rows.items():
                        got.setdefault((row, mpi), {False: [], True: []})[ours].append(figure)
    print(run.header().replace("run.py", "mpi_programs.py") + "\n")
    mpis = sorted({mpi for _, mpi in got})
    print("| |" + "".join(f" {m} plain | with interposer | interposed / plain | (spread) |" for m in mpis))
    print("|---|" + "---:|---:|---:|---:|" * len(mpis))
    for row, name in names.items():
        if not any((row, m) in got for m in mpis):
            continue
        line = f"| {name} |"
        for m in mpis:
            plain, ours = (got.get((row, m), {}).get(k, []) for k in (False, True))
            ratios = sorted(b / a for a, b in zip(plain, ours) if a > 0)
            line += (f" {statistics.median(plain):.4g} | {statistics.median(ours):.4g} | {statistics.median(ratios):.2f} |"
                     f" {ratios[0]:.2f}-{ratios[-1]:.2f} |" if ratios else " - | - | - | - |")
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
