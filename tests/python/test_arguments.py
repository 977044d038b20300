# SPDX-License-Identifier: BSD-3-Clause
"""Random wrong arguments of the Python module: each of them raises one of the documented exceptions, at once, and leaves the
communicator usable. A call is a good one with one argument made wrong. BANYAN_TEST_SEED repeats a run."""
import os
import random
import time
import unittest

import banyan
import numpy

SEED = os.environ.get("BANYAN_TEST_SEED") or 20261122
SEED = random.randrange(1 << 30) if SEED == "random" else int(SEED)
CALLS, SECONDS = 4000, 5
DOCUMENTED = (banyan.Error, TypeError, ValueError, BufferError)
COMM = None  # the job's communicator


def setUpModule():
    global COMM
    COMM = banyan.Comm.from_env(op_timeout_s=20)


def tearDownModule():
    COMM.finalize()


def floats(count):
    return numpy.zeros(count, "float32")


def released():
    view = memoryview(bytearray(8))
    view.release()
    return view


# What can serve nowhere as an argument of that kind, whatever the other arguments. Functions, because buffers are made anew.
NUMBERS = [lambda: None, lambda: "0", lambda: 1.5, lambda: [], lambda: float("nan"), lambda: 1 << 31, lambda: 1 << 32, lambda: -1 << 31,
           lambda: -1 << 70, lambda: 1 << 64, lambda: object(), lambda: b"1"]
BUFFERS = [lambda: 5, lambda: "text", lambda: object(), lambda: [1.0, 2.0], lambda: numpy.zeros(5, "longdouble"), released,
           lambda: numpy.zeros((6, 6), "float32")[:, 1], lambda: numpy.zeros(5, ">f4"), lambda: numpy.zeros(6, "object"),
           lambda: numpy.zeros(6, "S3"), lambda: numpy.zeros(6, "float32")[::-1]]
CONSTANT = [lambda: b"read only, 24 bytes long", lambda: numpy.broadcast_to(numpy.float32(1), 6)]
WRONG = {
    "rank": [*NUMBERS, lambda: -2, lambda: COMM.size, lambda: numpy.zeros(2)],
    "op": [*NUMBERS, lambda: -1, lambda: 99, lambda: banyan.BAND, lambda: "total"],
    "dtype": [lambda: 99, lambda: -1, lambda: "f33", lambda: [], lambda: 1.0, lambda: 1 << 32, lambda: numpy.float32],
    "input": BUFFERS,
    "sink": [*BUFFERS, *CONSTANT],
    "output": [*BUFFERS, *CONSTANT, lambda: floats(7 * COMM.size), lambda: numpy.zeros(5, "int64")],
    "schedule": [lambda: 5, lambda: b"ring", lambda: "nosuch", lambda: "ri\0ng", lambda: ["ring"]],
    "codec": [lambda: 5, lambda: b"int8", lambda: "nosuch", lambda: "int8:block=-1", lambda: "int8:=", lambda: "f16\0", lambda: {}],
    "timeout": [lambda: "1", lambda: [], lambda: object(), lambda: b"1"],
    "tag": [*NUMBERS[:5], lambda: -1, lambda: 1 << 32],
    "deterministic": [lambda: "yes", lambda: 1 << 31, lambda: 0.5, lambda: []],
    "chunk_bytes": [*NUMBERS[:5], lambda: -1, lambda: 1 << 64],
    "shape": [lambda: 5, lambda: "23", lambda: [1.5], lambda: [1 << 63], lambda: [None], lambda: (2, "3")],
    "nosuch": [lambda: 1],
}
OPTIONS = "schedule codec timeout tag deterministic chunk_bytes shape nosuch".split()


def collectives():
    """name -> (positional (kind, value), keywords {name: (kind, value)}); sums are of 6 or of 6 each."""
    n, six, all_six = COMM.size, ("input", floats(6)), ("input", floats(6 * COMM.size))
    out, all_out = ("output", floats(6)), ("output", floats(6 * n))
    op, root, dtype = ("op", banyan.SUM), ("rank", COMM.rank), ("dtype", banyan.F32)
    reduces = {"op": op, "dtype": dtype}
    return {
        "allreduce": ([six, out], reduces), "scan": ([six, out], reduces), "exscan": ([six, out], reduces),
        "reduce": ([six, out], {**reduces, "root": root}), "reduce_scatter": ([all_six, out], reduces),
        "broadcast": ([("input", floats(6))], {"root": root}), "allgather": ([six, all_out], {}),
        "gather": ([six, all_out], {"root": root}), "scatter": ([all_six, out], {"root": root}),
        "alltoall": ([all_six, all_out], {}), "barrier": ([], {}),
        "send": ([six], {"peer": ("rank", 0)}), "recv": ([("sink", floats(6))], {"peer": ("rank", 0)}),
    }


