# SPDX-License-Identifier: BSD-3-Clause
"""What the Python module has beside plain collectives. Every rank of `banyan_run -n N` runs these tests in the same order."""
import ast
import asyncio
import ctypes
import gc
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import weakref
from unittest import mock

import banyan
import banyan.training
import numpy

COMM = None  # the job's communicator


def setUpModule():
    global COMM
    COMM = banyan.Comm.from_env(op_timeout_s=60)


def tearDownModule():
    COMM.finalize()


def part(rank):
    """What rank contributes where counts differ: rank + 1 elements."""
    return numpy.arange(rank + 1, dtype="float32") + 10 * rank


class ByCounts(unittest.TestCase):
    def setUp(self):
        self.n, self.rank = COMM.size, COMM.rank
        self.counts = [r + 1 for r in range(self.n)]
        self.all = numpy.concatenate([part(r) for r in range(self.n)])

    def test_allgatherv(self):
        out = COMM.allgatherv(part(self.rank), numpy.zeros(len(self.all), "float32"), self.counts)
        numpy.testing.assert_array_equal(out, self.all)
        displs = [3 * r * self.n for r in range(self.n)]
        out = COMM.allgatherv(part(self.rank), numpy.full(3 * self.n * self.n, -1, "float32"), self.counts, displs)
        for r in range(self.n):
            numpy.testing.assert_array_equal(out[displs[r]:displs[r] + r + 1], part(r))
        start = sum(self.counts[:self.rank])
        own = numpy.zeros(len(self.all), "float32")
        own[start:start + self.rank + 1] = part(self.rank)
        numpy.testing.assert_array_equal(COMM.allgatherv(None, own, self.counts), self.all)

    def test_gatherv_and_scatterv(self):
        root = self.n - 1
        full = numpy.zeros(len(self.all), "float32") if self.rank == root else None
        out = COMM.gatherv(part(self.rank), full, self.counts, root=root)
        back = COMM.scatterv(out, numpy.zeros(self.rank + 1, "float32"), self.counts, root=root)
        numpy.testing.assert_array_equal(back, part(self.rank))
        if self.rank == root:
            numpy.testing.assert_array_equal(out, self.all)
        else:
            self.assertIsNone(out)

    def test_reduce_scatterv(self):
        out = COMM.reduce_scatterv(self.all, numpy.zeros(self.rank + 1, "float32"), self.counts, op="max")
        numpy.testing.assert_array_equal(out, part(self.rank))

    def test_alltoallv(self):
        send = numpy.concatenate([numpy.full(p, 100 * self.rank + p, "int64") for p in range(self.n)])
        recv = numpy.zeros(self.n * self.rank, "int64")
        out = COMM.alltoallv(send, list(range(self.n)), recv, [self.rank] * self.n)
        expected = numpy.concatenate([numpy.full(self.rank, 100 * p + self.rank, "int64") for p in range(self.n)])
        numpy.testing.assert_array_equal(out, expected)

    def test_requests_by_counts(self):
        out = numpy.zeros(len(self.all), "float32")
        with COMM.allgatherv_init(part(self.rank), out, self.counts) as request:
            for _ in range(2):
                out[:] = 0
                numpy.testing.assert_array_equal(request.start().wait(), self.all)

    def test_blocks_outside_of_the_buffer_are_refused(self):
        out = numpy.zeros(self.n, "float32")
        for counts, displs in ([1] * (self.n + 1), None), ([2] * self.n, None), ([1] * self.n, [self.n] * self.n), ([-1] * self.n, None):
            with self.assertRaisesRegex(ValueError, "counts"):
                COMM.allgatherv(numpy.zeros(1, "float32"), out, counts, displs)
        COMM.barrier()


