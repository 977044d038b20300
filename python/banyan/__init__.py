# SPDX-License-Identifier: BSD-3-Clause
"""Collective communication with libbanyan, over ctypes.

    import banyan, numpy
    with banyan.Comm.from_env() as comm:          # under banyan_run, torchrun, mpirun, srun, or alone
        x = numpy.full(1000, comm.rank, "float32")
        comm.allreduce(x)                         # in place; op=banyan.SUM

Buffers are objects with the buffer protocol, C-contiguous: numpy arrays, array.array, bytearray,
memoryview. The element type is the buffer's own; dtype= overrides it (banyan.BF16 in a uint16 array).
Every collective `name` has a twin `name_init` that makes a Request, which borrows its buffers: it keeps
them alive, their content is the caller's business. Failures raise banyan.Error; arguments of a wrong kind raise
TypeError, buffers and numbers that cannot serve ValueError or BufferError, before anything is sent.
A blocking call is one call into C: Python's Ctrl-C handler runs only when it returns.
"""
import contextlib
import ctypes
import operator
import os
import pathlib
import threading
import weakref
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_void_p

__all__ = ["Comm", "Error", "Request", "create_id", "group", "job_restarts", "job_waiting", "version", "wait_all"]

# enum banyan_dtype, enum banyan_op_kind, enum banyan_error: the order of banyan.h.
F32, F64, F16, BF16, I8, U8, I32, U32, I64, U64 = range(10)
SUM, AVG, MIN, MAX, PROD, BAND, BOR, BXOR = range(8)
(OK, EINVAL, ENOMEM, ETIMEDOUT, ERANKDEAD, EMISMATCH, EABORTED, EPROTO, ENOTSUP, ESYSTEM, EFORK,
 EBUSY, EVERSION, ECONFIG) = range(14)

_ITEM_BYTES = {F32: 4, F64: 8, F16: 2, BF16: 2, I8: 1, U8: 1, I32: 4, U32: 4, I64: 8, U64: 8}
_FLOATS = {"e": F16, "f": F32, "d": F64}
_SIGNED, _UNSIGNED = {1: I8, 4: I32, 8: I64}, {1: U8, 4: U32, 8: U64}

_ProgressHook = ctypes.CFUNCTYPE(None, c_void_p)
_Allgather = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)


class Config(ctypes.Structure):
    """struct banyan_config"""
    _fields_ = [
        ("size", c_size_t), ("init_timeout_s", c_double), ("op_timeout_s", c_double),
        ("transport", c_char_p), ("schedule", c_char_p), ("codec", c_char_p), ("ifname", c_char_p),
        ("port_range", c_char_p), ("chunk_bytes", c_size_t), ("progress_thread", c_int),
        ("progress_cpu", c_int), ("deterministic", c_int), ("progress_hook", _ProgressHook),
        ("progress_hook_ctx", c_void_p), ("allgather", _Allgather), ("allgather_ctx", c_void_p),
        ("topology", c_char_p),
    ]


class ReduceOpts(ctypes.Structure):
    """struct banyan_reduce_opts"""
    _fields_ = [("size", c_size_t), ("participants", POINTER(c_uint8)), ("contributors", POINTER(c_uint8)),
                ("at_least", c_int)]


class Opts(ctypes.Structure):
    """struct banyan_opts"""
    _fields_ = [
        ("size", c_size_t), ("schedule", c_char_p), ("codec", c_char_p), ("timeout_s", c_double),
        ("tag", c_uint32), ("deterministic", c_int), ("chunk_bytes", c_size_t),
        ("shape", POINTER(c_int64)), ("ndim", c_int), ("codec_state", c_void_p),
        ("reduce", POINTER(ReduceOpts)),
    ]


class Id(ctypes.Structure):
    """struct banyan_id"""
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]


