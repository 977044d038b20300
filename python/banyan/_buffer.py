# SPDX-License-Identifier: BSD-3-Clause
"""Memory of other packages' arrays, without importing them: the buffer protocol, DLPack, __array_interface__."""
import ctypes
import operator
import weakref
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, List, Optional, Sequence, Tuple

from ._lib import (BF16, BOOL, C64, C128, DTYPES, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, ITEM_BYTES, U8, U16, U32, U64,
                   named)

TYPES = {"float32": F32, "float64": F64, "float16": F16, "bfloat16": BF16, "int8": I8, "int32": I32, "int64": I64, "uint8": U8,
         "uint32": U32, "uint64": U64, "bool8": BOOL, "int16": I16, "uint16": U16, "complex64": C64, "complex128": C128,
         "e4m3fn8": F8E4M3, "e5m2fn8": F8E5M2}
_LETTERS = {**dict.fromkeys("efd", "float"), **dict.fromkeys("bhilqn", "int"), **dict.fromkeys("cBHILQN", "uint"), "?": "bool",
            "Zf": "complex", "Zd": "complex"}
_INTERFACE_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "complex"}
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool", 10: "e4m3fn", 12: "e5m2fn"}
_ON_HOST = 1, 3  # kDLCPU, kDLCUDAHost


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer."""
    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", c_int), ("ndim", c_int),
                ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p),
                ("suboffsets", c_void_p), ("internal", c_void_p)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class _DLVersioned(ctypes.Structure):
    """DLManagedTensorVersioned; before version 1 the tensor came first."""
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager", c_void_p), ("deleter", c_void_p), ("flags", c_uint64),
                ("tensor", _DLTensor)]


_PYBUF_WRITABLE, _PYBUF_C_CONTIGUOUS_FORMAT = 0x1, 0x38 | 0x4
_DLPACK_READ_ONLY = 1
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes = [ctypes.py_object, c_char_p]
_exports_buffer = ctypes.pythonapi.PyObject_CheckBuffer
_exports_buffer.argtypes = [ctypes.py_object]


def _bytes_of(obj: Any, shape: Sequence[int], strides: Optional[Sequence[int]], item: int) -> int:
    """Of all elements, which lie one after the other, the last index first; else an exception. strides: in bytes; None: so."""
    nbytes, packed = item, True
    for axis in reversed(range(len(shape))):
        packed &= strides is None or shape[axis] == 1 or strides[axis] == nbytes
        nbytes *= shape[axis]
    if nbytes and not packed:
        raise _strided(obj)
    return nbytes


def _strided(obj: Any) -> ValueError:
    return ValueError(f"the elements of this {type(obj).__name__} do not lie one after the other; pass a contiguous copy, as of "
                      "numpy.ascontiguousarray(x) or x.contiguous(), and copy the result back")


class Buffer:
    """An array's memory: array, pointer, count and dtype. Keeps its owner alive and unresizable."""

    def __init__(self, obj: Any, writable: bool, dtype: Any = None):
        kind, item, nbytes = self._export(obj, writable)
        if dtype is None:
            name = f"{kind}{8 * item}" if kind.isalnum() else kind
            if name not in TYPES:
                raise TypeError(f"elements of type {name} have no banyan type; pass dtype=, or an array of another type")
            self.dtype = TYPES[name]
        else:
            self.dtype = named(dtype, DTYPES, "dtype") if isinstance(dtype, str) else operator.index(dtype)
        if not 0 <= self.dtype < len(ITEM_BYTES):
            raise ValueError(f"dtype: {dtype!r} is none of banyan.F32 to banyan.F8E5M2")
        self.count, rest = divmod(nbytes, ITEM_BYTES[self.dtype])
        if rest:
            raise ValueError(f"the buffer's {nbytes} bytes are no whole number of elements")
        self.array = obj

    def nbytes(self) -> int:
        return self.count * ITEM_BYTES[self.dtype]

    def _export(self, obj: Any, writable: bool) -> Tuple[str, int, int]:
        """Sets pointer; returns the elements' kind and bytes, and the bytes of all."""
        if not _exports_buffer(obj):
            if hasattr(obj, "__dlpack__"):
                return self._export_dlpack(obj, writable)
            if hasattr(obj, "__array_interface__"):
                return self._export_interface(obj, writable)
            if hasattr(obj, "__cuda_array_interface__"):
                raise TypeError(f"this {type(obj).__name__} lies on a device; pass a copy in host memory")
        try:
            return self._export_buffer(obj, writable)
        except (BufferError, ValueError) as why:
            if writable and self._exports_constant(obj):
                raise BufferError(f"this {type(obj).__name__} is read-only") from why
            if hasattr(obj, "__dlpack__"):  # numpy's bfloat16 has no letter in the buffer protocol
                return self._export_dlpack(obj, writable)
            raise _strided(obj) if "contiguous" in str(why) else why

    def _exports_constant(self, obj: Any) -> bool:
        """Whether the buffer protocol lends obj to readers: DLPack before version 1 does not say what is read-only."""
        try:
            return bool(self._export_buffer(obj, False))
        except (BufferError, ValueError):
            return False

    def _export_buffer(self, obj: Any, writable: bool) -> Tuple[str, int, int]:
        self._view = _PyBuffer()
        flags = _PYBUF_C_CONTIGUOUS_FORMAT | (_PYBUF_WRITABLE if writable else 0)
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(obj), byref(self._view), c_int(flags))
        self._finalize = weakref.finalize(self, ctypes.pythonapi.PyBuffer_Release, byref(self._view))
        self.pointer = c_void_p(self._view.buf)
        letter = (self._view.format or b"B").decode()
        if "O" in letter:
            raise TypeError("the buffer's elements are Python objects")
        return _LETTERS.get(letter.lstrip("@=<"), f"format {letter!r}"), self._view.itemsize, self._view.len

    def _export_dlpack(self, obj: Any, writable: bool) -> Tuple[str, int, int]:
        device = tuple(int(part) for part in obj.__dlpack_device__())
        if device[0] not in _ON_HOST:
            raise TypeError(f"this {type(obj).__name__} lies on device {device} of DLPack; pass a copy in host memory, as of x.cpu()")
        try:
            capsule = obj.__dlpack__(max_version=(1, 0))
        except TypeError:  # from before version 1
            capsule = obj.__dlpack__()
        self._owner = capsule  # frees it, as nobody takes it over
        if _capsule_is(capsule, b"dltensor_versioned"):
            versioned = _DLVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
            if writable and versioned.flags & _DLPACK_READ_ONLY:
                raise BufferError(f"this {type(obj).__name__} is read-only")
            tensor = versioned.tensor
        else:
            tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
        item, shape = tensor.bits * tensor.lanes // 8, tensor.shape[:tensor.ndim]
        nbytes = _bytes_of(obj, shape, [s * item for s in tensor.strides[:tensor.ndim]] if tensor.strides else None, item)
        self.pointer = c_void_p((tensor.data or 0) + tensor.byte_offset or None)
        return _DLPACK_KINDS.get(tensor.code, f"code {tensor.code}"), item, nbytes

    def _export_interface(self, obj: Any, writable: bool) -> Tuple[str, int, int]:
        said = obj.__array_interface__
        if not said.get("data"):
            raise TypeError(f"the __array_interface__ of this {type(obj).__name__} names no memory")
        pointer, read_only = said["data"]
        order, kind, item = said["typestr"][0], said["typestr"][1], int(said["typestr"][2:])
        if writable and read_only:
            raise BufferError(f"this {type(obj).__name__} is read-only")
        if order == ">":
            raise TypeError("the elements are big-endian; pass a copy in the machine's own order")
        nbytes = _bytes_of(obj, said["shape"], said.get("strides"), item)
        self._owner, self.pointer = (obj, said), c_void_p(pointer or None)
        return _INTERFACE_KINDS.get(kind, f"format {said['typestr']!r}"), item, nbytes