class Ranks(unittest.TestCase):
    def test_create_group(self):
        members = list(range(COMM.size))[::-2]
        if COMM.rank in members:
            with COMM.create_group(members, tag=3) as comm:
                self.assertEqual((comm.rank, comm.size), (members.index(COMM.rank), len(members)))
                self.assertEqual(comm.allgather_object(COMM.rank), members)
        COMM.barrier()

    def test_sendrecv(self):
        right, left = (COMM.rank + 1) % COMM.size, (COMM.rank - 1) % COMM.size
        send = numpy.full(right + 1, COMM.rank, "float64")
        out = COMM.sendrecv(send, right, numpy.zeros(COMM.rank + 1), left)
        self.assertEqual(out.tolist(), [left] * (COMM.rank + 1))

    def test_objects(self):
        everyone = [{"rank": r, "text": "x" * r * 1000} for r in range(COMM.size)]
        self.assertEqual(COMM.allgather_object(everyone[COMM.rank]), everyone)
        self.assertEqual(COMM.broadcast_object(everyone[COMM.rank], root=COMM.size - 1), everyone[-1])
        if COMM.size > 1 and COMM.rank < 2:
            if COMM.rank == 0:
                COMM.send_object(("whatever", [1]), 1, tag=2)
            else:
                self.assertEqual(COMM.recv_object(0, tag=2), ("whatever", [1]))
        COMM.barrier()

    def test_allreduce_many(self):
        shapes = ("float32", (3, 4)), ("float32", 0), ("float32", 1024), ("float32", 1025), ("float32", 7), ("int64", 9), ("int64", 1)
        arrays = [numpy.full(shape, COMM.rank + i, dtype) for i, (dtype, shape) in enumerate(shapes)]
        before = COMM.stats()["ops"]
        COMM.allreduce_many(arrays)
        self.assertEqual(COMM.stats()["ops"] - before, 4)           # the long one alone, and its neighbours on each side
        for i, (array, (dtype, shape)) in enumerate(zip(arrays, shapes)):
            total = sum(rank + i for rank in range(COMM.size))
            numpy.testing.assert_array_equal(array, numpy.full(shape, total, dtype))
        COMM.allreduce_many(arrays[:2], op="max", tag=3)
        COMM.allreduce_many([])
        with self.assertRaisesRegex(TypeError, "codec_state is for a single array"):
            COMM.allreduce_many(arrays, codec_state=None)
        with banyan.group(), self.assertRaisesRegex(banyan.Error, "waits for the results"):
            COMM.allreduce_many(arrays)

    def test_allreduce_many_with_a_codec(self):
        """No array gets the scale of its neighbours, whether the call names the codec or the communicator has it."""
        def check(comm, **options):
            arrays = [numpy.full(50, (COMM.rank + 1) * 10.0 ** e, "float32") for e in range(-10, 10)]
            comm.allreduce_many(arrays, **options)
            for e, array in zip(range(-10, 10), arrays):
                numpy.testing.assert_allclose(array, COMM.size * (COMM.size + 1) / 2 * 10.0 ** e, rtol=.05)
        check(COMM, codec="int8:force=1")
        ident = COMM.broadcast_object(banyan.create_id() if COMM.rank == 0 else None)
        with banyan.Comm.init(ident, COMM.rank, COMM.size, codec="int8:force=1") as coded:
            check(coded)

    def test_any_source(self):
        self.assertIsNone(COMM.probe(COMM.rank, tag=8))
        COMM.send(numpy.full(2, COMM.rank), 0, tag=8)
        COMM.send_object({"from": COMM.rank, "text": "x" * 100}, 0, tag=9)
        if COMM.rank == 0:
            seen = set()
            for _ in range(COMM.size):
                with COMM.recv_init(numpy.zeros(2, "int64"), banyan.ANY_SOURCE, tag=8) as request:
                    rank = request.start().wait()[0]
                    self.assertEqual(request.source(), (rank, 16))
                while COMM.probe(tag=9) is None:
                    pass
                source, nbytes = COMM.probe(banyan.ANY_SOURCE, 9)
                self.assertEqual((COMM.probe(source, 9), nbytes), ((source, 8), 8))
                seen.add((rank, COMM.recv_object(banyan.ANY_SOURCE, tag=9)["from"]))
            for place in 0, 1:
                self.assertEqual({ranks[place] for ranks in seen}, set(range(COMM.size)))
        COMM.barrier()

    def test_objects_in_a_group_are_refused(self):
        for call in (COMM.broadcast_object, 1), (COMM.allgather_object, 1), (COMM.recv_object, COMM.rank):
            with self.assertRaisesRegex(banyan.Error, f"{call[0].__name__} on rank {COMM.rank}.* before or behind") as caught, banyan.group():
                call[0](*call[1:])
            self.assertEqual(caught.exception.code, banyan.EBUSY)
        with banyan.group():
            COMM.send_object([COMM.rank], COMM.rank, tag=5)  # which waits for nothing
        self.assertEqual(COMM.recv_object(COMM.rank, tag=5), [COMM.rank])
        self.assertEqual(COMM.allgather_object(COMM.rank), list(range(COMM.size)))

    def test_stats_and_plan(self):
        before = COMM.stats()["ops"]
        COMM.allreduce(numpy.zeros(10))
        self.assertEqual(COMM.stats()["ops"], before + 1)
        self.assertIn("us", COMM.plan("allreduce", 1 << 20, "f32"))
        with self.assertRaises(banyan.Error):
            COMM.plan("nosuch", 1)

    def test_stats_of_a_request(self):
        with COMM.allreduce_init(numpy.zeros(1000)) as request:
            request.start().wait()
            request.stats()
            request.start().wait()
            stats = request.stats()
        self.assertGreaterEqual(stats["end_ns"], stats["start_ns"])
        self.assertGreater(stats["start_ns"], 0)