class RandomArguments(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED + COMM.rank)
        print(f"# BANYAN_TEST_SEED={SEED}, rank {COMM.rank}", flush=True)

    def refused(self, what, call, *args, **keywords):
        text = f"BANYAN_TEST_SEED={SEED}: {what}"
        try:
            call(*args, **keywords)
        except DOCUMENTED as why:
            self.assertTrue(str(why), text)
            return
        except Exception as why:  # of another kind
            self.fail(f"{text}: {type(why).__name__}: {why}")
        self.fail(f"{text}: was accepted")

    def one(self, name, positional, keywords):
        args, words = [v for _, v in positional], {k: v for k, (_, v) in keywords.items()}
        places = [*range(len(args)), *keywords, *OPTIONS]
        place = self.rng.choice(places)
        kind = positional[place][0] if isinstance(place, int) else keywords[place][0] if place in keywords else place
        value = self.rng.choice(WRONG[kind])()
        if isinstance(place, int):
            args[place] = value
        else:
            words[place] = value
        form = self.rng.choice(["", "", "_init"])
        what = f"{name}{form}: {kind} {place} {value!r:.60}"
        if self.rng.random() < 0.1 and not form:
            with self.assertRaises(DOCUMENTED, msg=what), banyan.group():
                getattr(COMM, name)(*args, **words)
        else:
            self.refused(what, getattr(COMM, name + form), *args, **words)

    def test_collectives(self):
        calls = sorted(collectives().items())
        until = time.monotonic() + SECONDS
        for _ in range(CALLS):
            name, (positional, keywords) = self.rng.choice(calls)
            self.one(name, positional, keywords)
            if time.monotonic() > until:
                break
        COMM.barrier()
        self.assertEqual(COMM.allreduce(numpy.ones(1))[0], COMM.size)

    def test_what_is_closed(self):
        twin = COMM.dup()
        request = twin.allreduce_init(floats(6))
        request.free()
        for name in "start", "test", "wait", "source":
            self.refused(name, getattr(request, name))
        twin.finalize()
        for name, (positional, keywords) in collectives().items():
            for form in "", "_init":
                self.refused(name + form, getattr(twin, name + form), *(v for _, v in positional), **{k: v for k, (_, v) in keywords.items()})
        for name, args in (("dup", ()), ("split", (0,)), ("abort", ("",)), ("async_error", ()), ("progress", ()), ("probe", ())):
            self.refused(name, getattr(twin, name), *args)
        self.assertIsNone(twin.finalize())

    def test_of_communicators_and_requests(self):
        for wrong in None, "0", 1.5, [], 1 << 31, -1 << 70:
            self.refused(f"split color {wrong!r}", COMM.split, wrong)
            self.refused(f"split key {wrong!r}", COMM.split, 0, wrong)
        for wrong in 5, b"why", "a\0b", ["x"]:
            self.refused(f"abort {wrong!r}", COMM.abort, wrong)
        for wrong in WRONG["rank"]:
            self.refused(f"probe {wrong()!r}", COMM.probe, wrong())
        for wrong in WRONG["tag"]:
            self.refused(f"probe tag {wrong()!r}", COMM.probe, 0, wrong())
        with COMM.barrier_init() as request:
            request.start()
            for wrong in "1", [], b"1":
                self.refused(f"wait {wrong!r}", request.wait, wrong)
            request.wait()
        self.assertIsNone(COMM.async_error())

    def test_init(self):
        for ident in 5, "x" * 128, b"short", [1] * 128, bytes(127):
            self.refused(f"id {ident!r:.20}", banyan.Comm.init, ident, 0, 1)
        for wrong in WRONG["rank"][:-2]:
            self.refused(f"rank {wrong()!r}", banyan.Comm.init, banyan.create_id(), wrong(), 1)
            self.refused(f"size {wrong()!r}", banyan.Comm.init, banyan.create_id(), 0, wrong())
        settings = {"transport": [5, b"tcp", "nosuch", "t\0"], "schedule": [5, "nosuch"], "codec": [5, [], "nosuch"], "ifname": [5],
                    "port_range": [5, 1.5], "topology": [5, {}], "chunk_bytes": [-1, "64K", 1 << 64, None], "op_timeout_s": ["1", []],
                    "deterministic": ["x", 1 << 40], "progress_thread": [1 << 31, 0.5], "progress_cpu": ["0"], "progress_hook": [5],
                    "allgather": [5, lambda mine: 1 // 0], "size": [1], "nosuch": [1]}
        for name, values in settings.items():
            for value in values:
                self.refused(f"{name}={value!r}", banyan.Comm.init, None if name == "allgather" else banyan.create_id(), 0, 1, **{name: value})


if __name__ == "__main__":
    unittest.main(verbosity=2)
