# SPDX-License-Identifier: BSD-3-Clause
"""LightGBM itself over banyan: the model that its sockets make, and its exception where banyan fails. Run by scripts/test-wheel."""
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Each rank trains until one of them aborts the communicator, from a callback of the third tree.
FAILS = """
import banyan, banyan.lightgbm, lightgbm, numpy
def stop(env):
    if env.iteration == 2 and comm.rank == 0:
        comm.abort("enough")
comm = banyan.Comm.from_env()
x = numpy.random.default_rng(comm.rank).normal(size=(2000, 5))
with banyan.lightgbm.start(comm) as network:
    try:
        lightgbm.train({"verbose": -1, **network.params}, lightgbm.Dataset(x, x[:, 0]), num_boost_round=5, callbacks=[stop])
    except lightgbm.basic.LightGBMError as why:
        print("caught")
comm.destroy()
"""


class LightGBM(unittest.TestCase):
    def test_identical_models(self):
        run = subprocess.run([sys.executable, ROOT / "perf/train_lightgbm.py", "--rows", "6000", "--columns", "10", "--trees", "5",
                              "--rounds", "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("the models are identical", run.stdout)

    def test_a_failure_is_lightgbms_exception(self):
        run = subprocess.run([sys.executable, "-m", "banyan.run", "-n", "2", sys.executable, "-c", FAILS], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        self.assertEqual((run.returncode, run.stdout.count("caught\n")), (0, 2), run.stderr)
        self.assertIn("enough", run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
