# SPDX-License-Identifier: BSD-3-Clause
"""Communicators, their life, and requests."""
import asyncio
import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from ctypes import byref, c_char, c_char_p, c_double, c_int, c_size_t, c_void_p
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ._buffer import join, neighbours, separate
from ._collectives import Collectives
from ._lib import (ANY_SOURCE, DTYPES, EBUSY, EINVAL, SUM, Allgather, Config, Error, Id, ProgressHook, RequestStats, Stats,
                   as_int, as_size, check, fill, lib, named, text, whole)
from ._state import Op

_grouped = threading.local()
_getenv = ctypes.CDLL(None).getenv  # what C sees; os.environ is a copy
_getenv.restype = c_char_p
_active = set()  # Requests in flight: C uses their buffers, whatever else the program still holds


def version() -> str:
    """The library's version, "major.minor.patch"."""
    return lib.banyan_version_string().decode()


def create_id() -> bytes:
    """128 bytes that name a new job; this process must become its rank 0. Keep them private."""
    ident = Id()
    check(lib.banyan_id_create(byref(ident)))
    return bytes(ident.bytes)


def job_restarts() -> int:
    """How often banyan_run --restart has started this rank again: where it is not 0, Comm.join() instead of from_env()."""
    return lib.banyan_job_restarts()


def job_waiting() -> int:
    """How many restarted ranks wait in Comm.join() at this moment. Agree on it before Comm.grow()."""
    return lib.banyan_job_waiting()


def _id(ident: Optional[bytes]) -> Any:
    """A pointer to an id, NULL for None."""
    if ident is None:
        return None
    if len(ident) != ctypes.sizeof(Id):
        raise ValueError(f"an id has {ctypes.sizeof(Id)} bytes, not {len(ident)}")
    return byref(Id.from_buffer_copy(ident))


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Blocking calls in the body only queue; leaving it runs them together."""
    check(lib.banyan_group_start())
    outer = getattr(_grouped, "keep", None)
    _grouped.keep = outer if outer is not None else []
    try:
        yield
    finally:
        rc, kept = lib.banyan_group_end(), _grouped.keep
        if outer is None:
            _grouped.keep = None
    Op._reraise(kept)
    check(rc)


class Request:
    """A persistent operation: start(), then wait() or test(), as often as wanted. `await request` in a coroutine waits without
    holding up the event loop. free() it before its Comm ends (Comm.finalize and destroy do that). While started it is kept
    alive together with its buffers."""

    def __init__(self, comm: "Comm", handle: c_void_p, keep: Any, result: Any):
        self._comm, self._handle, self._keep, self.result = comm, handle, keep, result
        comm._requests.add(self)

    def start(self) -> "Request":
        """Starts it, and returns it."""
        check(lib.banyan_start(self._live()))
        _active.add(self)
        return self

    def test(self) -> bool:
        """Progresses; True when complete."""
        done = c_int(0)
        rc = lib.banyan_test(self._live(), byref(done))
        if rc < 0 or done.value:
            _active.discard(self)
            Op._reraise(self._keep)
        check(rc)
        return bool(done.value)

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Returns the result buffer. timeout in seconds; None: the operation's own deadline."""
        rc = lib.banyan_wait(self._live(), c_double(-1 if timeout is None else timeout))
        _active.discard(self)
        Op._reraise(self._keep)
        check(rc)
        return self.result

    def __await__(self) -> Iterator[Any]:
        if not self.test():
            yield from self._comm._watcher().wait(self)
        return self.result

    def stats(self) -> Dict[str, int]:
        """A dict of the latest run: wire_bytes, start_ns, end_ns. Times are measured from the first call of stats() on."""
        return fill(RequestStats, lib.banyan_request_stats, self._live())

    def source(self) -> Tuple[int, int]:
        """(the rank that a completed receive was from, its bytes)."""
        nbytes = c_size_t()
        return check(lib.banyan_request_source(self._live(), byref(nbytes))), nbytes.value

    def free(self) -> None:
        """Frees it; it must not be active. Does nothing the second time."""
        if self._handle:
            check(lib.banyan_request_free(self._handle))
            self._handle, self._keep = None, None
            _active.discard(self)
            self._comm._requests.discard(self)

    def _live(self) -> c_void_p:
        if not self._handle:
            raise Error(EINVAL, "the request was freed")
        return self._handle

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        with contextlib.suppress(*[Error] if kind else []):  # which would replace the body's exception
            self.free()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.banyan_request_free(self._handle)


