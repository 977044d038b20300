# SPDX-License-Identifier: BSD-3-Clause
"""The ctypes structures and constants of the Python module are those of banyan.h.
Usage: test_layout.py LAYOUT_PROGRAM [unittest options]; BANYAN_LIBRARY and PYTHONPATH are set."""
import ctypes
import subprocess
import sys
import unittest

import banyan

LAYOUT = sys.argv.pop(1)
STRUCTS = {"config": banyan.Config, "opts": banyan.Opts, "reduce_opts": banyan.ReduceOpts, "id": banyan.Id}


class Layout(unittest.TestCase):
    def setUp(self):
        out = subprocess.run([LAYOUT], check=True, stdout=subprocess.PIPE).stdout.decode()
        self.lines = [line.rsplit(" ", 1) for line in out.splitlines()]
        self.initial = {what.split()[1]: value for what, value in self.lines if what.startswith("initial ")}
        self.lines = [(what, int(value)) for what, value in self.lines if not what.startswith("initial ")]

    def test_sizes(self):
        sizes = {w.split()[1]: v for w, v in self.lines if w.startswith("sizeof ")}
        self.assertEqual(sizes, {name: ctypes.sizeof(s) for name, s in STRUCTS.items()})

    def test_every_member_has_its_offset(self):
        offsets = {w: v for w, v in self.lines if "." in w}
        ours = {f"{name}.{member[0]}": getattr(struct, member[0]).offset
                for name, struct in STRUCTS.items() for member in struct._fields_}
        self.assertEqual(offsets, ours)

    def test_structs_begin_as_the_macros_say(self):
        ours = {"config": banyan._config({}, []), "opts": banyan._opts()}
        self.assertEqual(self.initial, {name: bytes(struct).hex() for name, struct in ours.items()})

    def test_constants(self):
        values = {w.split()[1]: v for w, v in self.lines if w.startswith("value ")}
        self.assertEqual(values, {name: getattr(banyan, name) for name in values})
        counts = {w.split()[1]: v for w, v in self.lines if w.startswith("count ")}
        self.assertEqual(len(values), sum(counts.values()), "layout.c lacks a new constant")


if __name__ == "__main__":
    unittest.main()
