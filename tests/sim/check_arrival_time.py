# SPDX-License-Identifier: BSD-3-Clause
"""Virtual time, by several seeds, in which ranks take places in other orders: once the last of four has come, an allreduce in order of
arrival takes little more than its bytes do. (It took twice that where the last one's place was told behind the sums for it.)
Usage: check_arrival_time.py BANYAN_SIM"""
import re
import subprocess
import sys

BYTES, GBPS, RANKS = 4 << 20, 1, 4
failures = []
for seed in range(1, 9):
    out = subprocess.run([sys.argv[1], "--ranks", str(RANKS), "--gbps", str(GBPS), "--latency", "50", "--ops", "3", "--seed", str(seed), "--schedule",
                          "arrival", "--late", "1000", "--late-rank", str(RANKS - 1), "allreduce", str(BYTES)], capture_output=True, text=True,
                         timeout=100)
    told = re.search(r"([0-9.]+) us after the last call", out.stdout)
    times = float(told.group(1)) / (BYTES * 8e-3 / GBPS) if told else 0
    print(f"seed {seed}: {times:.2f} times what the bytes take")
    if out.returncode or not 1 < times < 1.4:
        failures.append(f"seed {seed}: {times:.2f} times, exit status {out.returncode} {out.stderr[-300:]}")
print("\n".join(failures))
sys.exit(bool(failures))