class Error(RuntimeError):
    """A call failed. code: the positive BANYAN_E* value; text: the sentence that says what to do."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code, self.text = code, text


def _candidates():
    """Names to load, best first: the caller's choice, the wheel's own, beside this module's prefix, the loader's path."""
    chosen = os.environ.get("BANYAN_LIBRARY")
    if chosen:
        return [chosen]
    own = pathlib.Path(__file__).resolve().parent / "lib" / "libbanyan.so.1"
    if own.exists():
        return [str(own)]
    try:
        from . import _where
    except ImportError:  # used from the source tree
        return ["libbanyan.so.1"]
    installed = [str(parent / _where.LIBDIR / "libbanyan.so.1")
                 for parent in pathlib.Path(__file__).resolve().parents]
    installed.append(os.path.join(_where.PREFIX, _where.LIBDIR, "libbanyan.so.1"))
    return [name for name in installed if os.path.exists(name)] + ["libbanyan.so.1"]


def _load():
    failures = []
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as why:
            failures.append(str(why))
    raise ImportError("libbanyan.so.1 cannot be loaded (" + "; ".join(failures) + "); install it, or "
                      "set BANYAN_LIBRARY to its path")


_lib = _load()
_lib.banyan_last_error.restype = c_char_p
_lib.banyan_version_string.restype = c_char_p
_lib.banyan_strerror.restype = c_char_p


def _check(rc):
    """Returns rc, or raises what the library says about it."""
    if rc < 0:
        text = (_lib.banyan_last_error() or b"").decode("utf-8", "replace")
        raise Error(-rc, text or _lib.banyan_strerror(c_int(rc)).decode())
    return rc


def _whole(value, bits, signed, what):
    """value as an int that fits the C type: ctypes itself would cut it off."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {type(value).__name__}") from None
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= number <= high:
        raise ValueError(f"{what}: {number} is not in [{low}, {high}]")
    return number


def _int(value, what):
    return c_int(_whole(value, 32, True, what))


def _op(value):
    return c_uint32(_whole(value, 32, False, "op"))


def _text(value, what):
    """None or bytes for a char *, which ctypes would also make of a number."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what}: {value!r} has a NUL in it")
    return value.encode()


def version():
    """The library's version, "major.minor.patch"."""
    return _lib.banyan_version_string().decode()


def create_id():
    """128 bytes that name a new job; this process must become its rank 0. Keep them private."""
    ident = Id()
    _check(_lib.banyan_id_create(byref(ident)))
    return bytes(ident.bytes)


def job_restarts():
    """How often banyan_run --restart has started this rank again: where it is not 0, Comm.join() instead of from_env()."""
    return _lib.banyan_job_restarts()


def job_waiting():
    """How many restarted ranks wait in Comm.join() at this moment. Agree on it before Comm.grow()."""
    return _lib.banyan_job_waiting()


