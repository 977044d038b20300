# SPDX-License-Identifier: BSD-3-Clause
"""Virtual time. What auto takes is at most 15 % slower than each of some schedules. (By closed forms alone it took multitree on a
fat tree, 1.33 times a ring's time; without what messages cost their ranks swing on a torus, 1.5 times multitree's; short sums of
four hosts ran by recursive doubling and halving, 2.4 times a star's of hosts.)
Usage: check_choice.py BANYAN_SIM"""
import re
import subprocess
import sys

failures = []


def seconds(graph, ranks, schedule, size):
    """graph: or the rate of hosts of 4 ranks, in Gbit/s"""
    network = ["--per-host", "4", "--gbps", graph] if graph.isdigit() else ["--topo", graph]
    ran = subprocess.run([sys.argv[1], "--ranks", str(ranks), *network, "--ops", "2", "--schedule", schedule, "allreduce", size],
                         capture_output=True, text=True, timeout=100)
    took = re.search(r"allreduce of \d+ bytes: [\d.]+ us, ([\d.]+) us after", ran.stdout)
    if ran.returncode or not took:
        sys.exit(f"{graph} {schedule} {size}: {ran.stdout}{ran.stderr}")
    return float(took[1]) / 1e6


for graph, ranks, sizes in (("fattree:16", 16, ("1M", "16M")), ("leafspine:4x4", 16, ("1M", "16M")), ("star:16", 16, ("256K",)),
                            ("dragonfly:4x2x2", 16, ("1M",)), ("torus:8x8", 64, ("1M",)), ("1", 12, ("16K",)), ("1", 16, ("16K",)),
                            ("10", 16, ("16K",))):
    for size in sizes:
        auto = seconds(graph, ranks, "auto", size)
        names = (("multitree", "swing") if "torus" in graph else ("host_ring", "host_star", "recursive_doubling")
                 if graph.isdigit() else ("ring", "multitree", "packed"))
        times = {name: seconds(graph, ranks, name, size) / auto for name in names}
        print(f"{graph} {size}: auto {auto * 1e3:.2f} ms;", ", ".join(f"{name} {t:.3f}" for name, t in times.items()))
        failures += [f"{graph} {size}: {name} takes {t:.3f} of auto's time" for name, t in times.items() if t < 1 / 1.15]
sys.exit("\n".join(failures) or 0)
