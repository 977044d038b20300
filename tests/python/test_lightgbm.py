# SPDX-License-Identifier: BSD-3-Clause
"""The functions that LightGBM gets, called as it calls them. Every rank runs it; LightGBM itself is not needed."""
import ctypes
import subprocess
import sys
import unittest
from ctypes import CFUNCTYPE, POINTER, byref, c_char, c_int, c_void_p

import banyan
import numpy
from banyan import _lib

COMM = None  # the job's communicator
REDUCER = CFUNCTYPE(None, c_void_p, c_void_p, c_int, c_int)
INTS, SHIM = POINTER(c_int), _lib.load_beside("banyan-lightgbm")
REDUCE_SCATTER = CFUNCTYPE(None, c_void_p, c_int, c_int, INTS, INTS, c_int, c_void_p, c_int, POINTER(REDUCER))
ALLGATHER = CFUNCTYPE(None, c_void_p, c_int, INTS, INTS, c_int, c_void_p, c_int)


def setUpModule():
    global COMM
    COMM = banyan.Comm.from_env(op_timeout_s=60)


def tearDownModule():
    COMM.finalize()


class Network:
    """In LightGBM's place."""

    def __init__(self, comm, rc=0):
        self.calls = 0

        def init(machines, rank, reduce_scatter, allgather):
            self.size, self.rank = machines, rank
            self.reduce_scatter, self.allgather = REDUCE_SCATTER(reduce_scatter), ALLGATHER(allgather)
            return rc

        self.init = CFUNCTYPE(c_int, c_int, c_int, c_void_p, c_void_p)(init)
        _lib.check(SHIM.banyan_lightgbm_start(comm._live(), self.init))

    def blocks(self, lengths):
        array = c_int * len(lengths)
        return array(*[sum(lengths[:i]) for i in range(len(lengths))]), array(*lengths)

    def sum(self, x, lengths, reducer, type_size):
        """This rank's block of bytes; reducer is a numpy function of (in, inout)."""
        def run(source, target, size, nbytes):
            self.calls += 1
            assert size == type_size and nbytes % size == 0
            a, b = (numpy.frombuffer((c_char * nbytes).from_address(at), x.dtype) for at in (source, target))
            reducer(a, b)

        out = numpy.zeros(lengths[self.rank], "uint8")
        start, length = self.blocks(lengths)
        self.reducers = [*getattr(self, "reducers", []), REDUCER(run)]  # another address for each
        self.reduce_scatter(x.ctypes.data, x.nbytes, type_size, start, length, self.size, out.ctypes.data, out.nbytes,
                            byref(self.reducers[-1]))
        return out.view(x.dtype)


class LightGBM(unittest.TestCase):
    def setUp(self):
        self.net = Network(COMM)
        self.lengths = [16 * 64 * (r + 1) for r in range(COMM.size)]  # bytes

    def tearDown(self):
        SHIM.banyan_lightgbm_stop()
        COMM.barrier()

    def add(self, a, b):
        b += a

    def expected(self, x, reduce):
        everyone = [x(r) for r in range(COMM.size)]
        item = everyone[0].itemsize
        end = sum(self.lengths[:COMM.rank + 1]) // item
        return reduce(everyone)[end - self.lengths[COMM.rank] // item:end]

    def test_machines_and_rank(self):
        self.assertEqual((self.net.size, self.net.rank), (COMM.size, COMM.rank))

    def test_sums_run_in_the_librarys_loop(self):
        for dtype, type_size in ("float64", 16), ("float64", 8), ("int64", 8), ("int32", 4):
            def x(rank):
                return (numpy.arange(sum(self.lengths) // numpy.dtype(dtype).itemsize) % 7 + rank).astype(dtype)

            self.net.calls = 0
            out = self.net.sum(x(COMM.rank), self.lengths, self.add, type_size)
            numpy.testing.assert_array_equal(out, self.expected(x, sum))
            self.assertLessEqual(self.net.calls, 3, "only the probes")

    def test_what_is_no_sum_runs_as_it_is(self):
        def x(rank):
            return (numpy.arange(sum(self.lengths) // 8) % 7 * (-1) ** rank).astype("float64")

        out = self.net.sum(x(COMM.rank), self.lengths, lambda a, b: numpy.maximum(a, b, out=b), 32)
        numpy.testing.assert_array_equal(out, self.expected(x, numpy.maximum.reduce))
        out = self.net.sum(x(COMM.rank), self.lengths, lambda a, b: numpy.minimum(a, b, out=b), 8)
        numpy.testing.assert_array_equal(out, self.expected(x, numpy.minimum.reduce))

    def test_allgather(self):
        start, length = self.net.blocks(self.lengths)
        mine = numpy.full(self.lengths[COMM.rank], COMM.rank + 1, "uint8")
        out = numpy.zeros(sum(self.lengths), "uint8")
        self.net.allgather(mine.ctypes.data, mine.nbytes, start, length, COMM.size, out.ctypes.data, out.nbytes)
        expected = numpy.concatenate([numpy.full(n, r + 1, "uint8") for r, n in enumerate(self.lengths)])
        numpy.testing.assert_array_equal(out, expected)

    def test_start_says_what_failed(self):
        with self.assertRaisesRegex(banyan.Error, "LGBM_NetworkInitWithFunctions"):
            Network(COMM, rc=-1)
        with self.assertRaisesRegex(banyan.Error, "init"):
            _lib.check(SHIM.banyan_lightgbm_start(COMM._live(), None))

    def test_a_failure_ends_what_does_not_catch_it(self):
        code = """
import banyan, sys
sys.path.insert(0, sys.argv[1])
import test_lightgbm as t
with banyan.Comm.init(banyan.create_id(), 0, 1) as comm:
    net = t.Network(comm)
    comm.abort("enough")
    start, length = net.blocks([8])
    net.allgather(id(comm), 8, start, length, 1, id(comm), 8)
    print("went on")
"""
        run = subprocess.run([sys.executable, "-c", code, __file__.rsplit("/", 1)[0]], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
        self.assertRegex(run.stderr, "LightGBM's allgather failed: .*enough")


if __name__ == "__main__":
    unittest.main(verbosity=2)
