# SPDX-License-Identifier: BSD-3-Clause
"""JAX's collectives between processes over the interposer (docs/mpi.md). MPIWRAPPER_WITH_BANYAN names a libmpiwrapper.so for Open MPI
that needs libbanyan-mpi.so before its MPI; there is none in Debian or on PyPI, so that it is skipped otherwise. Run by
scripts/test-wheel."""
import os
import socket
import subprocess
import sys
import unittest

RANK = """
import os, sys, numpy, jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "mpi")
rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
jax.distributed.initialize(sys.argv[1], size, rank)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(numpy.array(jax.devices()), ("x",))
whole = numpy.arange(4 * size, dtype="float32")
apart = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P("x")), lambda i: whole[i])
alike = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P()), lambda i: whole[i])
def run(f, x, into):
    y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=x.sharding.spec, out_specs=into, check_vma=False))(x)
    return numpy.asarray(y.addressable_data(0))
sums = whole.reshape(size, 4).sum(0)
assert (run(lambda v: jax.lax.psum(v, "x"), apart, P()) == sums).all()
assert (run(lambda v: jax.lax.all_gather(v, "x", tiled=True), apart, P()) == whole).all()
assert (run(lambda v: jax.lax.psum_scatter(v, "x", tiled=True), alike, P("x")) == size * whole[4 * rank:4 * rank + 4]).all()
"""


class Jax(unittest.TestCase):
    def test_collectives(self):
        wrapper = os.environ.get("MPIWRAPPER_WITH_BANYAN")
        if not wrapper:
            self.skipTest("MPIWRAPPER_WITH_BANYAN is not set")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{s.getsockname()[1]}"
        run = subprocess.run(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-c", RANK, address],
                             env={**os.environ, "MPITRAMPOLINE_LIB": wrapper, "BANYAN_MPI": "stats=1,after=0"}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        rows = {w[1]: w[2:] for w in map(str.split, run.stderr.splitlines()) if w[:1] == ["banyan-mpi:"] and len(w) == 7}
        for name in "allreduce", "allgather", "reduce_scatter":
            self.assertGreater(int(rows[name][0]), 0, run.stderr)
            self.assertEqual(int(rows[name][3]), 0, run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