def same(send: Buffer, recv: Buffer) -> None:
    if send.dtype != recv.dtype:
        raise TypeError("the send and receive buffers have elements of different types")


def need(buffer: Buffer, count: int, what: str) -> None:
    if buffer.count != count:
        raise ValueError(f"{what} has {buffer.count} elements, it must have {count}")


_SHORT_BYTES = 4096  # up to here two copies take less time than an operation


def neighbours(arrays: Sequence[Any], dtype: Any, together: bool) -> List[List[Buffer]]:
    """Lists of buffers of one type: if together, short neighbours in one. Types and lengths alone decide which."""
    runs: List[List[Buffer]] = []
    for array in arrays:
        buffer = Buffer(array, True, dtype)
        before = runs[-1][-1] if runs else None
        fits = together and before is not None and before.dtype == buffer.dtype
        if fits and max(before.nbytes(), buffer.nbytes()) <= _SHORT_BYTES:
            runs[-1].append(buffer)
        else:
            runs.append([buffer])
    return runs


def join(run: Sequence[Buffer]) -> bytearray:
    """A copy of their elements, one buffer after the other."""
    return bytearray(b"".join(ctypes.string_at(buffer.pointer, buffer.nbytes()) for buffer in run))


def separate(whole: bytearray, run: Sequence[Buffer]) -> None:
    """Copies what join() joined back."""
    at = (c_uint8 * len(whole)).from_buffer(whole)
    place = ctypes.addressof(at)
    for buffer in run:
        ctypes.memmove(buffer.pointer, place, buffer.nbytes())
        place += buffer.nbytes()
