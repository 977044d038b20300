# SPDX-License-Identifier: BSD-3-Clause
"""Virtual time. On networks with switches, whose ways meet, what auto takes is at most 15 % slower than each of some schedules. (By
closed forms alone it took multitree on a fat tree, 1.33 times a ring's time.)
Usage: check_choice.py BANYAN_SIM"""
import re
import subprocess
import sys

failures = []


def seconds(graph, schedule, size):
    ran = subprocess.run([sys.argv[1], "--ranks", "16", "--topo", graph, "--ops", "2", "--schedule", schedule, "allreduce", size],
                         capture_output=True, text=True, timeout=100)
    took = re.search(r"allreduce of \d+ bytes: ([\d.]+) us", ran.stdout)
    if ran.returncode or not took:
        sys.exit(f"{graph} {schedule} {size}: {ran.stdout}{ran.stderr}")
    return float(took[1]) / 1e6


for graph in ("fattree:16", "leafspine:4x4"):
    for size in ("1M", "16M"):
        auto = seconds(graph, "auto", size)
        times = {name: seconds(graph, name, size) / auto for name in ("ring", "multitree", "packed")}
        print(f"{graph} {size}: auto {auto * 1e3:.2f} ms;", ", ".join(f"{name} {t:.3f}" for name, t in times.items()))
        failures += [f"{graph} {size}: {name} takes {t:.3f} of auto's time" for name, t in times.items() if t < 1 / 1.15]
sys.exit("\n".join(failures) or 0)
