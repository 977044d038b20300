# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of other packages: DLPack and __array_interface__, by stand-ins around numpy arrays. Every rank runs it."""
import ctypes
import unittest

import banyan
import numpy
from banyan import _buffer

COMM = None  # the job's communicator


def setUpModule():
    global COMM
    COMM = banyan.Comm.from_env(op_timeout_s=60)


def tearDownModule():
    COMM.finalize()


class Interface:
    """An array that has only __array_interface__."""

    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


class Unversioned:
    """An array that has only DLPack, of before version 1."""
    device = 1, 0

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


class OnDevice(Unversioned):
    device = 2, 1


class Versioned(Unversioned):
    """DLPack 1.0, filled by hand: code is the type's."""

    def __init__(self, array, code=2, flags=0):
        super().__init__(array)
        item = array.itemsize
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*[s // item for s in array.strides])
        self.managed = _buffer._DLVersioned(1, 0, None, None, flags, _buffer._DLTensor(
            array.ctypes.data, 1, 0, array.ndim, code, 8 * item, 1, self.shape, self.strides, 0))

    def __dlpack__(self, stream=None, max_version=None):
        assert max_version == (1, 0)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor_versioned", None)


class Arrays(unittest.TestCase):
    def tearDown(self):
        COMM.barrier()

    def test_each_way_in(self):
        for kind in Interface, Unversioned, Versioned:
            for shape in (6,), (2, 3), (1, 6):
                x = numpy.full(shape, COMM.rank + 1, "float32")
                self.assertIs(COMM.allreduce(mine := kind(x)), mine)
                numpy.testing.assert_array_equal(x, numpy.full(shape, sum(range(1, COMM.size + 1)), "float32"))

    def test_types_of_dlpack(self):
        x = numpy.full(4, 0x3f80, "uint16")  # 1.0 in bfloat16
        COMM.allreduce(Versioned(x, code=4))
        value = (x.astype("uint32") << 16).view("float32")
        numpy.testing.assert_array_equal(value, numpy.full(4, COMM.size, "float32"))
        for code, name in (0, "int32"), (1, "uint32"), (0, "int64"), (2, "float64"):
            x = numpy.ones(3, name)
            COMM.allreduce(Versioned(x, code))
            self.assertEqual(x.tolist(), [COMM.size] * 3)
        with self.assertRaisesRegex(TypeError, "code 3"):
            COMM.allreduce(Versioned(numpy.ones(3), code=3))

    def test_a_byte_offset_counts(self):
        x = numpy.array([7, 1, 2], "float32")
        mine = Versioned(x)
        mine.managed.tensor.byte_offset, mine.shape[0] = 4, 2
        COMM.allreduce(mine)
        self.assertEqual(x.tolist(), [7, COMM.size, 2 * COMM.size])

    def test_strided_arrays_are_refused_with_the_remedy(self):
        x = numpy.zeros((4, 4), "float32")
        for strided in x[:, 1], x.T[1:], x[::-1], x[::2]:
            for kind in lambda a: a, Interface, Unversioned, Versioned, memoryview:
                with self.assertRaisesRegex(ValueError, "contiguous"):
                    COMM.allreduce(kind(strided))
        COMM.allreduce(x[::2][:1])  # one row is contiguous whatever lies between rows
        COMM.allreduce(x[:0, 1])

    def test_read_only_arrays_are_read_alone(self):
        x = numpy.ones(3, "float32")
        x.flags.writeable = False
        for mine in x, Interface(x), Versioned(numpy.ones(3, "float32"), flags=1):
            with self.assertRaises(BufferError):
                COMM.allreduce(mine)
            out = numpy.zeros(3, "float32")
            COMM.allreduce(mine, out)
            self.assertEqual(out.tolist(), [COMM.size] * 3)

    def test_a_read_only_buffer_is_refused_whatever_dlpack_gives(self):
        class Constant(bytes):
            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self, **_):
                raise AssertionError("__dlpack__ was asked for what the buffer protocol refused")

        with self.assertRaises(BufferError):
            COMM.allreduce(Constant(8))
        COMM.allreduce(Constant(8), out := bytearray(8))
        self.assertEqual(out, bytes(8))

    def test_device_memory_is_refused(self):
        with self.assertRaisesRegex(TypeError, "device"):
            COMM.allreduce(OnDevice(numpy.ones(3)))

    def test_types_without_a_name_are_named(self):
        for dtype in "longdouble", ">f4":
            with self.assertRaisesRegex(TypeError, "format 'g'|format '>f'"):
                COMM.allreduce(numpy.zeros(3, dtype))

    def test_truth_values_short_and_complex_numbers(self):
        ranks = range(COMM.size)
        for kind in lambda a: a, Interface, lambda a: Versioned(a, code={"b": 6, "c": 5, "i": 0, "u": 1}[a.dtype.kind]):
            x = numpy.array([COMM.rank == 0, True, False])
            COMM.allreduce(kind(x), y := numpy.zeros(3, "bool"))
            self.assertEqual(y.tolist(), [True, True, False])
            COMM.allreduce(kind(x), op="prod")
            self.assertEqual(x.tolist(), [COMM.size == 1, True, False])
            for dtype in "int16", "uint16":
                x = numpy.array([COMM.rank, 40000 + COMM.rank]).astype(dtype)
                COMM.allreduce(kind(x), op="max")
                self.assertEqual(x.tolist(), numpy.array([COMM.size - 1, 40000 + COMM.size - 1]).astype(dtype).tolist())
            for dtype in "complex64", "complex128":
                x = numpy.full(3, COMM.rank + 1j, dtype)
                COMM.allreduce(kind(x), y := numpy.zeros(3, dtype), op="avg")
                numpy.testing.assert_allclose(y, sum(ranks) / COMM.size + 1j, rtol=1e-6)
                COMM.allreduce(kind(x), op="prod")
                numpy.testing.assert_allclose(x, numpy.prod([r + 1j for r in ranks]), rtol=1e-6)
                with self.assertRaisesRegex(banyan.Error, "complex types have sum, avg and prod"):
                    COMM.allreduce(x, op="max")

    def test_floats_of_one_byte(self):
        for code, one in (10, 0x38), (12, 0x3c):
            x = numpy.full(4, one, "uint8")
            COMM.allreduce(Versioned(x, code), op="prod")
            self.assertEqual(x.tolist(), [one] * 4)

    def test_names_of_types_and_operations(self):
        x = numpy.array([COMM.rank, -COMM.rank], "int32")
        COMM.allreduce(x, op="max")
        self.assertEqual(x.tolist(), [COMM.size - 1, 0])
        bits = numpy.full(2, 0x3f80, "uint16")
        COMM.allreduce(bits, op="max", dtype="bf16")
        self.assertEqual(bits.tolist(), [0x3f80] * 2)
        with self.assertRaisesRegex(ValueError, "'total' is none of sum, avg"):
            COMM.allreduce(x, op="total")


if __name__ == "__main__":
    unittest.main(verbosity=2)
