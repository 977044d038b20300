#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What codecs must do to training: orderings of train losses that hold with wide margins, seeds 1 and 2, 4 ranks.
usage: test_train.py BUILD PERF_FOLDER"""
import concurrent.futures
import os
import signal
import sys
import unittest

BUILD = sys.argv[1]
sys.path.insert(0, sys.argv[2])
import train_codecs  # noqa: E402  (perf/train_codecs.py)

SEEDS = (1, 2)
SMALL = "--model teacher --hidden 128 --examples 1000 --epochs 16 --batch 64".split()
LARGER = "--model teacher --hidden 192 --examples 1500 --epochs 16 --batch 128 --rate 0.1".split()
HEAVY = [("topk:delta=0.001", 1), ("dgc:delta=0.001", 1)]
CODECS = [("none", 1), ("int8", 1), ("int4", 1), ("eden:bits=1", 1), ("topk:delta=0.01", 1), ("topk:delta=0.01", 0),
          ("adaq:error=1", 1), ("adaq:error=1", 0), ("powersgd:rank=1", 1), ("powersgd:rank=1", 0)]


class Train(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"seeds {SEEDS}", file=sys.stderr)
        program = os.path.join(BUILD, "examples", "train_digits")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            runs = {(*c, s): pool.submit(train_codecs.train, program, SMALL, *c, s, 300) for c in CODECS for s in SEEDS}
            runs |= {(*c, s): pool.submit(train_codecs.train, program, LARGER, *c, s, 300) for c in HEAVY for s in SEEDS}
            cls.results = {k: f.result() for k, f in runs.items()}

    def each(self, codec, feedback=1):
        return [float(self.results[codec, feedback, s]["loss"]) for s in SEEDS]

    def least_ratio(self, codec, feedback=1):
        return min(float(r["raw_bytes"]) / float(r["wire_bytes"]) for k, r in self.results.items() if k[:2] == (codec, feedback))

    def test_ranks_stay_identical(self):
        for key, r in self.results.items():
            self.assertEqual(r["identical"], "1", key)

    def test_fine_codecs_train_as_dense(self):
        for codec in ("int8", "int4", "eden:bits=1"):
            for loss, dense in zip(self.each(codec), self.each("none")):
                self.assertLess(abs(loss - dense), 0.2 * dense, codec)

    def test_feedback_beats_none(self):
        for codec in ("topk:delta=0.01", "powersgd:rank=1"):
            self.assertLess(4 * max(self.each(codec)), min(self.each(codec, 0)), codec)

    def test_feedback_helps_two_bits(self):
        """adaq with this bound sends two bits always; a fifth less loss on each seed tried."""
        for fed, unfed in zip(self.each("adaq:error=1"), self.each("adaq:error=1", 0)):
            self.assertLess(1.08 * fed, unfed)

    def test_dgc_beats_topk_where_compression_hurts(self):
        self.assertLess(1.5 * max(self.each("dgc:delta=0.001")), min(self.each("topk:delta=0.001")))

    def test_compression_is_what_it_should_be(self):
        """Owners' sums too: sparse ones do not become dense."""
        for codec, ratio in (("int8", 3.7), ("int4", 7), ("eden:bits=1", 20), ("topk:delta=0.01", 15), ("topk:delta=0.001", 75),
                             ("powersgd:rank=1", 25)):
            self.assertGreater(self.least_ratio(codec), ratio, codec)


if __name__ == "__main__":
    signal.alarm(280)
    unittest.main(argv=sys.argv[:1])
