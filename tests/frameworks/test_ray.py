# SPDX-License-Identifier: BSD-3-Clause
"""Ray's collectives over banyan. Run by scripts/test-wheel."""
import pathlib
import subprocess
import sys
import unittest

import banyan.ray
import numpy
import ray
from ray.util import collective
from ray.util.collective.types import ReduceOp

ROOT, ACTORS = pathlib.Path(__file__).resolve().parents[2], 3


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank):
        import banyan.ray

        self.rank = rank

    def join(self):
        collective.init_collective_group(ACTORS, self.rank, backend="banyan")

    def results(self):
        """This actor's, of each collective."""
        rank = self.rank
        sums = {op: numpy.array([rank + 2.0, 2]) for op in ReduceOp}
        for op, x in sums.items():
            collective.allreduce(x, op=op)
        seen = [numpy.zeros(2, "int64") for _ in range(ACTORS)]
        collective.allgather(seen, numpy.array([rank, 10 * rank]))
        block = numpy.zeros(1, "int64")
        collective.reducescatter(block, [numpy.array([r + rank]) for r in range(ACTORS)], op=ReduceOp.MAX)
        message = numpy.full(1, rank, "int64")
        collective.broadcast(message, src_rank=ACTORS - 1)
        total = numpy.array([float(rank)])
        collective.reduce(total, dst_rank=1)
        if rank == 0:
            collective.send(numpy.array([7]), 1)
        elif rank == 1:
            collective.recv(message, 0)
        collective.barrier()
        return {op.name: x.tolist() for op, x in sums.items()}, [s.tolist() for s in seen], block.item(), message.item(), total.item()

    def refuse(self):
        """What the group says to tensors of other lengths."""
        try:
            collective.allgather([numpy.zeros(r + 1) for r in range(ACTORS)], numpy.zeros(1))
        except ValueError as why:
            return str(why)

    def close(self):
        collective.destroy_collective_group()


class Ray(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=ACTORS, include_dashboard=False, logging_level="warning")
        cls.workers = [Worker.remote(rank) for rank in range(ACTORS)]

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()

    def all(self, method):
        return ray.get([getattr(w, method).remote() for w in self.workers])

    def test_collectives(self):
        for _ in range(2):  # a group of the same name again
            self.all("join")
            for rank, (sums, seen, block, message, total) in enumerate(self.all("results")):
                self.assertEqual(sums, {"SUM": [9, 6], "PRODUCT": [24, 8], "MIN": [2, 2], "MAX": [4, 2]})
                self.assertEqual(seen, [[r, 10 * r] for r in range(ACTORS)])
                self.assertEqual((block, message), (rank + ACTORS - 1, 7 if rank == 1 else ACTORS - 1))
                if rank == 1:
                    self.assertEqual(total, 3)
            self.assertTrue(all("the tensor of rank 1 has 2 elements" in said for said in self.all("refuse")))
            self.all("close")

    def test_the_example(self):
        run = subprocess.run([sys.executable, ROOT / "examples/ray_sum.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual((run.returncode, run.stdout), (0, "the actors have the sums [6.0, 6.0, 6.0]\n"), run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
