# SPDX-License-Identifier: BSD-3-Clause
"""Training in Python that loses ranks, and gets them back, ends where training ends that loses none:
examples/elastic_train.py. Usage: test_elastic.py BANYAN_RUN EXAMPLE"""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

RUN, EXAMPLE = sys.argv[1:]
LIMIT_S = 100
LIBRARY = {"BANYAN_LIBRARY": os.environ["BANYAN_LIBRARY"], "OPENBLAS_NUM_THREADS": "1"}


class Elastic(unittest.TestCase):
    def train(self, *words, how=("--keep-going",), lost=(), transport="shm", **settings):
        job = tap.start(RUN, *how, "-n", "4", sys.executable, EXAMPLE, *words, BANYAN_TRANSPORT=transport, **LIBRARY,
                        **settings)
        (status, out, err), = tap.finish([job], LIMIT_S)
        self.assertEqual(status, len(lost), out + err)
        result = json.loads(out)
        self.assertEqual((result["lost"], result["left"]), (list(lost), 4 - len(lost)), err)
        self.assertGreater(result["test_accuracy"], 0.88)
        return result, err

    def alike(self, one, other):
        """Each step takes its whole batch, whoever is left: rounding alone differs."""
        self.assertLess(abs(one["loss"] / other["loss"] - 1), 1e-3)

    def test_deaths(self):
        whole, _ = self.train()
        for transport in "shm", "tcp":
            some, _ = self.train("--die", "2@30", "--die", "0@100", lost=(0, 2), transport=transport)
            self.alike(some, whole)

    def test_who_is_stopped_is_left_out(self):
        """Its operation misses the deadline, then the agreement does; who wakes hears that it is out, and ends."""
        whole, _ = self.train()
        for transport in "shm", "tcp":
            some, err = self.train("--stop", "1@40", lost=(1,), transport=transport, BANYAN_OP_TIMEOUT="2")
            self.assertIn("banyan.Error", err)
            self.alike(some, whole)

    def test_the_dead_come_back(self):
        whole, _ = self.train()
        some, err = self.train("--die", "1@30", "--die", "2@30", "--wait-at", "60", how=("--restart", "1"))
        self.assertEqual(some["joined"], 2, err)
        self.assertEqual(err.count("is started again"), 2, err)
        self.alike(some, whole)


if __name__ == "__main__":
    tap.main(Elastic)
