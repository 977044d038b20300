#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What ranks of large jobs take: N real processes on this machine, for several N, over shared memory and TCP.

    perf/scale.py BUILD [--ranks 8,16,32,64,128,256] [--transports shm,tcp] [--alltoall 128] [--timeout S] [--json FILE]
    perf/scale.py BUILD --beside OLDER_BUILD [--rounds 15] --ranks 2,4

Seconds are since the launcher started: until the last rank is through init, through its first allreduce, through finalize. fds
and MiB (proportional share, PSS) are of the rank with the most, after the first allreduce and, up to --alltoall ranks, after
an alltoall. A size for which the machine has too little free memory, by what the size before took, is left out and said so;
so is one that needs more processes or open files than the limits allow. The greatest sizes take a while: 1024 over tcp.

--beside: the seconds until the last rank is through init alone, of both builds' small jobs, which take turns."""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

FIRST_MIB = 6      # of a rank, where no smaller job has told
KEPT_FREE_MIB = 1024


def free_mib():
    for line in open("/proc/meminfo", encoding="ascii"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return 0


def obstacle(ranks, expected_mib):
    """Why so many ranks cannot run here; None: they can."""
    need = ranks * expected_mib + KEPT_FREE_MIB
    if need > free_mib():
        return f"about {need:.0f} MiB needed, {free_mib()} free"
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes != resource.RLIM_INFINITY and processes < ranks + 100:
        return f"ulimit -u is {processes}"
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files < 2 * ranks + 64:  # rank 0 hears all others at init
        return f"ulimit -n is {files}"
    return None


def run(build, transport, ranks, alltoall, timeout):
    """The fields of the line that rank 0 prints, or a sentence."""
    env = dict(os.environ, BANYAN_TRANSPORT=transport, SCALE_BEGUN_NS=str(time.monotonic_ns()),
               BANYAN_INIT_TIMEOUT=str(timeout))
    command = [build / "tools/banyan_run", "-n", str(ranks), "--timeout", str(timeout), build / "perf/scale_rank"]
    p = subprocess.run(command + (["alltoall"] if alltoall else []), env=env, capture_output=True, text=True, check=False)
    lines = [line for line in p.stdout.splitlines() if line.startswith("scale ")]
    if p.returncode or not lines:
        said = (p.stderr or p.stdout).strip().splitlines()
        return f"failed with {p.returncode}: {said[0][:160] if said else 'no word'}"
    return {k: float(v) for k, v in (x.split("=") for x in lines[-1].split()[1:])}


def show(rows):
    print("| transport | ranks | init s | first allreduce s | finalize s | fds | MiB | after alltoall: s | fds | MiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        if "why" in r:
            print(f"| {r['transport']} | {r['ranks']} | {r['why']} |||||||")
            continue
        after = ["-"] * 3
        if "alltoall_s" in r:
            after = [f"{r['alltoall_s']:.2f}", f"{r['alltoall_fds']:.0f}", f"{r['alltoall_pss_kib'] / 1024:.1f}"]
        print(f"| {r['transport']} | {r['ranks']} | {r['init_s']:.2f} | {r['allreduce_s']:.2f} | {r['finalize_s']:.2f} | "
              f"{r['allreduce_fds']:.0f} | {r['allreduce_pss_kib'] / 1024:.1f} | {' | '.join(after)} |")


def beside(o):
    """A table; 1 where a job failed."""
    print(f"| transport | ranks | {o.beside}: init us, median (least .. most) | {o.build} | median of the ratios |\n|---|---|---|---|---|")
    for transport in o.transports:
        for ranks in o.ranks:
            took = {o.beside: [], o.build: []}
            for i in range(o.rounds):
                for build in list(took) if i % 2 else reversed(list(took)):
                    got = run(build, transport, ranks, False, o.timeout)
                    if isinstance(got, str):
                        print(f"{build}: {got}", file=sys.stderr)
                        return 1
                    took[build].append(got["init_s"] * 1e6)
            cells = [f"{statistics.median(t):.0f} ({min(t):.0f} .. {max(t):.0f})" for t in took.values()]
            ratio = statistics.median(new / old for old, new in zip(*took.values()))
            print(f"| {transport} | {ranks} | {' | '.join(cells)} | {ratio:.3f} |", flush=True)
    return 0


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("build", type=pathlib.Path)
    a.add_argument("--ranks", default="8,16,32,64,128,256", type=lambda t: [int(x) for x in t.split(",")])
    a.add_argument("--transports", default="shm,tcp", type=lambda t: t.split(","))
    a.add_argument("--alltoall", default=128, type=int)
    a.add_argument("--timeout", default=120, type=int)
    a.add_argument("--json")
    a.add_argument("--beside", type=pathlib.Path)
    a.add_argument("--rounds", default=15, type=int)
    o = a.parse_args()
    if o.beside:
        return beside(o)
    rows = []
    for transport in o.transports:
        expected = FIRST_MIB
        for ranks in sorted(o.ranks):
            alltoall = ranks <= o.alltoall
            row = {"transport": transport, "ranks": ranks}
            why = obstacle(ranks, expected)
            got = why or run(o.build, transport, ranks, alltoall, o.timeout)
            row.update({"why": got} if isinstance(got, str) else {k: v for k, v in got.items() if k != "ranks"})
            rows.append(row)
            print(f"{transport} {ranks}: {got if isinstance(got, str) else 'done'}", file=sys.stderr)
            if isinstance(got, dict):  # pairs: memory grows with the number of ranks
                most = max(v for k, v in got.items() if k.endswith("_pss_kib")) / 1024
                expected = max(FIRST_MIB, 2 * most)
    show(rows)
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps({"free_mib": free_mib(), "cpus": os.cpu_count(), "rows": rows}, indent=1) + "\n",
                                        encoding="ascii")
    return any("failed" in r.get("why", "") for r in rows)


if __name__ == "__main__":
    sys.exit(main())