def _id(ident):
    """A pointer to an id, NULL for None."""
    if ident is None:
        return None
    if len(ident) != ctypes.sizeof(Id):
        raise ValueError(f"an id has {ctypes.sizeof(Id)} bytes, not {len(ident)}")
    return byref(Id.from_buffer_copy(ident))


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer."""
    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", c_int), ("ndim", c_int),
                ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p),
                ("suboffsets", c_void_p), ("internal", c_void_p)]


_PYBUF_WRITABLE, _PYBUF_C_CONTIGUOUS_FORMAT = 0x1, 0x38 | 0x4


class _Buffer:
    """An exported buffer: address, count and dtype. Keeps the exporter alive and unresizable."""

    def __init__(self, obj, writable, dtype=None):
        self._view = _PyBuffer()
        flags = _PYBUF_C_CONTIGUOUS_FORMAT | (_PYBUF_WRITABLE if writable else 0)
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(obj), byref(self._view), c_int(flags))
        self._finalize = weakref.finalize(self, ctypes.pythonapi.PyBuffer_Release, byref(self._view))
        if "O" in (self._view.format or b"").decode():
            raise TypeError("the buffer's elements are Python objects")
        self.dtype = self._own_dtype() if dtype is None else operator.index(dtype)
        if self.dtype not in _ITEM_BYTES:
            raise ValueError(f"dtype: {dtype!r} is none of banyan.F32 to banyan.U64")
        self.count, rest = divmod(self._view.len, _ITEM_BYTES[self.dtype])
        if rest:
            raise ValueError(f"the buffer's {self._view.len} bytes are no whole number of elements")
        self.pointer = c_void_p(self._view.buf)

    def _own_dtype(self):
        text = (self._view.format or b"B").decode()
        letter = text.lstrip("@=<")
        if letter in _FLOATS:
            return _FLOATS[letter]
        if letter and letter in "bhilqn" and self._view.itemsize in _SIGNED:
            return _SIGNED[self._view.itemsize]
        if letter and letter in "cBHILQN" and self._view.itemsize in _UNSIGNED:
            return _UNSIGNED[self._view.itemsize]
        raise TypeError(f"elements of format {text!r} have no banyan type; pass dtype=")


def _same(send, recv):
    if send.dtype != recv.dtype:
        raise TypeError("the send and receive buffers have elements of different types")


def _need(buffer, count, what):
    if buffer.count != count:
        raise ValueError(f"{what} has {buffer.count} elements, it must have {count}")


_NULL = c_void_p(None)
_grouped = threading.local()


@contextlib.contextmanager
def group():
    """Blocking calls in the body only queue; leaving it runs them together."""
    _check(_lib.banyan_group_start())
    outer = getattr(_grouped, "keep", None)
    _grouped.keep = outer if outer is not None else []
    try:
        yield
    finally:
        rc = _lib.banyan_group_end()
        if outer is None:
            _grouped.keep = None
    _check(rc)


class Request:
    """A persistent operation: start(), then wait() or test(), as often as wanted. free() it before its Comm
    ends (Comm.finalize and destroy do that). While started it is kept alive together with its buffers."""

    def __init__(self, comm, handle, keep, result):
        self._comm, self._handle, self._keep, self.result = comm, handle, keep, result
        comm._requests.add(self)

    def start(self):
        _check(_lib.banyan_start(self._live()))
        self._comm._active.add(self)
        return self

    def test(self):
        """Progresses; True when complete."""
        done = c_int(0)
        rc = _lib.banyan_test(self._live(), byref(done))
        if rc < 0 or done.value:
            self._comm._active.discard(self)
        _check(rc)
        return bool(done.value)

    def wait(self, timeout=None):
        """Returns the result buffer. timeout in seconds; None: the operation's own deadline."""
        rc = _lib.banyan_wait(self._live(), c_double(-1 if timeout is None else timeout))
        self._comm._active.discard(self)
        _check(rc)
        return self.result

    def free(self):
        if self._handle:
            _check(_lib.banyan_request_free(self._handle))
            self._handle, self._keep = None, None
            self._comm._requests.discard(self)

    def _live(self):
        if not self._handle:
            raise Error(EINVAL, "the request was freed")
        return self._handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()

    def __del__(self):
        if getattr(self, "_handle", None):
            _lib.banyan_request_free(self._handle)


def wait_all(requests, timeout=None):
    """Waits for all of them; raises the first error."""
    for request in requests:
        request.wait(timeout)


def _config(settings, keep):
    cfg = Config(ctypes.sizeof(Config), -1, -1, progress_cpu=-1, deterministic=-1)  # BANYAN_CONFIG_INIT
    hook, allgather = settings.pop("progress_hook", None), settings.pop("allgather", None)
    for name, function in ("progress_hook", hook), ("allgather", allgather):
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
    if hook is not None:
        cfg.progress_hook = _ProgressHook(lambda _ctx: hook())
    if allgather is not None:
        cfg.allgather = _Allgather(_allgather_shim(allgather))
    known = {name: kind for name, kind in Config._fields_
             if name not in ("size", "progress_hook_ctx", "allgather_ctx")}
    for name, value in settings.items():
        if name not in known:
            raise TypeError(f"no setting {name!r}; there are {', '.join(sorted(known))}")
        if known[name] is c_char_p:
            value = _text(value, name)
        elif known[name] is not c_double:
            value = _whole(value, 8 * ctypes.sizeof(known[name]), known[name] is c_int, name)
        setattr(cfg, name, value)
    keep.append(cfg)
    return cfg


