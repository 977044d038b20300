#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Reads a trace that banyan_trace merged, and says how much of each rank's encoding ran while something was on the wire from that
rank or to it. Fails where none did. Usage: overlap.py TRACE"""
import json
import sys


def slices(events, rank, name):
    found = [e for e in events if e.get("ph") == "X" and e["name"] == name]
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in found
                  if e["pid"] == rank or (name == "wire" and e["args"]["peer"] == rank))


def shared(some, others):
    """Microseconds of `some` that lie in one of `others` at least; both are sorted."""
    total, end = 0.0, 0.0
    for begin, until in some:
        end = begin
        for a, b in others:
            total += max(0.0, min(until, b) - max(end, a))
            end = max(end, min(until, b))
    return total


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    ranks = sorted({e["pid"] for e in events if e.get("ph") == "X"})
    good = len(ranks) > 1
    for rank in ranks:
        encoding, wire = slices(events, rank, "encode"), slices(events, rank, "wire")
        both = shared(encoding, wire)
        print(f"note: rank {rank}: {len(encoding)} chunks encoded in {sum(b - a for a, b in encoding):.0f} us, "
              f"{both:.0f} us of them beside {len(wire)} chunks on the wire")
        good = good and both > 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
