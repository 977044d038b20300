# SPDX-License-Identifier: BSD-3-Clause
"""Operations of the program, and codec states."""
import ctypes
import weakref
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, List

from ._lib import EINVAL, ITEM_BYTES, Error, as_size, check, lib, whole

_UserFunction = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_size_t, c_int)
# Of memoryview.cast, which knows no halves and no complex numbers: these come as their parts, f8 as bytes.
_FORMATS = "fdHHbBiIqQ?hHfdBB"


class Op:
    """An operation of the program: function(in_, inout) computes inout[i] = in_[i] (op) inout[i] on two memoryviews of the call's
    elements (float16 and bfloat16 as unsigned 16-bit words), which numpy.frombuffer takes; in_ is the lower ranks'.

        def larger_magnitude(in_, inout):
            a, b = numpy.frombuffer(in_, "f4"), numpy.frombuffer(inout, "f4")
            numpy.copyto(b, a, where=abs(a) > abs(b))
        comm.allreduce(x, op=banyan.Op(larger_magnitude))

    commutative=False keeps the order of ranks. elem_bytes: the size of an opaque element; buffers are then bytes (uint8).
    The function must not call banyan. Where it raises, the communicator is aborted on all ranks, and the call raises that."""

    def __init__(self, function: Callable[[memoryview, memoryview], None], commutative: bool = True, elem_bytes: int = 0):
        if not callable(function):
            raise TypeError(f"function must be a function, not {type(function).__name__}")
        self._comms, self._raised = weakref.WeakSet(), None
        whole(elem_bytes, 32, False, "elem_bytes")

        def called(_ctx: Any, source: int, target: int, n: int, dtype: int, me: Any = weakref.ref(self)) -> None:
            item, form = (elem_bytes, "B") if elem_bytes else (ITEM_BYTES[dtype], _FORMATS[dtype])
            try:
                function(_view(source, n * item).toreadonly().cast(form), _view(target, n * item).cast(form))
            except BaseException as why:  # must not unwind through C
                me()._failed(why)

        self._function = _UserFunction(called)
        handle = c_uint32()
        check(lib.banyan_op_create_user(self._function, None, c_size_t(elem_bytes), c_size_t(0), c_int(bool(commutative)),
                                        byref(handle)))
        self._handle = handle.value

    @classmethod
    def premul_sum(cls, scalar: float) -> "Op":
        """The sum over ranks of scalar times x; the scalar may differ by rank. Floats only."""
        op, handle = cls.__new__(cls), c_uint32()
        op._comms, op._raised, op._function = weakref.WeakSet(), None, None
        check(lib.banyan_op_create_premul_sum(c_double(scalar), byref(handle)))
        op._handle = handle.value
        return op

    def _serve(self, comm: Any) -> "Op":
        if self._function:
            self._comms.add(comm)
        return self

    def _failed(self, why: BaseException) -> None:
        self._raised = why
        for comm in list(self._comms):
            if comm._handle:
                comm.abort(f"an operation of the program raised {type(why).__name__}: {str(why)[:200]}".replace("\0", ""))

    @staticmethod
    def _reraise(kept: List[Any]) -> None:
        """What the function of an Op among these raised."""
        for op in kept:
            if isinstance(op, Op) and op._raised is not None:
                raised, op._raised = op._raised, None
                raise raised

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.banyan_op_free(c_uint32(self._handle))


def _view(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


lib.banyan_codec_state_bytes.restype = c_size_t
lib.banyan_codec_state_residual.restype = ctypes.POINTER(c_float)


class CodecState:
    """What a lossy codec keeps of one tensor between operations (codec_state=): residuals, which the next operation adds.

        state = banyan.CodecState(x.size)
        comm.allreduce(x, codec="topk:delta=0.01", codec_state=state)      # on all ranks, equally often

    count: the call's elements; of reduce_scatter and allgather those of all ranks. seed: the same on all ranks."""

    def __init__(self, count: int, seed: int = 0):
        self._handle, self.count = c_void_p(), whole(count, 64, False, "count")
        check(lib.banyan_codec_state_create(byref(self._handle), c_size_t(count), c_uint64(whole(seed, 64, False, "seed"))))

    def _live(self) -> c_void_p:
        if not self._handle:
            raise Error(EINVAL, "the codec state was freed")
        return self._handle

    def reset(self) -> None:
        """As new."""
        check(lib.banyan_codec_state_reset(self._live()))

    def scale(self, factor: float) -> None:
        """The next operation multiplies residuals by it: old over new learning rate."""
        check(lib.banyan_codec_state_scale(self._live(), c_double(factor)))

    def move(self, at: int, source: "CodecState", source_at: int, count: int) -> None:
        """Adds residuals of another state to this one's, and clears them there."""
        check(lib.banyan_codec_state_move(self._live(), as_size(at, "at"), source._live(), as_size(source_at, "source_at"),
                                          as_size(count, "count")))

    def residual(self) -> memoryview:
        """A copy of the residuals, as floats."""
        found = lib.banyan_codec_state_residual(self._live())
        return memoryview(ctypes.string_at(found, 4 * self.count) if found else bytes(4 * self.count)).cast("f")

    def save(self) -> bytes:
        """All of it, for load()."""
        out = ctypes.create_string_buffer(lib.banyan_codec_state_bytes(self._live()))
        check(lib.banyan_codec_state_save(self._live(), out, c_size_t(len(out))))
        return out.raw

    def load(self, saved: bytes) -> None:
        """From save() of a state of as many elements."""
        check(lib.banyan_codec_state_load(self._live(), c_char_p(saved), c_size_t(len(saved))))

    def step(self) -> int:
        """How many operations have used it."""
        out = c_uint32()
        check(lib.banyan_codec_state_step(self._live(), byref(out)))
        return out.value

    def keep_undo(self, on: bool = True) -> None:
        """Each operation keeps a copy of the state before it, for undo(): twice the memory."""
        check(lib.banyan_codec_state_keep_undo(self._live(), c_int(bool(on))))

    def undo(self, step: int) -> None:
        """The state at that step(), before the latest operation."""
        check(lib.banyan_codec_state_undo(self._live(), c_uint32(whole(step, 32, False, "step"))))

    def free(self) -> None:
        """Frees it; no operation may use it. Does nothing the second time."""
        if self._handle:
            check(lib.banyan_codec_state_free(self._handle))
            self._handle = c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.banyan_codec_state_free(self._handle)