def _allgather_shim(function):
    """C's callback around function(bytes) -> the ranks' bytes, in rank order."""
    def shim(_ctx, source, target, nbytes):
        try:
            joined = b"".join(function(ctypes.string_at(source, nbytes)))
            ctypes.memmove(target, joined, len(joined))
            return 0
        except Exception:  # must not unwind through C; init reports the failure
            return 1
    return shim


def _opts(schedule=None, codec=None, timeout=None, tag=0, deterministic=None, chunk_bytes=0,
          shape=None, participants=None, at_least=0, contributors=None):
    dims = [_whole(d, 64, True, "shape") for d in shape or ()]
    return Opts(ctypes.sizeof(Opts), _text(schedule, "schedule") or None, _text(codec, "codec") or None,
                -1.0 if timeout is None else timeout, _whole(tag, 32, False, "tag"),
                -1 if deterministic is None else _whole(deterministic, 32, True, "deterministic"),
                _whole(chunk_bytes, 8 * ctypes.sizeof(c_size_t), False, "chunk_bytes"),
                (c_int64 * len(dims))(*dims) if dims else None, len(dims), None,
                _reduce_opts(participants, contributors, at_least))


def _reduce_opts(participants, contributors, at_least):
    """A pointer for Opts, which keeps all of it; None if the result has all inputs, and nobody asks."""
    if participants is None and contributors is None and not at_least:
        return None
    return ctypes.pointer(ReduceOpts(
        ctypes.sizeof(ReduceOpts),
        None if participants is None else
        (c_uint8 * len(participants))(*[1 if p else 0 for p in participants]),
        None if contributors is None else
        (c_uint8 * len(contributors)).from_buffer(contributors),
        _int(at_least, "at_least").value))


