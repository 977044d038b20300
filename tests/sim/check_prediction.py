#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The library in virtual time beside banyan_topo simulate --tcp, with the same chunks: on an idle network neither takes 10 %
more than the other, so that what plans are predicted to take is what they take. The first operation makes connections; the
last one counts, from when the last rank has called. Usage: check_prediction.py BANYAN_SIM BANYAN_TOPO"""
import os
import re
import statistics
import subprocess
import sys

sim, topo = sys.argv[1:]
CASES = [("torus:4x4", 16, "16M", "64K", ("ring", "multitree", "packed")),
         ("fattree:64", 64, "16M", "64K", ("ring", "multitree", "packed")),
         # Longer ones wait for CTS of all, who come up to 50 us late, or they begin in its order: 1.115 of the prediction.
         ("fattree:64", 64, "16M", "256K", ("multitree",)),
         # What messages cost their ranks is most of it; a star of all with all, where roots must not all begin at rank 0.
         ("torus:8x8", 64, "1M", None, ("multitree",)),
         ("star:64", 64, "1M", None, ("multitree",))]
# The median of so many runs: here the order of events at one moment, which any further descriptor changes, moves the last of 64 ranks
# by 5 %.
SEEDS = {"torus:8x8": 7}
bad = 0

for graph, ranks, size, chunk, schedules in CASES:
    for schedule in schedules:
        late = ["--late", ".05"] if chunk == "256K" else []
        took = []
        for seed in range(1, SEEDS.get(graph, 1) + 1):
            ran = subprocess.run([sim, "--seed", str(seed), "--ranks", str(ranks), "--topo", graph, "--ops", "2", "--schedule", schedule,
                                  *late, "allreduce", size],
                                 env={**os.environ, **({"BANYAN_CHUNK": chunk} if chunk else {})}, capture_output=True, text=True)
            found = re.search(r"allreduce of \d+ bytes: [\d.]+ us, ([\d.]+) us after the last call", ran.stdout)
            if ran.returncode or not found:
                sys.exit(f"{graph} {schedule}, seed {seed}: {ran.stdout}{ran.stderr}")
            took.append(float(found[1]))
        took = statistics.median(took)
        said = subprocess.run([topo, "simulate", "--topo", graph, "--schedule", schedule, "--bytes", size,
                               *(["--chunk", chunk] if chunk else []), "--tcp"], capture_output=True, text=True)
        predicted = re.search(r"bytes: ([\d.e+]+) us", said.stdout)
        if said.returncode or not predicted:
            sys.exit(f"{graph} {schedule}: {said.stdout}{said.stderr}")
        share = took / float(predicted[1])
        print(f"{graph} {size} chunk {chunk or 'by default'} {schedule}: {took / 1000:.2f} ms, predicted "
              f"{float(predicted[1]) / 1000:.2f}, {share:.3f}")
        bad += not 1 / 1.1 <= share <= 1.1
sys.exit(f"{bad} of them lie more than 10 % apart" if bad else 0)
