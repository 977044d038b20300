# SPDX-License-Identifier: BSD-3-Clause
"""Object stores (banyan/objects.h, docs/objects.md): immutable bytes with names, for parameter servers,
serving and reinforcement learning.

    import banyan, banyan.objects, numpy
    with banyan.Comm.from_env() as comm, banyan.objects.Store(comm) as store:
        if comm.rank == 0:
            store.put("model", numpy.arange(1000, dtype="float32"))
        x = numpy.frombuffer(store.get("model"), "float32")     # no copy; read-only

Names are 16 bytes, or str, of which a hash is the name. What get returns is the library's own memory, which it
keeps as long as a view or an array of it lives. Any thread may call any method; calls that wait let others run.
"""
import ctypes
import hashlib
import weakref
from ctypes import byref, c_char, c_double, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from ._lib import DTYPES, EBUSY, EINVAL, OPS, SUM, Error, check, fill, lib, named

__all__ = ["Store", "name_of"]


class Config(ctypes.Structure):
    """struct banyan_objects_config"""
    _fields_ = [("size", c_size_t), ("memory_bytes", c_uint64), ("timeout_s", c_double),
                ("progress_cpu", c_int)]


class View(ctypes.Structure):
    """struct banyan_object"""
    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("ref", c_void_p)]


class Stats(ctypes.Structure):
    """struct banyan_objects_stats"""
    _fields_ = [("size", c_size_t), ("objects", c_uint64), ("bytes", c_uint64), ("records", c_uint64),
                ("sent", c_uint64), ("received", c_uint64)]


class _Name(ctypes.Structure):
    _fields_ = [("bytes", c_uint8 * 16)]


def name_of(text):
    """The 16 bytes that a str stands for."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _name(name):
    if isinstance(name, str):
        name = name_of(name)
    if not isinstance(name, (bytes, bytearray)) or len(name) != 16:
        raise TypeError("a name must be a str or 16 bytes")
    return _Name.from_buffer_copy(name)


def _seconds(timeout):
    return c_double(-1 if timeout is None else timeout)


class Store:
    """A store over the ranks of comm; all of them make it. As a context manager it finalizes: it serves the
    others until all who live have come."""

    def __init__(self, comm, memory_bytes=0, timeout=None):
        self._handle = c_void_p()
        cfg = Config(ctypes.sizeof(Config), memory_bytes, timeout or 0, 0)
        check(lib.banyan_objects_create(comm._live(), byref(cfg), byref(self._handle)))

    def _live(self):
        if not self._handle:
            raise Error(EINVAL, "the store was finalized or destroyed")
        return self._handle

    def put(self, name, data):
        """A copy of data, any C-contiguous buffer."""
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        source = (c_char * view.nbytes).from_buffer(view) if view.nbytes and not view.readonly else view.tobytes()
        check(lib.banyan_object_put(self._live(), byref(_name(name)), source, c_size_t(view.nbytes)))

    def create(self, name, nbytes):
        """An object in place: a writable memoryview, to be filled front to back. fill() says how far."""
        data = c_void_p()
        check(lib.banyan_object_create(self._live(), byref(_name(name)), c_size_t(nbytes), byref(data)))
        return memoryview((c_char * nbytes).from_address(data.value)).cast("B")

    def fill(self, name, nbytes):
        """The first nbytes bytes are final; all of them: the object is whole, and no longer to be written to."""
        check(lib.banyan_object_fill(self._live(), byref(_name(name)), c_size_t(nbytes)))

    def _lent(self, view):
        array = (c_char * view.bytes).from_address(view.data)
        weakref.finalize(array, self._release, View(view.data, view.bytes, view.ref)).atexit = False
        return memoryview(array).cast("B").toreadonly()

    def _release(self, view):
        if self._handle:
            lib.banyan_object_release(self._handle, byref(view))

    def get(self, name, timeout=None):
        """Waits until the object is put and here: a read-only memoryview of it, without a copy."""
        view = View()
        check(lib.banyan_object_get(self._live(), byref(_name(name)), _seconds(timeout), byref(view)))
        return self._lent(view)

    def stream(self, name, timeout=None):
        """Yields read-only memoryviews of the object's bytes, one after the other, as they come."""
        view, have, at = View(), c_size_t(), 0
        check(lib.banyan_object_open(self._live(), byref(_name(name)), _seconds(timeout), byref(view)))
        whole = self._lent(view)
        while at < view.bytes:
            check(lib.banyan_object_wait(self._live(), byref(view), c_size_t(at + 1), _seconds(timeout),
                                           byref(have)))
            yield whole[at:have.value]
            at = have.value

    def delete(self, name):
        """Deletes the object everywhere. Views of it stay."""
        check(lib.banyan_object_delete(self._live(), byref(_name(name))))

    def reduce(self, target, names, count, dtype, k=None, op=SUM):
        """Puts target: the reduction of the first k objects to appear of those named, of count elements
        each. dtype: banyan.F32, or "f32", and so on. Get target to wait for it; contributors() says whose are in."""
        ids = (_Name * len(names))(*map(_name, names))
        check(lib.banyan_object_reduce(self._live(), byref(_name(target)), ids, c_size_t(len(ids)),
                                         c_size_t(len(ids) if k is None else k), c_size_t(count),
                                         c_int(named(dtype, DTYPES, "dtype")), c_uint32(named(op, OPS, "op"))))

    def contributors(self, target, n):
        """Of the n objects of a complete reduction, in their order: whether each is in it."""
        inside = (c_uint8 * n)()
        check(lib.banyan_object_contributors(self._live(), byref(_name(target)), inside, c_size_t(n)))
        return [bool(x) for x in inside]

    def stats(self):
        """A dict: objects, bytes, records, sent, received."""
        return fill(Stats, lib.banyan_objects_stats, self._live())

    def finalize(self):
        """Serves the others until all who live have called it, then ends. Views must be gone before: else it
        raises, and the store lives on. Does nothing the second time."""
        if self._handle:
            rc = lib.banyan_objects_finalize(self._handle)
            if rc != -EBUSY:
                self._handle = None
            check(rc)

    def destroy(self):
        """Ends it at once. Views of it are void."""
        if self._handle:
            handle, self._handle = self._handle, None
            lib.banyan_objects_destroy(handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.finalize()
        else:
            self.destroy()