class InFlight(unittest.TestCase):
    def test_buffers_live_as_long_as_the_operation(self):
        """The program drops the request and its communicator, and C still writes to the buffer."""
        comm = COMM.dup()
        handle, target = comm._handle, numpy.zeros(1)
        lives = weakref.ref(target)
        request = comm.recv_init(target, comm.rank).start()
        del target, comm, request
        gc.collect()
        self.assertIsNotNone(lives())
        send = numpy.ones(1)
        banyan._lib.check(banyan._lib.lib.banyan_send(ctypes.c_void_p(send.ctypes.data), ctypes.c_size_t(1),
                                                      ctypes.c_int(banyan.F64), ctypes.c_int(COMM.rank), handle, None))
        [request] = [r for r in banyan._comm._active if r._comm._handle is handle]
        self.assertEqual(request.wait()[0], 1)
        comm = request._comm
        comm.finalize()
        del comm, request
        gc.collect()
        self.assertIsNone(lives())


    def test_a_refused_end_may_be_called_again(self):
        comm = COMM.dup()
        request = comm.recv_init(numpy.zeros(1), comm.rank).start()
        for end in comm.finalize, comm.destroy:
            with self.assertRaises(banyan.Error) as caught:
                end()
            self.assertEqual(caught.exception.code, banyan.EBUSY)
        comm.send(numpy.ones(1), comm.rank)
        request.wait()
        with self.assertRaises(banyan.Error) as caught, banyan.group():
            comm.barrier()
            comm.finalize()
        self.assertEqual(caught.exception.code, banyan.EBUSY)
        comm.barrier()
        comm.finalize()
        self.assertRaises(banyan.Error, comm.barrier)


class Exceptions(unittest.TestCase):
    def test_a_forked_child_exits_as_it_says(self):
        parent = os.getpid()
        try:
            with COMM.dup() as comm, comm.barrier_init():
                child = os.fork()
                if child == 0:
                    sys.exit(7)
        except BaseException as why:
            if os.getpid() == parent:
                raise
            os._exit(why.code if isinstance(why, SystemExit) else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)

    def test_an_exception_passes_a_request_in_flight(self):
        with self.assertRaises(KeyError), COMM.dup() as comm, comm.recv_init(numpy.zeros(1), comm.rank) as request:
            request.start()
            raise KeyError("x")
        COMM.barrier()


class Ray(unittest.TestCase):
    def test_jobs_of_a_cluster_have_groups_of_the_same_name(self):
        """On a stand-in for Ray: tests/frameworks/test_ray.py has Ray itself."""
        names = "ray", "ray.experimental", "ray.experimental.internal_kv", "ray.util", "ray.util.collective", \
            "ray.util.collective.backend_registry", "ray.util.collective.collective_group", \
            "ray.util.collective.collective_group.base_collective_group", "ray.util.collective.types"
        modules = {name: mock.MagicMock() for name in names}
        kv = modules["ray"].experimental.internal_kv
        modules["ray.util.collective.collective_group.base_collective_group"].BaseGroup = type("BaseGroup", (), {
            "__init__": lambda self, size, rank, name: None})
        with mock.patch.dict(sys.modules, modules):
            from banyan.ray import BanyanGroup
            for job in "01000000", "02000000":
                modules["ray"].get_runtime_context().get_job_id.return_value = job
                BanyanGroup(1, 0, "default").destroy_group()
        keys = [call.args[0] for call in kv._internal_kv_put.call_args_list]
        self.assertEqual(keys, [call.args[0] for call in kv._internal_kv_del.call_args_list])
        self.assertEqual(len(set(keys)), 2)


