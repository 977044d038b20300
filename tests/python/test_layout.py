# SPDX-License-Identifier: BSD-3-Clause
"""The ctypes structures and constants of the Python module are those of banyan.h.
Usage: test_layout.py LAYOUT_PROGRAM [unittest options]; BANYAN_LIBRARY and PYTHONPATH are set."""
import ctypes
import subprocess
import sys
import unittest

import banyan
from banyan import _collectives, _comm, _lib, training

LAYOUT = sys.argv.pop(1)
STRUCTS = {"config": _lib.Config, "opts": _lib.Opts, "reduce_opts": _lib.ReduceOpts, "id": _lib.Id, "stats": _lib.Stats,
           "request_stats": _lib.RequestStats, "tensor": training.Tensor, "buckets_config": training.BucketsConfig,
           "buckets_stats": training.BucketsStats, "buckets_tensor_stats": training.BucketsTensorStats,
           "accordion_config": training.AccordionConfig, "outer_config": training.OuterConfig}


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
        accordion = training._config(training.AccordionConfig, {})
        ours = {"config": _comm._config({}, []), "opts": _collectives._make_opts(),
                "buckets_config": training._config(training.BucketsConfig, {}),
                "outer_config": training._config(training.OuterConfig, {}),
                "accordion_little": accordion.little, "accordion_much": accordion.much, "accordion_config": accordion}
        accordion.little = accordion.much = None
        self.assertEqual(self.initial, {name: bytes(struct).hex() for name, struct in ours.items()})

    def test_constants(self):
        values = {w.split()[1]: v for w, v in self.lines if w.startswith("value ")}
        self.assertEqual(values, {name: getattr(banyan, name) for name in values})
        counts = {w.split()[1]: v for w, v in self.lines if w.startswith("count ")}
        self.assertEqual(len(values), sum(counts.values()) + len(["ANY_SOURCE", "SPLIT_HOST"]), "layout.c lacks a new constant")


if __name__ == "__main__":
    unittest.main()