class _Watcher:
    """Completes the futures of awaited requests of one communicator in one event loop. It holds the loop only while a
    coroutine waits: it is a value of Comm._watchers, which would never let the loop go."""

    def __init__(self, comm: "Comm"):
        self.comm, self.futures = comm, {}  # future -> its request; several coroutines may await one
        self.fd = check(lib.banyan_progress_fd(comm._live()))

    def wait(self, request: Request) -> Iterator[Any]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self.futures:
            loop.add_reader(self.fd, self.look)
        self.futures[future] = request
        try:
            yield from future.__await__()
        finally:
            del self.futures[future]
            if not self.futures and not loop.is_closed():
                loop.remove_reader(self.fd)

    def look(self) -> None:
        if self.comm._handle:
            lib.banyan_progress(self.comm._handle)
        for request in set(self.futures.values()):
            try:
                done, error = request.test(), None
            except Exception as why:
                done, error = True, why
            for future, awaited in self.futures.items():
                if done and awaited is request and not future.done():
                    future.set_exception(error) if error else future.set_result(None)


def wait_all(requests: Iterable[Request], timeout: Optional[float] = None) -> None:
    """Waits for all of them; raises the first error."""
    for request in requests:
        request.wait(timeout)


def _config(settings: Dict[str, Any], keep: List[Any]) -> Config:
    cfg = Config(ctypes.sizeof(Config), -1, -1, progress_cpu=-1, deterministic=-1)  # BANYAN_CONFIG_INIT
    hook, allgather = settings.pop("progress_hook", None), settings.pop("allgather", None)
    for name, function in ("progress_hook", hook), ("allgather", allgather):
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
    if hook is not None:
        cfg.progress_hook = ProgressHook(lambda _ctx: hook())
    if allgather is not None:
        cfg.allgather = Allgather(_allgather_shim(allgather))
    known = {name: kind for name, kind in Config._fields_
             if name not in ("size", "progress_hook_ctx", "allgather_ctx")}
    for name, value in settings.items():
        if name not in known:
            raise TypeError(f"no setting {name!r}; there are {', '.join(sorted(known))}")
        if known[name] is c_char_p:
            value = text(value, name)
        elif known[name] is not c_double:
            value = whole(value, 8 * ctypes.sizeof(known[name]), known[name] is c_int, name)
        setattr(cfg, name, value)
    keep.append(cfg)
    return cfg


def _allgather_shim(function: Callable[[bytes], Sequence[bytes]]) -> Callable[..., int]:
    """C's callback around function(bytes) -> the ranks' bytes, in rank order."""
    def shim(_ctx: Any, source: int, target: int, nbytes: int) -> int:
        try:
            joined = b"".join(function(ctypes.string_at(source, nbytes)))
            ctypes.memmove(target, joined, len(joined))
            return 0
        except Exception:  # must not unwind through C; init reports the failure
            return 1
    return shim


def _follow_wipe() -> None:
    """Empties BANYAN_ID in os.environ, a copy of the environment, if init has wiped it there. What the program has set
    itself stays. The variable stays, too: without it, a later from_env() would find no id."""
    if os.environ.get("BANYAN_ID") and _getenv(b"BANYAN_ID") == b"":
        os.environ["BANYAN_ID"] = ""


