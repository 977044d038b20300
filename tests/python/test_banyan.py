# SPDX-License-Identifier: BSD-3-Clause
"""The Python module on real ranks: every rank of `banyan_run -n N` runs these tests in the same order."""
import array
import os
import unittest

import banyan
import numpy

COMM = None  # the job's communicator


def setUpModule():
    global COMM
    COMM = banyan.Comm.from_env(op_timeout_s=60)


def tearDownModule():
    COMM.finalize()


def block(rank, count=5, dtype="float32"):
    """What rank contributes: small whole numbers, exact in every type."""
    return (numpy.arange(count) % 3 + rank + 1).astype(dtype)


class Collectives(unittest.TestCase):
    def setUp(self):
        self.n, self.rank = COMM.size, COMM.rank
        self.total = sum(block(r) for r in range(self.n))

    def test_the_launcher_started_the_job(self):
        self.assertEqual(self.n, int(os.environ.get("BANYAN_WORLD_SIZE", "1")))

    def test_allreduce_adds_each_rank_once(self):
        for dtype in "float32 float64 float16 int8 uint8 int32 uint32 int64 uint64".split():
            x, out = block(self.rank, 5, dtype), numpy.zeros(5, dtype)
            self.assertIs(COMM.allreduce(x, out), out)
            numpy.testing.assert_array_equal(out, self.total.astype(dtype))
            numpy.testing.assert_array_equal(x, block(self.rank, 5, dtype))
            self.assertIs(COMM.allreduce(x), x)
            numpy.testing.assert_array_equal(x, out)

    def test_operations(self):
        for op, reduce in (banyan.MAX, max), (banyan.MIN, min):
            x = numpy.array([self.rank, -self.rank], "int32")
            COMM.allreduce(x, op=op)
            ranks = range(self.n)
            self.assertEqual(x.tolist(), [reduce(ranks), reduce(-r for r in ranks)])
        x = numpy.full(3, self.rank, "float64")
        COMM.allreduce(x, op=banyan.AVG)
        numpy.testing.assert_allclose(x, (self.n - 1) / 2)

    def test_bfloat16_by_dtype(self):
        x = numpy.full(4, 0x3f80, "uint16")  # 1.0
        COMM.allreduce(x, dtype=banyan.BF16)
        value = (x.astype("uint32") << 16).view("float32")
        numpy.testing.assert_array_equal(value, numpy.full(4, self.n, "float32"))

    def test_plain_buffers_without_numpy(self):
        x = array.array("i", [self.rank, 1])
        COMM.allreduce(x)
        self.assertEqual(x.tolist(), [sum(range(self.n)), self.n])
        data = bytearray(b"seed" if self.rank == 0 else 4)
        COMM.broadcast(data)
        self.assertEqual(data, b"seed")

    def test_contributors(self):
        """The first to come suffice; each learns whose blocks are in the sum."""
        into = bytearray(self.n)
        out = COMM.allreduce(block(self.rank), schedule="arrival", at_least=1 if self.n > 1 else 0, contributors=into)
        self.assertEqual(sum(into), 1)
        numpy.testing.assert_array_equal(out, block(into.index(1)))
        COMM.barrier()
        out = COMM.allreduce(block(self.rank), contributors=into)
        self.assertEqual(into, bytearray([1]) * self.n)
        numpy.testing.assert_array_equal(out, sum(block(r) for r in range(self.n)))
        for wrong in bytearray(self.n + 1), b"x" * self.n, 5, numpy.zeros(self.n, "int32"):
            with self.assertRaises((ValueError, TypeError, BufferError)):
                COMM.allreduce(block(self.rank), contributors=wrong)
        with self.assertRaisesRegex(banyan.Error, "at_least"):
            COMM.allreduce(block(self.rank), at_least=1)

    def test_participants(self):
        chosen = [r % 2 == 0 for r in range(self.n)]
        out = numpy.zeros(5, "float32")
        COMM.allreduce(block(self.rank), out, participants=chosen)
        numpy.testing.assert_array_equal(out, sum(block(r) for r in range(self.n) if chosen[r]))
        COMM.allreduce(block(self.rank), out, op=banyan.AVG, participants=[0] * self.n)
        numpy.testing.assert_array_equal(out, numpy.zeros(5))
        with self.assertRaises(ValueError):
            COMM.allreduce(block(self.rank), out, participants=[1] * (self.n + 1))

    def test_empty(self):
        self.assertEqual(COMM.allreduce(numpy.zeros(0, "float32")).size, 0)

    def test_reduce_and_broadcast(self):
        root = self.n - 1
        out = numpy.zeros(5, "float32")
        result = COMM.reduce(block(self.rank), out, root=root)
        if self.rank == root:
            numpy.testing.assert_array_equal(result, self.total)
        else:
            self.assertIsNone(result)
        COMM.broadcast(out, root=root)
        numpy.testing.assert_array_equal(out, self.total)

    def test_reduce_scatter_and_allgather(self):
        send = numpy.concatenate([block(self.rank) * (b + 1) for b in range(self.n)])
        mine = COMM.reduce_scatter(send, numpy.zeros(5, "float32"))
        numpy.testing.assert_array_equal(mine, self.total * (self.rank + 1))
        expected = numpy.concatenate([self.total * (b + 1) for b in range(self.n)])
        everything = COMM.allgather(mine, numpy.zeros(5 * self.n, "float32"))
        numpy.testing.assert_array_equal(everything, expected)
        in_place = numpy.zeros((self.n, 5), "float32")
        in_place[self.rank] = mine
        numpy.testing.assert_array_equal(COMM.allgather(None, in_place).ravel(), expected)

    def test_gather_and_scatter(self):
        full = numpy.zeros(5 * self.n, "float32") if self.rank == 0 else None
        COMM.gather(block(self.rank), full)
        back = COMM.scatter(full, numpy.zeros(5, "float32"))
        numpy.testing.assert_array_equal(back, block(self.rank))

    def test_alltoall(self):
        send = numpy.array([100 * self.rank + p for p in range(self.n)], "int64")
        expected = [100 * p + self.rank for p in range(self.n)]
        self.assertEqual(COMM.alltoall(send, numpy.zeros(self.n, "int64")).tolist(), expected)
        self.assertEqual(COMM.alltoall(send).tolist(), expected)

    def test_scan(self):
        x = COMM.scan(numpy.array([self.rank], "int32"))
        self.assertEqual(x[0], sum(range(self.rank + 1)))
        y = COMM.exscan(numpy.array([self.rank], "int32"), numpy.array([-1], "int32"))
        self.assertEqual(y[0], sum(range(self.rank)) if self.rank else -1)

    def test_send_and_recv_around_a_ring(self):
        right, left = (self.rank + 1) % self.n, (self.rank - 1) % self.n
        token = numpy.zeros(1, "int32")
        with banyan.group():
            COMM.send(numpy.array([self.rank], "int32"), right, tag=7)
            COMM.recv(token, left, tag=7)
        self.assertEqual(token[0], left)
        COMM.barrier()

    def test_request_can_be_started_again(self):
        x = block(self.rank)
        with COMM.allreduce_init(x, numpy.zeros(5, "float32")) as request:
            for factor in 1, 2:
                x[:] = block(self.rank) * factor
                request.start()
                while not request.test():
                    pass
                numpy.testing.assert_array_equal(request.result, self.total * factor)
        with self.assertRaises(banyan.Error):
            request.start()

    def test_requests_in_flight_together(self):
        requests = [COMM.allreduce_init(block(self.rank)).start() for _ in range(4)]
        banyan.wait_all(requests)
        for request in requests:
            numpy.testing.assert_array_equal(request.result, self.total)

    def test_dup_and_split(self):
        with COMM.dup() as twin:
            self.assertEqual((twin.rank, twin.size), (self.rank, self.n))
        with COMM.split(banyan.SPLIT_HOST) as host:  # one host; tests/mp/cases_comms.c has several
            self.assertEqual((host.rank, host.size), (self.rank, self.n))
        part = COMM.split(0 if self.rank < 2 else -1, key=-self.rank)
        if self.rank >= 2:
            self.assertIsNone(part)
            return
        with part:
            self.assertEqual(part.size, min(2, self.n))
            self.assertEqual(part.rank, part.size - 1 - self.rank)

    def test_deterministic_and_schedule_options(self):
        x = block(self.rank)
        COMM.allreduce(x, schedule="ring", deterministic=False, timeout=30)
        numpy.testing.assert_array_equal(x, self.total)


