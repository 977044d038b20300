# SPDX-License-Identifier: BSD-3-Clause
"""Virtual time. By several seeds, in which ranks take places in other orders: once the last of four has come, an allreduce in order of
arrival takes little more than its bytes do. (It took twice that where the last one's place was told behind the sums for it.) And of 8
ranks that are all there: within 5 % of static schedules, also where 7 are enough (those took 1.6 times as long when they ran as a chain),
and `auto` within 5 % of a ring. Where 7 are enough, the last one does not hold them up when it comes (they took 1.7 times as long).
Usage: check_arrival_time.py BANYAN_SIM"""
import os
import re
import subprocess
import sys

BYTES, GBPS, RANKS = 4 << 20, 1, 4
failures = []


def after_last_ms(*args):
    """From the last call to the last return; or None."""
    return told_ms("us after the last call", *args)


def told_ms(what, *args):
    """What banyan_sim prints before or behind these words."""
    out = subprocess.run([sys.argv[1], "--gbps", str(GBPS), "--latency", "50", "--ops", "4", *map(str, args)], capture_output=True,
                         text=True, timeout=100, env=dict(os.environ, BANYAN_LINK_GBPS=str(GBPS)))
    told = re.search(rf"([0-9.]+) {what}", out.stdout) or re.search(rf"{what} ([0-9.]+)", out.stdout)
    if out.returncode or not told:
        failures.append(f"{args}: exit status {out.returncode} {out.stderr[-300:]}")
        return None
    return float(told.group(1)) / 1e3


def within(what, a, b, most):
    print(f"{what}: {a} and {b} ms")
    if a and b and a > most * b:
        failures.append(f"{what}: {a} ms, more than {most} times {b} ms")


for seed in range(1, 9):
    ms = after_last_ms("--ranks", RANKS, "--seed", seed, "--schedule", "arrival", "--late", 1000, "--late-rank", RANKS - 1, "allreduce", BYTES)
    times = (ms or 0) / (BYTES * 8e-6 / GBPS)
    print(f"seed {seed}: {times:.2f} times what the bytes take")
    if not 1 < times < 1.4:
        failures.append(f"seed {seed}: {times:.2f} times")
for call, size in (("allreduce", "1M"), ("allreduce", "8M"), ("reduce", "1M"), ("reduce", "8M")):
    static = after_last_ms("--ranks", 8, "--schedule", "static", call, size)
    within(f"{call} {size}, arrival and static", after_last_ms("--ranks", 8, "--schedule", "arrival", call, size), static, 1.05)
    if call == "allreduce":
        within(f"{size}, the first 7 and static", after_last_ms("--ranks", 8, "--at-least", 7, call, size), static, 1.05)
        within(f"{size}, auto and ring", static, after_last_ms("--ranks", 8, "--schedule", "ring", call, size), 1.05)
static = after_last_ms("--ranks", 8, "--schedule", "static", "allreduce", "8M")
within("8M, half of the first 7, the last one 50 ms late, and static",
       told_ms("half of the ranks after", "--ranks", 8, "--at-least", 7, "--schedule", "arrival", "--late", 50, "--late-rank", 7, "allreduce", "8M"),
       static, 1.3)
print("\n".join(failures))
sys.exit(bool(failures))