class Comm:
    """A communicator. Use from_env() or init(); as a context manager it finalizes, or after an exception
    aborts, so that the other ranks learn of it. One thread at a time."""

    def __init__(self, handle, keep=()):
        self._handle, self._keep = handle, list(keep)
        self._requests, self._active = weakref.WeakSet(), set()
        self.rank = _check(_lib.banyan_comm_rank(handle))
        self.size = _check(_lib.banyan_comm_count(handle))

    @classmethod
    def from_env(cls, **settings):
        """Joins the job that the launcher describes. settings: the members of struct banyan_config."""
        keep, handle = [], c_void_p()
        _check(_lib.banyan_comm_init_env(byref(handle), byref(_config(settings, keep))))
        return cls(handle, keep)

    @classmethod
    def init(cls, ident, rank, size, **settings):
        """Joins the job `ident` (bytes from create_id; None with an allgather= function)."""
        keep, handle = [], c_void_p()
        _check(_lib.banyan_comm_init(byref(handle), _id(ident), _int(size, "size"), _int(rank, "rank"),
                                     byref(_config(settings, keep))))
        return cls(handle, keep)

    @classmethod
    def join(cls, ident=None, **settings):
        """Joins a job that runs, by an id of grow_id(); None: as a rank that banyan_run --restart has started again."""
        keep, handle = [], c_void_p()
        _check(_lib.banyan_comm_join(byref(handle), _id(ident), byref(_config(settings, keep))))
        return cls(handle, keep)

    def _live(self):
        if not self._handle:
            raise Error(EINVAL, "the communicator was finalized or destroyed")
        return self._handle

    def dup(self):
        handle = c_void_p()
        _check(_lib.banyan_comm_dup(self._live(), byref(handle)))
        return Comm(handle, self._keep)

    def split(self, color, key=0):
        """The ranks with the same color >= 0, ordered by (key, rank); None with a color < 0."""
        handle = c_void_p()
        _check(_lib.banyan_comm_split(self._live(), _int(color, "color"), _int(key, "key"), byref(handle)))
        return Comm(handle, self._keep) if handle else None

    def finalize(self):
        """A barrier, then the end. Does nothing the second time."""
        if self._handle:
            self._free_requests()
            handle, self._handle = self._handle, None
            _check(_lib.banyan_comm_finalize(handle))

    def destroy(self):
        """Frees local resources without talking to anybody."""
        if self._handle:
            self._free_requests()
            handle, self._handle = self._handle, None
            _lib.banyan_comm_destroy(handle)

    def _free_requests(self):
        for request in list(self._requests):
            request.free()

    # Going on after failures: docs/failures.md.

    def failed(self):
        """The ranks that are dead or have left, as agreed up to now. Any thread."""
        ranks = (c_int * self.size)()
        return list(ranks[:_check(_lib.banyan_comm_failed(self._live(), ranks, c_int(self.size)))])

    def revoke(self, why=""):
        """Gives the communicator up on every rank, to bring others to where this one is. Any thread."""
        _check(_lib.banyan_comm_revoke(self._live(), c_char_p(_text(why, "why"))))

    def agree(self, bits=(1 << 64) - 1):
        """(AND of the bits of all live ranks, the list of the dead): the same on all, whatever failed."""
        word, ranks = ctypes.c_uint64(_whole(bits, 64, False, "bits")), (c_int * self.size)()
        n = _check(_lib.banyan_comm_agree(self._live(), byref(word), ranks, c_int(self.size)))
        return word.value, list(ranks[:n])

    def shrink(self):
        """A communicator of the ranks that live; then destroy this one."""
        handle = c_void_p()
        _check(_lib.banyan_comm_shrink(self._live(), byref(handle)))
        return Comm(handle, self._keep)

    @staticmethod
    def shrink_many(comms):
        """What is left of each of this rank's communicators, at once: no order among them. Then destroy the old ones. Where
        one could not be made its error is raised, behind destroying the others."""
        handles = (c_void_p * len(comms))(*[comm._live() for comm in comms])
        left = (c_void_p * len(comms))()
        try:
            _check(_lib.banyan_comm_shrink_many(handles, c_int(len(comms)), left))
        except Error:
            for handle in left:
                if handle:
                    _lib.banyan_comm_destroy(c_void_p(handle))
            raise
        return [Comm(c_void_p(handle), comm._keep) for handle, comm in zip(left, comms)]

    def grow_id(self):
        """128 bytes by which newcomers join, once; at one rank, any. Keep them private."""
        ident = Id()
        _check(_lib.banyan_comm_grow_id(self._live(), byref(ident)))
        return bytes(ident.bytes)

    def grow(self, newcomers, ident=None, **settings):
        """A communicator of these ranks and so many newcomers. ident: at the rank that made it. settings: as for
        from_env(). This one works on until it is finalized or destroyed."""
        keep, handle = [], c_void_p()
        _check(_lib.banyan_comm_grow(self._live(), _id(ident), _int(newcomers, "newcomers"),
                                     byref(_config(settings, keep)), byref(handle)))
        return Comm(handle, keep)

    def abort(self, reason=""):
        """Fails the communicator on every rank. Any thread."""
        _check(_lib.banyan_abort(self._live(), c_char_p(_text(reason, "reason"))))

    def async_error(self):
        """None while healthy, else (code, rank to blame or -1, text). Any thread."""
        blamed, text = c_int(-1), ctypes.create_string_buffer(512)
        rc = _lib.banyan_async_error(self._live(), byref(blamed), text, c_size_t(len(text)))
        return None if rc == 0 else (-rc, blamed.value, text.value.decode("utf-8", "replace"))

    def progress(self):
        """Progresses everything in flight once; the number of events."""
        return _check(_lib.banyan_progress(self._live()))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, _traceback):
        if kind is None:
            self.finalize()
        elif self._handle:
            # An error of the communicator itself is known everywhere; anything else is news to the others.
            if not isinstance(value, Error) or self.async_error() is None:
                self.abort(f"rank {self.rank} leaves with {kind.__name__}")
            self._active.clear()
            handle, self._handle = self._handle, None
            for request in list(self._requests):
                _lib.banyan_request_free(request._handle)
                request._handle = None
            _lib.banyan_comm_destroy(handle)

    # Each _args_x returns (arguments before comm, result, buffers to keep) of the collective x.

    def _in_place(self, send, recv, dtype):
        """Buffers of a collective whose recv=None means: the result replaces send."""
        if recv is None:
            both = _Buffer(send, True, dtype)
            return both, both, send
        send, target = _Buffer(send, False, dtype), _Buffer(recv, True, dtype)
        _same(send, target)
        return send, target, recv

    def _args_allreduce(self, send, recv=None, op=SUM, dtype=None):
        """recv = op over all ranks of send; recv=None: in place."""
        s, r, result = self._in_place(send, recv, dtype)
        _need(r, s.count, "recv")
        return [s.pointer, r.pointer, c_size_t(s.count), c_int(s.dtype), _op(op)], result, [s, r]

    def _args_reduce(self, send, recv=None, op=SUM, root=0, dtype=None):
        """As allreduce, to root only; elsewhere recv is not used."""
        where = _int(root, "root")
        if self.rank == where.value:
            args, result, keep = self._args_allreduce(send, recv, op, dtype)
        else:
            s = _Buffer(send, False, dtype)
            args = [s.pointer, _NULL, c_size_t(s.count), c_int(s.dtype), _op(op)]
            result, keep = None, [s]
        return args + [where], result, keep

    def _args_broadcast(self, buf, root=0, dtype=None):
        """buf of root to buf of every rank."""
        where = _int(root, "root")
        b = _Buffer(buf, self.rank != where.value, dtype)
        return [b.pointer, c_size_t(b.count), c_int(b.dtype), where], buf, [b]

    def _args_reduce_scatter(self, send, recv, op=SUM, dtype=None):
        """Rank r gets block r of op over all ranks; send has size times the elements of recv."""
        s, r = _Buffer(send, False, dtype), _Buffer(recv, True, dtype)
        _same(s, r)
        _need(s, r.count * self.size, "send")
        return [s.pointer, r.pointer, c_size_t(r.count), c_int(r.dtype), _op(op)], recv, [s, r]

    def _args_allgather(self, send, recv, dtype=None):
        """recv = every rank's send in rank order; send=None: this rank's block already lies in recv."""
        r = _Buffer(recv, True, dtype)
        if send is None:
            count, rest = divmod(r.count, self.size)
            if rest:
                raise ValueError(f"recv has {r.count} elements, no multiple of {self.size} ranks")
            start = c_void_p(r.pointer.value + self.rank * count * _ITEM_BYTES[r.dtype]
                             if count else None)
            return [start, r.pointer, c_size_t(count), c_int(r.dtype)], recv, [r]
        s = _Buffer(send, False, dtype)
        _same(s, r)
        _need(r, s.count * self.size, "recv")
        return [s.pointer, r.pointer, c_size_t(s.count), c_int(s.dtype)], recv, [s, r]

    def _args_gather(self, send, recv=None, root=0, dtype=None):
        """As allgather, to root only; elsewhere recv is not used."""
        where, s, target, keep = _int(root, "root"), _Buffer(send, False, dtype), _NULL, []
        if self.rank == where.value:
            r = _Buffer(recv, True, dtype)
            _same(s, r)
            _need(r, s.count * self.size, "recv")
            target, keep = r.pointer, [r]
        args = [s.pointer, target, c_size_t(s.count), c_int(s.dtype), where]
        return args, recv if keep else None, keep + [s]

    def _args_scatter(self, send, recv, root=0, dtype=None):
        """Rank r gets block r of root's send; elsewhere send is not used."""
        where, r, source, keep = _int(root, "root"), _Buffer(recv, True, dtype), _NULL, []
        if self.rank == where.value:
            s = _Buffer(send, False, dtype)
            _same(s, r)
            _need(s, r.count * self.size, "send")
            source, keep = s.pointer, [s]
        args = [source, r.pointer, c_size_t(r.count), c_int(r.dtype), where]
        return args, recv, keep + [r]

    def _args_alltoall(self, send, recv=None, dtype=None):
        """Block p of send to rank p, which stores it as block `rank`; recv=None: in place."""
        s, r, result = self._in_place(send, recv, dtype)
        _need(r, s.count, "recv")
        count, rest = divmod(s.count, self.size)
        if rest:
            raise ValueError(f"send has {s.count} elements, no multiple of {self.size} ranks")
        return [s.pointer, r.pointer, c_size_t(count), c_int(s.dtype)], result, [s, r]

    def _args_barrier(self):
        """Returns when every rank has called it."""
        return [], None, []

    def _args_scan(self, send, recv=None, op=SUM, dtype=None):
        """op over ranks 0 to this one; recv=None: in place."""
        return self._args_allreduce(send, recv, op, dtype)

    def _args_exscan(self, send, recv=None, op=SUM, dtype=None):
        """op over the ranks before this one; rank 0's recv is unchanged."""
        return self._args_allreduce(send, recv, op, dtype)

    def _args_send(self, buf, peer, dtype=None):
        """Sends buf to peer; the k-th send with a tag= meets the peer's k-th recv with it."""
        b = _Buffer(buf, False, dtype)
        return [b.pointer, c_size_t(b.count), c_int(b.dtype), _int(peer, "peer")], buf, [b]

    def _args_recv(self, buf, peer, dtype=None):
        """Receives into buf from peer."""
        b = _Buffer(buf, True, dtype)
        return [b.pointer, c_size_t(b.count), c_int(b.dtype), _int(peer, "peer")], buf, [b]


