# SPDX-License-Identifier: BSD-3-Clause
"""The collectives, as methods of Comm."""
import ctypes
import inspect
import pickle
from ctypes import byref, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_void_p
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ._buffer import Buffer, need, same
from ._lib import I64, ITEM_BYTES, OPS, SUM, U8, Opts, ReduceOpts, as_int, as_size, check, lib, named, text, whole
from ._state import CodecState, Op

_NULL = c_void_p(None)
# What each _args_x returns: arguments before comm, the result, what to keep.
_Arguments = Tuple[List[Any], Any, List[Any]]


def _make_opts(schedule: Any = None, codec: Any = None, timeout: Any = None, tag: Any = 0, deterministic: Any = None,
               chunk_bytes: Any = 0, shape: Any = None, codec_state: Any = None, participants: Any = None, at_least: Any = 0,
               contributors: Any = None) -> Opts:
    dims = [whole(d, 64, True, "shape") for d in shape or ()]
    if codec_state is not None and not isinstance(codec_state, CodecState):
        raise TypeError(f"codec_state must be a banyan.CodecState, not {type(codec_state).__name__}")
    return Opts(ctypes.sizeof(Opts), text(schedule, "schedule") or None, text(codec, "codec") or None,
                -1.0 if timeout is None else timeout, whole(tag, 32, False, "tag"),
                -1 if deterministic is None else whole(deterministic, 32, True, "deterministic"),
                whole(chunk_bytes, 8 * ctypes.sizeof(c_size_t), False, "chunk_bytes"),
                (c_int64 * len(dims))(*dims) if dims else None, len(dims), codec_state and codec_state._live(),
                _reduce_opts(participants, contributors, at_least))


_OPTIONS = inspect.signature(_make_opts).parameters


def _reduce_opts(participants: Any, contributors: Any, at_least: Any) -> Any:
    """A pointer for Opts, which keeps all of it; None if the result has all inputs, and nobody asks."""
    if participants is None and contributors is None and not at_least:
        return None
    return ctypes.pointer(ReduceOpts(
        ctypes.sizeof(ReduceOpts),
        None if participants is None else
        (c_uint8 * len(participants))(*[1 if p else 0 for p in participants]),
        None if contributors is None else
        (c_uint8 * len(contributors)).from_buffer(contributors),
        as_int(at_least, "at_least").value))


def _forms(prepare: Callable[..., _Arguments]) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """The methods name and name_init, made from _args_name. Both take the options of struct banyan_opts by name."""
    name = prepare.__name__[len("_args_"):]

    def arguments(self: Any, args: Any, settings: Any) -> _Arguments:
        chosen = {k: settings.pop(k) for k in _OPTIONS if k in settings}
        before, result, keep = prepare(self, *args, **settings)
        if chosen.get("participants") is not None and len(chosen["participants"]) != self.size:
            raise ValueError(f"participants: one for each of the {self.size} ranks, "
                             f"not {len(chosen['participants'])}")
        if chosen.get("contributors") is not None:
            if len(chosen["contributors"]) != self.size or memoryview(chosen["contributors"]).itemsize != 1:
                raise ValueError(f"contributors: a writable buffer with a byte for each of the {self.size} ranks, "
                                 "such as a bytearray")
        opts = _make_opts(**chosen)
        return before + [self._live(), byref(opts)], result, keep + [opts, chosen.get("codec_state")]

    def blocking(self: Any, *args: Any, **settings: Any) -> Any:
        c_args, result, keep = arguments(self, args, settings)
        self._queued(keep)
        rc = getattr(lib, "banyan_" + name)(*c_args)
        Op._reraise(keep)
        check(rc)
        return result

    def request(self: Any, *args: Any, **settings: Any) -> Any:
        c_args, result, keep = arguments(self, args, settings)
        handle = c_void_p()
        check(getattr(lib, f"banyan_{name}_init")(*c_args, byref(handle)))
        return self._request(handle, keep, result)

    own = inspect.signature(prepare)
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in _OPTIONS.values()]
    signature = own.replace(parameters=[*own.parameters.values(), *options], return_annotation=inspect.Signature.empty)
    blocking.__name__, blocking.__qualname__, request.__name__, request.__qualname__ = name, f"Comm.{name}", *[name + "_init"] * 2
    blocking.__doc__, request.__doc__ = prepare.__doc__, f"A Request of {name}, not started. {prepare.__doc__}"
    blocking.__signature__ = request.__signature__ = signature
    return blocking, request