class Comm(Collectives):
    """A communicator. Use from_env() or init(); as a context manager it finalizes, or after an exception
    aborts, so that the other ranks learn of it. One thread at a time."""

    rank: int  #: this process's number
    size: int  #: how many ranks there are

    def __init__(self, handle: c_void_p, parent: Optional["Comm"] = None, keep: Iterable[Any] = ()):
        self._handle, self._keep = handle, parent._keep if parent else list(keep)
        self._family = parent._family if parent else weakref.WeakSet()  # those of one world, which share registered memory
        self._family.add(self)
        self._requests = weakref.WeakSet()
        self._watchers = weakref.WeakKeyDictionary()
        self.rank = check(lib.banyan_comm_rank(handle))
        self.size = check(lib.banyan_comm_count(handle))

    @classmethod
    def from_env(cls, **settings: Any) -> "Comm":
        """Joins the job that the launcher describes. settings: the members of struct banyan_config. Empties BANYAN_ID,
        which has the job's secret; later calls of this process remember it."""
        keep, handle = [], c_void_p()
        try:
            check(lib.banyan_comm_init_env(byref(handle), byref(_config(settings, keep))))
        finally:
            _follow_wipe()
        return cls(handle, keep=keep)

    @classmethod
    def init(cls, ident: Optional[bytes], rank: int, size: int, **settings: Any) -> "Comm":
        """Joins the job `ident` (bytes from create_id; None with an allgather= function)."""
        keep, handle = [], c_void_p()
        check(lib.banyan_comm_init(byref(handle), _id(ident), as_int(size, "size"), as_int(rank, "rank"),
                                   byref(_config(settings, keep))))
        return cls(handle, keep=keep)

    @classmethod
    def join(cls, ident: Optional[bytes] = None, **settings: Any) -> "Comm":
        """Joins a job that runs, by an id of grow_id(); None: as a rank that banyan_run --restart has started again."""
        keep, handle = [], c_void_p()
        check(lib.banyan_comm_join(byref(handle), _id(ident), byref(_config(settings, keep))))
        return cls(handle, keep=keep)

    def _live(self) -> c_void_p:
        if not self._handle:
            raise Error(EINVAL, "the communicator was finalized or destroyed")
        return self._handle

    def _watcher(self) -> _Watcher:
        loop = asyncio.get_running_loop()
        if loop not in self._watchers:
            self._watchers[loop] = _Watcher(self)
        return self._watchers[loop]

    def _request(self, handle: c_void_p, keep: Any, result: Any) -> Request:
        return Request(self, handle, keep, result)

    def _queued(self, keep: Any) -> None:
        """A blocking call in a group borrows its arguments until the group ends."""
        if getattr(_grouped, "keep", None) is not None:
            _grouped.keep += keep

    def _no_group(self, what: str, waits_for: str = "the object's length") -> None:
        if getattr(_grouped, "keep", None) is not None:
            raise Error(EBUSY, f"{what} on rank {self.rank}: the call waits for {waits_for}, and calls inside "
                        "banyan.group() only queue; call it before or behind the group")

    def allreduce_many(self, arrays: Sequence[Any], op: Any = SUM, dtype: Any = None, **options: Any) -> None:
        """allreduce of each array, in place, all at once. Every rank gives as many arrays, of the same types and lengths.
        Neighbours of one type, and of up to 4 KiB each, are copied and travel as one, without the communicator's codec; the
        others are not copied. With codec= each array is an operation of its own. The arrays must not overlap. options: as of
        allreduce, but for those of a single array."""
        self._no_group("allreduce_many", "the results")
        for name in "recv", "shape", "codec_state", "contributors":
            if name in options:
                raise TypeError(f"allreduce_many: {name} is for a single array; call allreduce for it")
        # A lossy codec would give neighbours of different magnitudes a common scale, and the smaller would be lost.
        runs = neighbours(arrays, dtype, together=options.get("codec") in (None, "", "none"))
        wholes = [run[0].array if len(run) == 1 else join(run) for run in runs]
        with group():
            for whole, run in zip(wholes, runs):
                chosen = options if len(run) == 1 else {**options, "codec": "none"}
                self.allreduce(whole, op=op, dtype=run[0].dtype, **chosen)
        for whole, run in zip(wholes, runs):
            if len(run) > 1:
                separate(whole, run)

    def dup(self) -> "Comm":
        """A communicator of the same ranks with its own order of operations. Collective."""
        handle = c_void_p()
        check(lib.banyan_comm_dup(self._live(), byref(handle)))
        return Comm(handle, self)

    def split(self, color: int, key: int = 0) -> Optional["Comm"]:
        """The ranks with the same color >= 0, ordered by (key, rank); with banyan.SPLIT_HOST those of this host, in which a
        rank's number is its local rank. None with any other color < 0. Collective."""
        handle = c_void_p()
        check(lib.banyan_comm_split(self._live(), as_int(color, "color"), as_int(key, "key"), byref(handle)))
        return Comm(handle, self) if handle else None

    def create_group(self, ranks: Sequence[int], tag: int = 0) -> "Comm":
        """The listed ranks, in that order; only they call it, with the same tag. Works where others are dead."""
        members = (c_int * len(ranks))(*[as_int(r, "ranks").value for r in ranks])
        handle = c_void_p()
        check(lib.banyan_comm_create_group(self._live(), members, c_int(len(members)), as_int(tag, "tag"), byref(handle)))
        return Comm(handle, self)

    def finalize(self) -> None:
        """A barrier, then the end. Raises EBUSY, and the communicator lives on, while an operation of this rank is in flight or
        waits in a group. Does nothing the second time."""
        self._end(lib.banyan_comm_finalize)

    def destroy(self) -> None:
        """Frees local resources without talking to anybody."""
        self._end(lib.banyan_comm_destroy)

    def _end(self, function: Callable[[c_void_p], int]) -> None:
        if self._handle:
            for request in list(self._requests):
                request.free()
            rc = function(self._handle)
            if rc != -EBUSY:  # which ends nothing
                self._handle = None
            check(rc)

    def mem_alloc(self, nbytes: int) -> memoryview:
        """Zeroed memory that other ranks of this host can map, so that sums of it are copied less. Any collective takes it,
        also as numpy.frombuffer(memory, "float32"). It lives as long as a view of it, also behind the communicator's end."""
        fd = os.memfd_create("banyan-python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, whole(nbytes, 63, False, "nbytes"))
            mapping = mmap.mmap(fd, nbytes)
            array = (c_char * nbytes).from_buffer(mapping)
            pointer = c_void_p(ctypes.addressof(array))
            check(lib.banyan_mem_register(self._live(), pointer, c_size_t(nbytes), c_int(fd), ctypes.c_uint64(0)))
        finally:
            os.close(fd)
        weakref.finalize(array, _deregister, self._family, pointer, mapping).atexit = False
        return memoryview(array).cast("B")

    def stats(self) -> Dict[str, int]:
        """Counters since init, as a dict: the members of struct banyan_stats. Any thread."""
        return fill(Stats, lib.banyan_comm_stats, self._live())

    def plan(self, collective: str, count: int, dtype: Any = "f32") -> str:
        """A line about such a call: schedule, transport, chunk, codec, predicted microseconds."""
        out = ctypes.create_string_buffer(512)
        check(lib.banyan_comm_plan(self._live(), c_char_p(text(collective, "collective")), as_size(count, "count"),
                                   c_int(named(dtype, DTYPES, "dtype")), out, c_size_t(len(out))))
        return out.value.decode("utf-8", "replace")

    # Going on after failures: docs/failures.md.

    def failed(self) -> List[int]:
        """The ranks that are dead or have left, as agreed up to now. Any thread."""
        ranks = (c_int * self.size)()
        return list(ranks[:check(lib.banyan_comm_failed(self._live(), ranks, c_int(self.size)))])

    def revoke(self, why: str = "") -> None:
        """Gives the communicator up on every rank, to bring others to where this one is. Any thread."""
        check(lib.banyan_comm_revoke(self._live(), c_char_p(text(why, "why"))))

    def agree(self, bits: int = (1 << 64) - 1) -> Tuple[int, List[int]]:
        """(AND of the bits of all live ranks, the list of the dead): the same on all, whatever failed."""
        word, ranks = ctypes.c_uint64(whole(bits, 64, False, "bits")), (c_int * self.size)()
        n = check(lib.banyan_comm_agree(self._live(), byref(word), ranks, c_int(self.size)))
        return word.value, list(ranks[:n])

    def shrink(self) -> "Comm":
        """A communicator of the ranks that live; then destroy this one."""
        handle = c_void_p()
        check(lib.banyan_comm_shrink(self._live(), byref(handle)))
        return Comm(handle, self)

    @staticmethod
    def shrink_many(comms: Sequence["Comm"]) -> List["Comm"]:
        """What is left of each of this rank's communicators, at once: no order among them. Then destroy the old ones. Where
        one could not be made its error is raised, behind destroying the others."""
        handles = (c_void_p * len(comms))(*[comm._live() for comm in comms])
        left = (c_void_p * len(comms))()
        try:
            check(lib.banyan_comm_shrink_many(handles, c_int(len(comms)), left))
        except Error:
            for handle in left:
                if handle:
                    lib.banyan_comm_destroy(c_void_p(handle))
            raise
        return [Comm(c_void_p(handle), comm) for handle, comm in zip(left, comms)]

    def grow_id(self) -> bytes:
        """128 bytes by which newcomers join, once; at one rank, any. Keep them private."""
        ident = Id()
        check(lib.banyan_comm_grow_id(self._live(), byref(ident)))
        return bytes(ident.bytes)

    def grow(self, newcomers: int, ident: Optional[bytes] = None, **settings: Any) -> "Comm":
        """A communicator of these ranks and so many newcomers. ident: at the rank that made it. settings: as for
        from_env(). This one works on until it is finalized or destroyed."""
        keep, handle = [], c_void_p()
        check(lib.banyan_comm_grow(self._live(), _id(ident), as_int(newcomers, "newcomers"),
                                   byref(_config(settings, keep)), byref(handle)))
        return Comm(handle, keep=keep)

    def abort(self, reason: str = "") -> None:
        """Fails the communicator on every rank. Any thread."""
        check(lib.banyan_abort(self._live(), c_char_p(text(reason, "reason"))))

    def async_error(self) -> Optional[Tuple[int, int, str]]:
        """None while healthy, else (code, rank to blame or -1, text). Any thread."""
        blamed, said = c_int(-1), ctypes.create_string_buffer(512)
        rc = lib.banyan_async_error(self._live(), byref(blamed), said, c_size_t(len(said)))
        return None if rc == 0 else (-rc, blamed.value, said.value.decode("utf-8", "replace"))

    def probe(self, peer: int = ANY_SOURCE, tag: int = 0) -> Optional[Tuple[int, int]]:
        """(rank, bytes) of the message with this tag that a recv called now would get; None: there is none so far."""
        source, nbytes = c_int(), c_size_t()
        found = check(lib.banyan_probe(self._live(), as_int(peer, "peer"), ctypes.c_uint32(whole(tag, 32, False, "tag")),
                                       byref(source), byref(nbytes)))
        return (source.value, nbytes.value) if found else None

    def progress(self) -> int:
        """Progresses everything in flight once; the number of events."""
        return check(lib.banyan_progress(self._live()))

    def __enter__(self) -> "Comm":
        return self

    def __exit__(self, kind: Any, value: Any, _traceback: Any) -> None:
        if kind is None:
            self.finalize()
        elif self._handle:
            # An error of the communicator itself is known everywhere; anything else is news to the others.
            if not isinstance(value, Error) or self.async_error() is None:
                # Unchecked: a forked child, for one, has nothing to abort, and its exception goes on.
                lib.banyan_abort(self._handle, c_char_p(f"rank {self.rank} leaves with {kind.__name__}".encode()))
            handle, self._handle = self._handle, None
            for request in list(self._requests):
                lib.banyan_request_free(request._handle)
                request._handle = None
                _active.discard(request)
            lib.banyan_comm_destroy(handle)


def _deregister(family: Iterable[Comm], pointer: c_void_p, _mapping: mmap.mmap) -> None:
    """Before the mapping goes. The end of the last communicator has forgotten it already."""
    for comm in list(family):
        if comm._handle and lib.banyan_mem_deregister(comm._handle, pointer) == 0:
            return