_OPTIONS = ("schedule", "codec", "timeout", "tag", "deterministic", "chunk_bytes", "shape",
            "participants", "at_least", "contributors")


def _add_collective(name):
    """Gives Comm the methods name and name_init, made from _args_name."""
    prepare = getattr(Comm, "_args_" + name)

    def arguments(self, args, settings):
        chosen = {k: settings.pop(k) for k in _OPTIONS if k in settings}
        before, result, keep = prepare(self, *args, **settings)
        if chosen.get("participants") is not None and len(chosen["participants"]) != self.size:
            raise ValueError(f"participants: one for each of the {self.size} ranks, "
                             f"not {len(chosen['participants'])}")
        if chosen.get("contributors") is not None:
            if len(chosen["contributors"]) != self.size or memoryview(chosen["contributors"]).itemsize != 1:
                raise ValueError(f"contributors: a writable buffer with a byte for each of the {self.size} ranks, "
                                 "such as a bytearray")
        opts = _opts(**chosen)
        return before + [self._live(), byref(opts)], result, keep + [opts]

    def blocking(self, *args, **settings):
        c_args, result, keep = arguments(self, args, settings)
        if getattr(_grouped, "keep", None) is not None:
            _grouped.keep.append(keep)
        _check(getattr(_lib, "banyan_" + name)(*c_args))
        return result

    def persistent(self, *args, **settings):
        c_args, result, keep = arguments(self, args, settings)
        handle = c_void_p()
        _check(getattr(_lib, f"banyan_{name}_init")(*c_args, byref(handle)))
        return Request(self, handle, keep, result)

    options = "\n\n        Options: " + ", ".join(_OPTIONS) + " as in struct banyan_opts and its reduce."
    blocking.__name__, blocking.__doc__ = name, prepare.__doc__ + options
    persistent.__name__ = name + "_init"
    persistent.__doc__ = f"A Request of {name}, not started. {prepare.__doc__}{options}"
    setattr(Comm, name, blocking)
    setattr(Comm, name + "_init", persistent)


for _name in ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "gather", "scatter",
              "alltoall", "barrier", "scan", "exscan", "send", "recv"):
    _add_collective(_name)
