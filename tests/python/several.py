# SPDX-License-Identifier: BSD-3-Clause
"""A rank of test_status.py: works in a second communicator until a file exists, then that fails, and the rank rests."""
import os
import sys
import time

import numpy

import banyan

with banyan.Comm.from_env() as comm:
    x = numpy.ones(100, dtype=numpy.float32)
    for _ in range(3):
        comm.allreduce(x)
    other = comm.dup()
    if comm.rank == 0:
        print("several", flush=True)
    while not other.allreduce(numpy.array([float(comm.rank == 0 and os.path.exists(sys.argv[1]))])).any():
        pass
    if comm.rank == 0:
        other.revoke("the test says so")
    try:
        while True:
            other.barrier()
    except banyan.Error:
        pass
    time.sleep(1000)
