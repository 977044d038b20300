# SPDX-License-Identifier: BSD-3-Clause
"""Object stores from Python: every rank of `banyan_run -n N` runs these tests in the same order."""
import gc
import threading
import unittest

import banyan
import banyan.objects
import numpy

COMM, STORE = None, None


def setUpModule():
    global COMM, STORE
    COMM = banyan.Comm.from_env(op_timeout_s=60)
    STORE = banyan.objects.Store(COMM)


def tearDownModule():
    gc.collect()  # views of failed tests
    STORE.finalize()
    STORE.finalize()
    with unittest.TestCase().assertRaises(banyan.Error):
        STORE.stats()
    COMM.finalize()


def numbers(rank, count):
    return (numpy.arange(count) % 11 + rank).astype("float32")


class Objects(unittest.TestCase):
    def test_all_get_what_each_puts(self):
        for count in 0, 1, 900, 100000:
            STORE.put(f"each {count} {COMM.rank}", numbers(COMM.rank, count))
            for rank in range(COMM.size):
                view = STORE.get(f"each {count} {rank}")
                self.assertTrue(view.readonly)
                numpy.testing.assert_array_equal(numpy.frombuffer(view, "float32") if count else numpy.zeros(0),
                                                 numbers(rank, count))

    def test_views_outlive_their_object(self):
        name = f"mine {COMM.rank}"
        STORE.put(name, numbers(3, 50000))
        x = numpy.frombuffer(STORE.get(name), "float32")[10:20]
        STORE.delete(name)
        with self.assertRaises(banyan.Error) as error:
            STORE.get(name, 5)
        self.assertEqual(error.exception.code, banyan.EINVAL)
        gc.collect()
        self.assertGreaterEqual(STORE.stats()["bytes"], 200000)
        numpy.testing.assert_array_equal(x, numbers(3, 50000)[10:20])

    def test_a_stream_comes_while_it_is_written(self):
        parts = 20
        if COMM.rank == 0:
            def write():
                data = STORE.create("stream", 4000 * parts)
                for i in range(parts):
                    data[4000 * i:4000 * i + 4000] = bytes([i]) * 4000
                    STORE.fill("stream", 4000 * i + 4000)
            writer = threading.Thread(target=write)
            writer.start()
        got = b"".join(STORE.stream("stream"))
        self.assertEqual(got, b"".join(bytes([i]) * 4000 for i in range(parts)))
        if COMM.rank == 0:
            writer.join()

    def test_reduce_the_first_k(self):
        STORE.put(f"part {COMM.rank}", numbers(COMM.rank, 5000))
        names = [f"part {r}" for r in range(COMM.size)] + ["nobody puts this"]
        target = f"sum {COMM.rank}"
        STORE.reduce(target, names, 5000, banyan.F32, k=COMM.size)
        numpy.testing.assert_array_equal(numpy.frombuffer(STORE.get(target), "float32"),
                                         sum(numbers(r, 5000) for r in range(COMM.size)))
        self.assertEqual(STORE.contributors(target, len(names)), [True] * COMM.size + [False])

    def test_what_is_wrong_is_said(self):
        with self.assertRaises(TypeError):
            STORE.get(b"short")
        name = f"twice {COMM.rank}"
        STORE.put(name, b"x")
        with self.assertRaises(banyan.Error) as error:
            STORE.put(name, b"y")
        self.assertEqual(error.exception.code, banyan.EBUSY)
        with self.assertRaises(banyan.Error) as error:
            STORE.get(f"never {COMM.rank}", 0.05)
        self.assertEqual(error.exception.code, banyan.ETIMEDOUT)


if __name__ == "__main__":
    unittest.main()
