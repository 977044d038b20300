#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How long survivors need after a death: runs of perf/survive, one death each, on this machine.

    perf/survive.py BUILD [--ranks 2,4,8] [--transports shm,tcp] [--rounds 40]

A row is a transport and a number of ranks; milliseconds. agree: among all, medians over the runs of the median and the 99th of a hundred. Then of the
slowest survivor, median and greatest over the runs: from the kill to the error; agree; shrink; the first allreduce thereafter; grow by one process, which
waits for it; the first allreduce of all. Wrong runs end the script."""
import argparse
import json
import os
import statistics
import subprocess
import sys

COLUMNS = ["error_us", "agree_after_us", "shrink_us", "next_us", "grow_us", "grown_us"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--ranks", default="2,4,8")
    p.add_argument("--transports", default="shm,tcp")
    p.add_argument("--rounds", type=int, default=40)
    args = p.parse_args()
    print("| transport | ranks | agree, median / p99 | error, median / most | agree | shrink | next allreduce | grow | next allreduce |")
    print("|" + "---|" * 9)
    for transport in args.transports.split(","):
        for ranks in args.ranks.split(","):
            rows = []
            for seed in range(1, args.rounds + 1):
                run = subprocess.run([os.path.join(args.build, "perf/survive"), "-P", ranks, "--transport", transport, "--seed", str(seed)],
                                     capture_output=True, text=True, timeout=120)
                if run.returncode:
                    sys.exit(f"{transport}, {ranks} ranks, seed {seed}: status {run.returncode}\n{run.stdout}{run.stderr}")
                rows.append(json.loads(run.stdout))
            cells = [f"{statistics.median(r['agree_us'] for r in rows) / 1e3:.2f} / {statistics.median(r['agree_p99_us'] for r in rows) / 1e3:.2f}"]
            for name in COLUMNS:
                values = [r[name] / 1e3 for r in rows]
                cells.append(f"{statistics.median(values):.2f} / {max(values):.1f}")
            print(f"| {transport} | {ranks} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