class Collectives:
    """What Comm inherits. Buffers are numpy arrays, torch tensors, and all that speaks the buffer protocol, DLPack or
    __array_interface__: in host memory, elements one after the other. Where a call has no recv the result replaces send.
    Options, by name, as in struct banyan_opts: schedule, codec, timeout (seconds), tag, deterministic, chunk_bytes, shape,
    codec_state; of allreduce and reduce alone participants, at_least, contributors."""

    rank: int
    size: int

    def _op(self, value: Any, keep: List[Any]) -> c_uint32:
        if isinstance(value, Op):
            keep.append(value._serve(self))
            return c_uint32(value._handle)
        return c_uint32(named(value, OPS, "op"))

    def _in_place(self, send: Any, recv: Any, dtype: Any) -> Tuple[Buffer, Buffer, Any]:
        """Buffers of a collective whose recv=None means: the result replaces send."""
        if recv is None:
            both = Buffer(send, True, dtype)
            return both, both, send
        source, target = Buffer(send, False, dtype), Buffer(recv, True, dtype)
        same(source, target)
        return source, target, recv

    def _counts(self, counts: Sequence[int], displs: Optional[Sequence[int]], buffer: Buffer, what: str) -> Tuple[Any, Any]:
        """C's arrays of counts and of displacements, both within the buffer."""
        if len(counts) != self.size or displs is not None and len(displs) != self.size:
            raise ValueError(f"{what}: a count, and a displacement if any, for each of the {self.size} ranks")
        lengths = [as_size(c, what).value for c in counts]
        starts = None if displs is None else [as_size(d, what).value for d in displs]
        end = sum(lengths) if starts is None else max((d + c for d, c in zip(starts, lengths) if c), default=0)
        if end > buffer.count:
            raise ValueError(f"{what}: the blocks end at element {end} of a buffer of {buffer.count}")
        array = c_size_t * self.size
        return array(*lengths), starts and array(*starts)

    def _args_allreduce(self, send: Any, recv: Any = None, op: Any = SUM, dtype: Any = None) -> _Arguments:
        """recv = op over all ranks of send. op: banyan.SUM or "sum", and so on, or a banyan.Op. recv=None: in place. Returns
        the array with the result."""
        s, r, result = self._in_place(send, recv, dtype)
        need(r, s.count, "recv")
        keep = [s, r]
        return [s.pointer, r.pointer, c_size_t(s.count), c_int(s.dtype), self._op(op, keep)], result, keep

    allreduce, allreduce_init = _forms(_args_allreduce)

    def _args_reduce(self, send: Any, recv: Any = None, op: Any = SUM, root: int = 0, dtype: Any = None) -> _Arguments:
        """As allreduce, to root only; elsewhere recv is not used, and the result None."""
        where = as_int(root, "root")
        if self.rank == where.value:
            args, result, keep = self._args_allreduce(send, recv, op, dtype)
        else:
            s = Buffer(send, False, dtype)
            result, keep = None, [s]
            args = [s.pointer, _NULL, c_size_t(s.count), c_int(s.dtype), self._op(op, keep)]
        return args + [where], result, keep

    reduce, reduce_init = _forms(_args_reduce)

    def _args_broadcast(self, buf: Any, root: int = 0, dtype: Any = None) -> _Arguments:
        """buf of root to buf of every rank."""
        where = as_int(root, "root")
        b = Buffer(buf, self.rank != where.value, dtype)
        return [b.pointer, c_size_t(b.count), c_int(b.dtype), where], buf, [b]

    broadcast, broadcast_init = _forms(_args_broadcast)

    def _args_reduce_scatter(self, send: Any, recv: Any, op: Any = SUM, dtype: Any = None) -> _Arguments:
        """Rank r gets block r of op over all ranks; send has size times the elements of recv."""
        s, r = Buffer(send, False, dtype), Buffer(recv, True, dtype)
        same(s, r)
        need(s, r.count * self.size, "send")
        keep = [s, r]
        return [s.pointer, r.pointer, c_size_t(r.count), c_int(r.dtype), self._op(op, keep)], recv, keep

    reduce_scatter, reduce_scatter_init = _forms(_args_reduce_scatter)

    def _args_reduce_scatterv(self, send: Any, recv: Any, counts: Sequence[int], op: Any = SUM, dtype: Any = None) -> _Arguments:
        """As reduce_scatter, with counts[r] elements for rank r, the same on all ranks."""
        s, r = Buffer(send, False, dtype), Buffer(recv, True, dtype)
        same(s, r)
        c, _ = self._counts(counts, None, s, "counts")
        need(s, sum(c), "send")
        need(r, c[self.rank], "recv")
        keep = [s, r, c]
        return [s.pointer, r.pointer, c, c_int(r.dtype), self._op(op, keep)], recv, keep

    reduce_scatterv, reduce_scatterv_init = _forms(_args_reduce_scatterv)

    def _args_allgather(self, send: Any, recv: Any, dtype: Any = None) -> _Arguments:
        """recv = every rank's send in rank order; send=None: this rank's block already lies in recv."""
        r = Buffer(recv, True, dtype)
        if send is None:
            count, rest = divmod(r.count, self.size)
            if rest:
                raise ValueError(f"recv has {r.count} elements, no multiple of {self.size} ranks")
            return [_at(r, self.rank * count, count), r.pointer, c_size_t(count), c_int(r.dtype)], recv, [r]
        s = Buffer(send, False, dtype)
        same(s, r)
        need(r, s.count * self.size, "recv")
        return [s.pointer, r.pointer, c_size_t(s.count), c_int(s.dtype)], recv, [s, r]

    allgather, allgather_init = _forms(_args_allgather)

    def _args_allgatherv(self, send: Any, recv: Any, counts: Sequence[int], displs: Optional[Sequence[int]] = None,
                         dtype: Any = None) -> _Arguments:
        """As allgather, with counts[r] elements of rank r, at displs[r] of recv (None: one after the other). counts are the same
        on all ranks."""
        r = Buffer(recv, True, dtype)
        c, d = self._counts(counts, displs, r, "counts")
        if send is None:
            s = r
            source = _at(r, d[self.rank] if d else sum(c[:self.rank]), c[self.rank])
        else:
            s = Buffer(send, False, dtype)
            same(s, r)
            need(s, c[self.rank], "send")
            source = s.pointer
        return [source, r.pointer, c, d, c_int(r.dtype)], recv, [s, r, c, d]

    allgatherv, allgatherv_init = _forms(_args_allgatherv)

    def _args_gather(self, send: Any, recv: Any = None, root: int = 0, dtype: Any = None) -> _Arguments:
        """As allgather, to root only; elsewhere recv is not used, and the result None."""
        where, s, target, keep = as_int(root, "root"), Buffer(send, False, dtype), _NULL, []
        if self.rank == where.value:
            r = Buffer(recv, True, dtype)
            same(s, r)
            need(r, s.count * self.size, "recv")
            target, keep = r.pointer, [r]
        args = [s.pointer, target, c_size_t(s.count), c_int(s.dtype), where]
        return args, recv if keep else None, keep + [s]

    gather, gather_init = _forms(_args_gather)

    def _args_gatherv(self, send: Any, recv: Any = None, counts: Optional[Sequence[int]] = None,
                      displs: Optional[Sequence[int]] = None, root: int = 0, dtype: Any = None) -> _Arguments:
        """As gather, with counts[r] elements of rank r, at displs[r] of recv (None: one after the other), which root alone
        needs."""
        where, s, target, c, d, keep = as_int(root, "root"), Buffer(send, False, dtype), _NULL, None, None, []
        if self.rank == where.value:
            r = Buffer(recv, True, dtype)
            same(s, r)
            c, d = self._counts(counts or (), displs, r, "counts")
            need(s, c[self.rank], "send")
            target, keep = r.pointer, [r, c, d]
        return [s.pointer, c_size_t(s.count), target, c, d, c_int(s.dtype), where], recv if keep else None, keep + [s]

    gatherv, gatherv_init = _forms(_args_gatherv)

    def _args_scatter(self, send: Any, recv: Any, root: int = 0, dtype: Any = None) -> _Arguments:
        """Rank r gets block r of root's send; elsewhere send is not used."""
        where, r, source, keep = as_int(root, "root"), Buffer(recv, True, dtype), _NULL, []
        if self.rank == where.value:
            s = Buffer(send, False, dtype)
            same(s, r)
            need(s, r.count * self.size, "send")
            source, keep = s.pointer, [s]
        args = [source, r.pointer, c_size_t(r.count), c_int(r.dtype), where]
        return args, recv, keep + [r]

    scatter, scatter_init = _forms(_args_scatter)

    def _args_scatterv(self, send: Any, recv: Any, counts: Optional[Sequence[int]] = None,
                       displs: Optional[Sequence[int]] = None, root: int = 0, dtype: Any = None) -> _Arguments:
        """As scatter, with counts[r] elements for rank r, at displs[r] of send (None: one after the other), which root alone
        needs."""
        where, r, source, c, d, keep = as_int(root, "root"), Buffer(recv, True, dtype), _NULL, None, None, []
        if self.rank == where.value:
            s = Buffer(send, False, dtype)
            same(s, r)
            c, d = self._counts(counts or (), displs, s, "counts")
            need(r, c[self.rank], "recv")
            source, keep = s.pointer, [s, c, d]
        return [source, c, d, r.pointer, c_size_t(r.count), c_int(r.dtype), where], recv, keep + [r]

    scatterv, scatterv_init = _forms(_args_scatterv)

    def _args_alltoall(self, send: Any, recv: Any = None, dtype: Any = None) -> _Arguments:
        """Block p of send to rank p, which stores it as block `rank`; recv=None: in place."""
        s, r, result = self._in_place(send, recv, dtype)
        need(r, s.count, "recv")
        count, rest = divmod(s.count, self.size)
        if rest:
            raise ValueError(f"send has {s.count} elements, no multiple of {self.size} ranks")
        return [s.pointer, r.pointer, c_size_t(count), c_int(s.dtype)], result, [s, r]

    alltoall, alltoall_init = _forms(_args_alltoall)

    def _args_alltoallv(self, send: Any, send_counts: Sequence[int], recv: Any, recv_counts: Sequence[int],
                        send_displs: Optional[Sequence[int]] = None, recv_displs: Optional[Sequence[int]] = None,
                        dtype: Any = None) -> _Arguments:
        """send_counts[p] elements at send_displs[p] to rank p; recv_counts[p] from it, to recv_displs[p]. None: one after the
        other. Not in place."""
        s, r = Buffer(send, False, dtype), Buffer(recv, True, dtype)
        same(s, r)
        sc, sd = self._counts(send_counts, send_displs, s, "send_counts")
        rc, rd = self._counts(recv_counts, recv_displs, r, "recv_counts")
        return [s.pointer, sc, sd, r.pointer, rc, rd, c_int(s.dtype)], recv, [s, r, sc, sd, rc, rd]

    alltoallv, alltoallv_init = _forms(_args_alltoallv)

    def _args_barrier(self) -> _Arguments:
        """Returns when every rank has called it."""
        return [], None, []

    barrier, barrier_init = _forms(_args_barrier)

    def _args_scan(self, send: Any, recv: Any = None, op: Any = SUM, dtype: Any = None) -> _Arguments:
        """op over ranks 0 to this one; recv=None: in place."""
        return self._args_allreduce(send, recv, op, dtype)

    scan, scan_init = _forms(_args_scan)

    def _args_exscan(self, send: Any, recv: Any = None, op: Any = SUM, dtype: Any = None) -> _Arguments:
        """op over the ranks before this one; rank 0's recv is unchanged."""
        return self._args_allreduce(send, recv, op, dtype)

    exscan, exscan_init = _forms(_args_exscan)

    def _args_send(self, buf: Any, peer: int, dtype: Any = None) -> _Arguments:
        """Sends buf to peer; the k-th send with a tag= meets the peer's k-th recv with it."""
        b = Buffer(buf, False, dtype)
        return [b.pointer, c_size_t(b.count), c_int(b.dtype), as_int(peer, "peer")], buf, [b]

    send, send_init = _forms(_args_send)

    def _args_recv(self, buf: Any, peer: int, dtype: Any = None) -> _Arguments:
        """Receives into buf from peer, or from any rank with banyan.ANY_SOURCE: Request.source() of recv_init says which."""
        b = Buffer(buf, True, dtype)
        return [b.pointer, c_size_t(b.count), c_int(b.dtype), as_int(peer, "peer")], buf, [b]

    recv, recv_init = _forms(_args_recv)

    def _args_sendrecv(self, send: Any, to: int, recv: Any, source: int, dtype: Any = None) -> _Arguments:
        """Sends to one rank and receives from another, or the same, at once. Lengths and types of both may differ."""
        s, r = Buffer(send, False, dtype), Buffer(recv, True, dtype)
        return [s.pointer, c_size_t(s.count), c_int(s.dtype), as_int(to, "to"), r.pointer, c_size_t(r.count), c_int(r.dtype),
                as_int(source, "source")], recv, [s, r]

    sendrecv = _forms(_args_sendrecv)[0]  # no request in C

    # Any Python object, pickled. Unpickling runs code: the ranks of a job trust each other.

    def broadcast_object(self, obj: Any = None, root: int = 0) -> Any:
        """root's object, on every rank."""
        self._no_group("broadcast_object")
        data = bytearray(pickle.dumps(obj) if self.rank == root else b"")
        count = (c_int64 * 1)(len(data))
        self.broadcast(count, root=root, dtype=I64)
        data = data if self.rank == root else bytearray(count[0])
        self.broadcast(data, root=root, dtype=U8)
        return pickle.loads(data)

    def allgather_object(self, obj: Any) -> List[Any]:
        """A list of every rank's object, in rank order."""
        self._no_group("allgather_object")
        data = pickle.dumps(obj)
        counts = (c_int64 * self.size)()
        self.allgather((c_int64 * 1)(len(data)), counts, dtype=I64)
        everything = memoryview(bytearray(sum(counts)))
        self.allgatherv(data, everything, list(counts), dtype=U8)
        ends = [sum(counts[:r + 1]) for r in range(self.size)]
        return [pickle.loads(everything[end - count:end]) for end, count in zip(ends, counts)]

    def send_object(self, obj: Any, peer: int, tag: int = 0) -> None:
        """Sends an object, which the peer takes with recv_object."""
        data = pickle.dumps(obj)
        self.send((c_int64 * 1)(len(data)), peer, dtype=I64, tag=tag)
        self.send(data, peer, dtype=U8, tag=tag)

    def recv_object(self, peer: int, tag: int = 0) -> Any:
        """The object that peer, or a rank with banyan.ANY_SOURCE, sent with send_object."""
        self._no_group("recv_object")
        count = (c_int64 * 1)()
        with self.recv_init(count, peer, dtype=I64, tag=tag) as request:
            request.start().wait()
            peer, _ = request.source()
        data = bytearray(count[0])
        self.recv(data, peer, dtype=U8, tag=tag)
        return pickle.loads(data)


def _at(buffer: Buffer, start: int, count: int) -> c_void_p:
    """The address of an element; NULL for no elements, whose address may be NULL."""
    return c_void_p(buffer.pointer.value + start * ITEM_BYTES[buffer.dtype] if count else None)