class Memory(unittest.TestCase):
    def test_shared_memory_in_collectives(self):
        memory = COMM.mem_alloc(1 << 20)
        x = numpy.frombuffer(memory, "float32")
        self.assertFalse(x.any())
        x[:] = COMM.rank + 1
        COMM.allreduce(x)
        self.assertTrue((x == sum(range(1, COMM.size + 1))).all())
        del memory, x
        gc.collect()
        COMM.barrier()

    def test_it_outlives_its_communicator(self):
        comm = COMM.dup()
        x = numpy.frombuffer(comm.mem_alloc(4096), "uint8")
        comm.finalize()
        x[:] = 7
        COMM.allreduce(x, op=banyan.MAX)
        self.assertEqual(x.sum(), 7 * 4096)

    def test_wrong_lengths(self):
        for nbytes in 0, -1, 1 << 64, "1":
            with self.assertRaises((banyan.Error, ValueError, TypeError, OverflowError, OSError)):
                COMM.mem_alloc(nbytes)


class Operations(unittest.TestCase):
    def test_the_order_of_ranks(self):
        def last(in_, inout):  # not commutative: of the two, the higher rank's
            self.assertTrue(in_.readonly and in_.format == inout.format == "q")

        op = banyan.Op(last, commutative=False)
        x = COMM.allreduce(numpy.array([COMM.rank, 5], "int64"), op=op)
        self.assertEqual(x.tolist(), [COMM.size - 1, 5])

    def test_numpy_and_opaque_elements(self):
        def product(in_, inout):  # of 2x2 matrices
            a, b = (numpy.frombuffer(m, "float64").reshape(-1, 2, 2) for m in (in_, inout))
            b[:] = a @ b

        x = numpy.array([[[1, COMM.rank], [0, 1]]] * 3, "float64")
        COMM.allreduce(x.view("uint8"), op=banyan.Op(product, commutative=False, elem_bytes=32))
        self.assertEqual(x[2].tolist(), [[1, sum(range(COMM.size))], [0, 1]])

    def test_premul_sum(self):
        x = COMM.allreduce(numpy.ones(3, "float32"), op=banyan.Op.premul_sum(COMM.rank + 0.5))
        self.assertEqual(x.tolist(), [sum(r + 0.5 for r in range(COMM.size))] * 3)

    def test_an_exception_ends_the_call_everywhere(self):
        def fails(_in, _inout):
            raise ZeroDivisionError("of no use")

        comm = COMM.dup()
        if COMM.size > 1:
            with self.assertRaises((ZeroDivisionError, banyan.Error)) as caught:
                comm.allreduce(numpy.ones(3), op=banyan.Op(fails))
            if isinstance(caught.exception, banyan.Error):
                self.assertIn("raised ZeroDivisionError: of no use", str(caught.exception))
        comm.destroy()
        COMM.barrier()


class Codecs(unittest.TestCase):
    def test_a_state_keeps_what_was_lost(self):
        x = numpy.linspace(-1, 1, 5000, dtype="float32") * (COMM.rank + 1)
        state, out = banyan.CodecState(5000, seed=1), numpy.zeros(5000, "float32")
        state.keep_undo()
        COMM.allreduce(x, out, codec="topk:delta=0.01,force=1" if COMM.size > 1 else None, codec_state=state)
        lost = numpy.frombuffer(state.residual(), "float32").copy()
        kept = COMM.allreduce(lost) + out
        total = x / (COMM.rank + 1) * sum(range(1, COMM.size + 1)) if COMM.size > 1 else x
        numpy.testing.assert_allclose(kept, total, atol=1e-4)
        saved = state.save()
        again = banyan.CodecState(5000)
        again.load(saved)
        self.assertEqual(bytes(again.residual()), bytes(state.residual()))
        if COMM.size > 1:
            self.assertEqual(state.step(), 1)
            state.undo(0)
            self.assertFalse(any(state.residual()))
        again.reset()
        self.assertFalse(any(again.residual()))
        again.free()
        with self.assertRaises(banyan.Error):
            again.step()
        with self.assertRaises(TypeError):
            COMM.allreduce(x, codec_state=5)


