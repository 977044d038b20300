#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The same MPI benchmark (mpi_peer.c) with and without the interposer, interleaved: in every round each size is run by
each MPI once plain and once with libbanyan-mpi.so preloaded. Prints a markdown table: medians over the rounds, their
spread, and how many times faster.

    perf/peers/mpi_interposer.py --build build --ranks 2,4 --rounds 5
    perf/peers/mpi_interposer.py --build build --passed-on   # the cost of calls that stay with the MPI
"""
import argparse
import os
import statistics
import subprocess
import sys

import run

SIZES = "4,64,1K,4K,32K,256K,1M,4M,16M,64M"
# The cost of a call by its difference: in Open MPI the interposer takes the names PMPI_* as well, so runs are compared.
PASSED_ON = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    double best = 1e9;
    int x = 1, y;
    MPI_Init(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < 200; k++) {
        double t = MPI_Wtime();
        for (int i = 0; i < 2000; i++)
            MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_SELF);
        t = (MPI_Wtime() - t) / 2000;
        best = t < best ? t : best;
    }
    printf("%.2f ", best * 1e9);
    best = 1e9;
    for (int k = 0; k < 200; k++) {
        double t = MPI_Wtime();
        for (int i = 0; i < 2000; i++)
            MPI_Iprobe(0, 0, MPI_COMM_SELF, &y, MPI_STATUS_IGNORE);
        t = (MPI_Wtime() - t) / 2000;
        best = t < best ? t : best;
    }
    printf("%.2f\n", best * 1e9);
    MPI_Finalize();
    return 0;
}
"""


def command(mpi, exe, ranks, args, crowded):
    if mpi == "openmpi":
        place = ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"] if crowded else ["--bind-to", "core"]
        return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *place, exe, *args]
    return ["mpirun.mpich", "-n", str(ranks), *([] if crowded else ["-bind-to", "core"]), exe, *args]


def passed_on(build, library, rounds):
    print("| call passed on | MPI | plain ns | with interposer ns | difference ns |\n|---|---|---:|---:|---:|")
    for mpi in "openmpi", "mpich":
        exe = os.path.join(build, "peers", "passed_on_" + mpi)
        subprocess.run(["mpicc." + mpi, "-O2", "-x", "c", "-", "-o", exe], input=PASSED_ON, text=True, check=True)
        got = {False: [], True: []}
        for _ in range(rounds):
            for ours in False, True:
                env = dict(os.environ, **({"LD_PRELOAD": library} if ours else {}))
                out = subprocess.run(command(mpi, exe, 1, [], True), env=env, capture_output=True, text=True,
                                     check=True, timeout=60).stdout
                got[ours].append([float(x) for x in out.split()])
        for i, name in enumerate(("MPI_Allreduce on MPI_COMM_SELF", "MPI_Iprobe")):
            plain, ours = (min(row[i] for row in got[k]) for k in (False, True))
            print(f"| {name} | {mpi} | {plain:.1f} | {ours:.1f} | {ours - plain:.1f} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", default="build")
    ap.add_argument("--mpi", default="openmpi,mpich")
    ap.add_argument("--collective", default="allreduce")
    ap.add_argument("--ranks", default="2")
    ap.add_argument("--sizes", default=SIZES)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--quick", action="store_true", help="fewer iterations")
    ap.add_argument("--timeout", type=float, default=120, help="seconds for one run of one size")
    ap.add_argument("--passed-on", action="store_true")
    args = ap.parse_args()
    library = os.path.abspath(os.path.join(args.build, "integrations", "mpi", "libbanyan-mpi.so"))
    have = run.build(os.path.join(args.build, "peers"))
    print(run.header().replace("run.py", "mpi_interposer.py") + "\n")
    if args.passed_on:
        passed_on(os.path.abspath(args.build), library, args.rounds)
        return 0
    sizes = [run.parse_size(s) for s in args.sizes.split(",")]
    for ranks in (int(r) for r in args.ranks.split(",")):
        crowded = ranks > len(os.sched_getaffinity(0))
        for collective in args.collective.split(","):
            cols = {}
            for mpi in (m for m in args.mpi.split(",") if m in have):
                for ours in False, True:
                    def cmd(coll, nbytes, iters, warmup, tmp, mpi=mpi):
                        inplace = "1" if coll in ("allreduce", "broadcast", "reduce") else "0"
                        return [command(mpi, have[mpi], ranks, [coll, str(iters), str(warmup), inplace, str(nbytes)],
                                        crowded)]
                    cols[mpi, ours] = run.Library(mpi, cmd, {"LD_PRELOAD": library} if ours else {})
            got = {key: {s: [] for s in sizes} for key in cols}
            for _ in range(args.rounds):
                for size in sizes:
                    for key, lib in cols.items():
                        try:
                            got[key][size].append(lib.measure(collective, size, run.iterations(size, args.quick), 3,
                                                              args.timeout))
                        except (RuntimeError, OSError, ValueError) as e:
                            print(f"{key}, {collective}, {run.show_size(size)}: {e}", file=sys.stderr)
            mpis = sorted({m for m, _ in cols}, reverse=True)
            print(f"### {collective}, {ranks} ranks on {len(os.sched_getaffinity(0))} cores, f32\n")
            print("| size |" + "".join(f" {m} us | with interposer us | times faster | (spread) |" for m in mpis))
            print("|---:|" + "---:|---:|---:|---:|" * len(mpis))
            for s in sizes:
                row = f"| {run.show_size(s)} |"
                for m in mpis:
                    a, b = got[m, False][s], got[m, True][s]
                    if not a or not b:
                        row += " - | - | - | - |"
                        continue
                    ratios = sorted(x / y for x, y in zip(a, b))
                    row += (f" {run.show_us(statistics.median(a))} | {run.show_us(statistics.median(b))} | "
                            f"{statistics.median(ratios):.2f} | {ratios[0]:.2f}-{ratios[-1]:.2f} |")
                print(row, flush=True)
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
