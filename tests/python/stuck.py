# SPDX-License-Identifier: BSD-3-Clause
"""A rank of test_recorder.py: 1500 sums and a message around, then rank 1 does not come, until it is ended or the deadline passes."""
import sys
import time

import numpy

import banyan

with banyan.Comm.from_env(op_timeout_s=float(sys.argv[1])) as comm:
    x = numpy.ones(100, dtype=numpy.float32)
    for _ in range(1500):
        comm.allreduce(x)
    comm.sendrecv(x, (comm.rank + 1) % comm.size, x.copy(), (comm.rank - 1) % comm.size)
    if comm.rank == 1:
        print("stuck", flush=True)
        time.sleep(1000)
    comm.allreduce(numpy.ones(7))