class Asyncio(unittest.TestCase):
    def test_two_coroutines_wait_at_once(self):
        async def total(value):
            with COMM.allreduce_init(numpy.full(1000, value, "float32")) as request:
                return [(await request.start())[0] for _ in range(1)][0]

        async def main():
            return await asyncio.gather(total(1), total(2))

        self.assertEqual(asyncio.run(main()), [COMM.size, 2 * COMM.size])

    def test_two_coroutines_await_one_request(self):
        """And a third one, which is cancelled."""
        async def main():
            async def wait():
                return (await request)[0]

            with COMM.recv_init(numpy.zeros(1), COMM.rank) as request:
                request.start()
                tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
                await asyncio.sleep(0)  # they wait
                tasks[0].cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await tasks[0]
                COMM.send(numpy.ones(1), COMM.rank)
                return await asyncio.wait_for(asyncio.gather(*tasks[1:]), 60)

        self.assertEqual(asyncio.run(main()), [1, 1])

    def test_a_communicator_holds_no_loop(self):
        async def main():
            async def wait():
                await request.start()

            with COMM.recv_init(numpy.zeros(1), COMM.rank) as request:
                task = asyncio.ensure_future(wait())
                await asyncio.sleep(0)
                COMM.send(numpy.ones(1), COMM.rank)
                await task
            return weakref.ref(asyncio.get_running_loop())

        loop = asyncio.run(main())
        gc.collect()
        self.assertIsNone(loop())

    def test_an_error_is_raised_where_it_is_awaited(self):
        async def main(comm):
            request = comm.recv_init(numpy.zeros(1), comm.rank).start()
            asyncio.get_running_loop().call_soon(comm.abort, "enough")
            with self.assertRaisesRegex(banyan.Error, "enough"):
                await request

        comm = COMM.dup()
        asyncio.run(main(comm))
        comm.destroy()
        COMM.barrier()


class Help(unittest.TestCase):
    def test_every_method_says_what_it_takes(self):
        for name in dir(banyan.Comm):
            method = getattr(banyan.Comm, name)
            if callable(method) and not name.startswith("_"):
                self.assertTrue(inspect.getdoc(method), name)
                self.assertNotIn("settings" if hasattr(method, "__signature__") else "args", inspect.signature(method).parameters, name)
        self.assertIn("codec", inspect.signature(banyan.Comm.allreduce).parameters)

    def test_names_are_those_of_the_library(self):
        for i, name in enumerate(banyan._lib.DTYPES):
            banyan._lib.lib.banyan_dtype_name.restype = banyan._lib.c_char_p
            self.assertEqual(banyan._lib.lib.banyan_dtype_name(i).decode(), name)
            self.assertEqual(banyan._lib.lib.banyan_dtype_bytes(i), banyan._lib.ITEM_BYTES[i])


class Training(unittest.TestCase):
    def setUp(self):
        rng = numpy.random.default_rng(5)  # the same on all ranks
        self.base = {"fc.weight": rng.normal(size=(300, 200)), "fc.bias": rng.normal(size=200), "scale": rng.normal(size=())}
        self.grads = {name: numpy.array(g * (COMM.rank + 1), "float32") for name, g in self.base.items()}
        self.mean = (COMM.size + 1) / 2

    def step(self, buckets):
        for name, g in self.base.items():
            self.grads[name][...] = g * (COMM.rank + 1)
        buckets.ready("scale")
        buckets.ready(0, 0, 30000)
        buckets.ready("fc.bias")
        buckets.ready("fc.weight", 30000, 30000)
        buckets.wait()

    def test_buckets(self):
        with banyan.training.Buckets(COMM, self.grads, rules="*:>=10000=int8:force=1", norms=1) as buckets:
            for _ in range(3):
                self.step(buckets)
            numpy.testing.assert_allclose(self.grads["fc.bias"], self.base["fc.bias"] * self.mean, rtol=1e-5)
            numpy.testing.assert_allclose(self.grads["fc.weight"], self.base["fc.weight"] * self.mean, atol=0.2)
            self.assertEqual(buckets.codec("fc.weight"), "int8:force=1")
            self.assertIsNone(buckets.residual("fc.bias"))
            self.assertEqual(len(buckets.residual("fc.weight")), 60000)
            self.assertEqual(buckets.stats()["steps"], 3)
            self.assertGreater(buckets.tensor_stats("fc.weight")["norm"], 0)
            saved = buckets.save()
            buckets.set_codec("fc.weight", None)
            self.step(buckets)
            buckets.load(saved)
            self.assertEqual(buckets.stats()["steps"], 3)
            with self.assertRaises(KeyError):
                buckets.ready("nosuch")
        with self.assertRaises(banyan.Error):
            buckets.wait()

    def test_an_unmarked_tensor_is_named(self):
        with banyan.training.Buckets(COMM, self.grads) as buckets:
            buckets.ready("scale")
            with self.assertRaisesRegex(banyan.Error, "fc."):
                buckets.wait()

    def test_accordion_sets_codecs(self):
        with banyan.training.Buckets(COMM, self.grads) as buckets, \
                banyan.training.Accordion(COMM, self.grads, interval=1, min_count=1, little="none", much="int8") as accordion:
            for _ in range(3):
                for name in self.grads:
                    self.grads[name][...] = self.base[name]
                    accordion.observe(name)
                accordion.step(0.1)
            self.assertEqual(accordion.apply(buckets), ["fc.weight", "fc.bias", "scale"])
            self.assertEqual(buckets.codec("fc.bias"), "int8")

    def test_outer_averages(self):
        settings = dict(period=2, fragments=1, delay=0, momentum=0, rate=1)
        with banyan.training.Outer(COMM, self.grads, **settings) as local:
            numpy.testing.assert_array_equal(self.grads["fc.bias"], self.base["fc.bias"].astype("float32"))  # rank 0's
            self.grads["scale"] += COMM.rank
            self.assertFalse(local.step(1.0))
            self.assertTrue(local.step(1.0))
            numpy.testing.assert_allclose(self.grads["scale"], self.base["scale"] + (COMM.size - 1) / 2, rtol=1e-5)
            local.load(local.save())
            local.move(COMM)
            self.grads["scale"] += COMM.rank
            self.assertFalse(local.step())
            self.assertTrue(local.step())
            numpy.testing.assert_allclose(self.grads["scale"], self.base["scale"] + COMM.size - 1, rtol=1e-5)

    def test_unknown_settings(self):
        with self.assertRaisesRegex(TypeError, "no setting 'speed'; there are bucket_bytes"):
            banyan.training.Buckets(COMM, self.grads, speed=1)


