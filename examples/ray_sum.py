# SPDX-License-Identifier: BSD-3-Clause
"""Actors of Ray that add their arrays over banyan: pip install ray numpy; python3 ray_sum.py. Prints the sum."""
import banyan.ray
import numpy
import ray
from ray.util import collective

ACTORS = 3


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank):
        import banyan.ray  # registers the backend in this process

        self.rank = rank
        collective.init_collective_group(ACTORS, rank, backend="banyan")

    def add(self, length):
        x = numpy.full(length, self.rank + 1, "float32")
        collective.allreduce(x)
        return x[0]

    def close(self):
        collective.destroy_collective_group()


def main():
    ray.init(num_cpus=ACTORS, include_dashboard=False, logging_level="warning")
    workers = [Worker.remote(rank) for rank in range(ACTORS)]
    sums = ray.get([w.add.remote(1 << 20) for w in workers])
    ray.get([w.close.remote() for w in workers])
    print(f"the actors have the sums {[float(s) for s in sums]}")


if __name__ == "__main__":
    main()