class Mistakes(unittest.TestCase):
    """Caught before anything is sent, so the communicator stays usable."""

    def tearDown(self):
        COMM.barrier()

    def test_wrong_buffers(self):
        zeros = numpy.zeros
        with self.assertRaises(ValueError):
            COMM.allreduce(zeros(4, "float32"), zeros(5, "float32"))
        with self.assertRaises(TypeError):
            COMM.allreduce(zeros(4, "float32"), zeros(4, "float64"))
        with self.assertRaises(TypeError):
            COMM.allreduce(zeros(4, "longdouble"))
        with self.assertRaises(ValueError):
            COMM.allreduce(zeros((4, 4), "float32")[:, 1])
        with self.assertRaises(BufferError):
            COMM.allreduce(b"read only")
        with self.assertRaises(ValueError):
            COMM.allgather(zeros(4, "float32"), zeros(4 * COMM.size + 1, "float32"))

    def test_errors_have_code_and_sentence(self):
        with self.assertRaises(banyan.Error) as caught:
            COMM.broadcast(numpy.zeros(1), root=COMM.size)
        self.assertEqual(caught.exception.code, banyan.EINVAL)
        self.assertIn("root", str(caught.exception))
        with self.assertRaises(banyan.Error) as caught:
            COMM.allreduce(numpy.zeros(1), op=1234567)
        self.assertEqual(caught.exception.code, banyan.EINVAL)

    def test_unknown_setting(self):
        with self.assertRaisesRegex(TypeError, "no setting 'speed'"):
            banyan.Comm.from_env(speed=11)

    def test_id_of_wrong_length(self):
        with self.assertRaises(ValueError):
            banyan.Comm.init(b"short", 0, 1)