class Library(unittest.TestCase):
    """Which files the module may load, where the package lies below PREFIX or was moved with it."""

    def candidates(self, root, prefix):
        package = pathlib.Path(root) / "a/b/lib/python3/site-packages/banyan"
        package.mkdir(parents=True)
        source = pathlib.Path(banyan.__file__).resolve().parent
        for file in source.glob("*.py"):
            shutil.copy(file, package)
        (package / "_where.py").write_text(f"PREFIX = {prefix!r}\nLIBDIR = 'lib'\n"
                                           f"PACKAGE = {prefix + '/lib/python3/site-packages/banyan'!r}\n")
        for place in ("lib", "a/lib", "a/b/lib", "a/b/lib/python3/lib"):
            (pathlib.Path(root) / place).mkdir(parents=True, exist_ok=True)
            (pathlib.Path(root) / place / "libbanyan.so.1").write_text("")
        code = "import os, banyan._lib as l; del os.environ['BANYAN_LIBRARY']; print(l._candidates())"
        env = {**os.environ, "PYTHONPATH": str(package.parent), "BANYAN_LIBRARY": banyan._lib.lib._name}
        return ast.literal_eval(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                                               check=True).stdout)

    def test_only_the_installations_own_folder_is_searched(self):
        for prefix in ("/nowhere", None):
            with tempfile.TemporaryDirectory() as root:
                root = os.path.realpath(root)
                found = self.candidates(root, prefix or f"{root}/a/b")
                self.assertEqual(found, [f"{root}/a/b/lib/libbanyan.so.1"] * (1 if prefix else 2) + ["libbanyan.so.1"])

    @unittest.skipUnless(os.geteuid() == 0, "only root gives files away")
    def test_another_users_file_is_left_alone(self):
        with tempfile.TemporaryDirectory() as root:
            name = os.path.join(root, "libbanyan.so.1")
            open(name, "w").close()
            self.assertTrue(banyan._lib._is_trusted(name))
            os.chmod(name, 0o666)
            self.assertFalse(banyan._lib._is_trusted(name))
            os.chmod(name, 0o644)
            os.chown(name, 12345, 12345)
            self.assertFalse(banyan._lib._is_trusted(name))
            with mock.patch("banyan._lib.__file__", name):  # the package is that user's too
                self.assertTrue(banyan._lib._is_trusted(name))


class Launcher(unittest.TestCase):
    def test_the_job_is_the_launchers(self):
        self.assertEqual(COMM.size, int(os.environ.get("BANYAN_WORLD_SIZE", "1")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
