#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What ranks of a job of 48 take of the machine, which no load changes: descriptors and memory. Times are never looked at.
usage: test_scale.py SCALE_PY BUILD"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCALE, BUILD = sys.argv[1:3]
RANKS = 48
# Of the rank with most: 2 log2 N neighbours of the control plane, and one descriptor or three a pair after an alltoall. KiB
# after init: endpoints that nobody talks to yet take a page or less.
BOUNDS = {"tcp": {"init_fds": 30, "alltoall_fds": 3 * RANKS + 30, "init_pss_kib": 2500},
          "shm": {"init_fds": 30, "alltoall_fds": 4 * RANKS + 30, "init_pss_kib": 2500, "alltoall_pss_kib": 6000}}


def scale(*options):
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "rows.json")
        p = subprocess.run([SCALE, BUILD, "--json", name, *options], capture_output=True, text=True, timeout=250, check=False)
        with open(name, encoding="ascii") as f:
            return p, json.load(f)["rows"]


class Scale(unittest.TestCase):
    def test_descriptors_and_memory_of_a_rank(self):
        p, rows = scale("--ranks", str(RANKS), "--timeout", "120")
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        for row in rows:
            if "why" in row:
                self.skipTest(row["why"])
            for name, most in BOUNDS[row["transport"]].items():
                with self.subTest(transport=row["transport"], what=name):
                    self.assertGreater(row[name], 0)
                    self.assertLessEqual(row[name], most)

    def test_too_many_are_left_out_and_said_so(self):
        """No machine has the memory, by the script's own estimate, for so many."""
        p, rows = scale("--ranks", "50000000", "--transports", "tcp")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("MiB needed", rows[0]["why"])
        self.assertIn("MiB needed", p.stdout)


if __name__ == "__main__":
    sys.argv[1:] = []
    unittest.main(verbosity=2)