class OwnJob(unittest.TestCase):
    """Communicators of one rank, apart from the job's."""

    def test_init_by_id_and_use_after_the_end(self):
        comm = banyan.Comm.init(banyan.create_id(), 0, 1)
        self.assertEqual((comm.rank, comm.size), (0, 1))
        self.assertIsNone(comm.async_error())
        comm.finalize()
        comm.finalize()
        with self.assertRaises(banyan.Error):
            comm.barrier()

    def test_allgather_function_replaces_the_id(self):
        with banyan.Comm.init(None, 0, 1, allgather=lambda mine: [mine]) as comm:
            self.assertEqual(comm.allreduce(numpy.ones(2)).tolist(), [1, 1])

    def test_exception_in_the_body_destroys(self):
        with self.assertRaises(KeyError):
            with banyan.Comm.init(banyan.create_id(), 0, 1) as comm:
                comm.allreduce_init(numpy.ones(2))
                raise KeyError("x")
        with self.assertRaises(banyan.Error):
            comm.barrier()

    def test_abort_fails_later_calls(self):
        comm = banyan.Comm.init(banyan.create_id(), 0, 1)
        comm.abort("enough")
        with self.assertRaises(banyan.Error) as caught:
            comm.barrier()
        self.assertEqual(caught.exception.code, banyan.EABORTED)
        self.assertEqual(comm.async_error()[0], banyan.EABORTED)
        comm.destroy()


if __name__ == "__main__":
    unittest.main(verbosity=2)
