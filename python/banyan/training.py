# SPDX-License-Identifier: BSD-3-Clause
"""Training (banyan/training.h, training/README.md): gradients averaged while backward still runs, compression that adapts, local
SGD.

    buckets = banyan.training.Buckets(comm, {name: gradient, ...}, rules="*:>=16384=int8")
    for batch in batches:
        for name in backward(batch):              # the gradient of `name` is complete
            buckets.ready(name)                   # it is sent from now on
        buckets.wait()                            # all gradients are means over the ranks, in place
        take_a_step()

A model is a dict from names to arrays, in the same order on all ranks. The arrays stay in place; the objects keep them alive."""
import ctypes
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Mapping, Optional, Union

from ._buffer import Buffer
from ._lib import AVG, EINVAL, OPS, Error, as_int, as_size, check, fill, load_beside, named, text, whole

__all__ = ["Accordion", "Buckets", "Outer"]

_lib = load_beside("banyan-training")
_lib.banyan_buckets_codec.restype = c_char_p
_lib.banyan_accordion_codec.restype = c_char_p
_lib.banyan_buckets_residual.restype = ctypes.POINTER(c_float)
for _kind in "accordion", "buckets", "outer":
    getattr(_lib, f"banyan_{_kind}_bytes").restype = c_size_t


class Tensor(ctypes.Structure):
    """struct banyan_tensor"""
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("ndim", c_int), ("shape", ctypes.POINTER(c_int64)), ("grad", c_void_p)]


class BucketsConfig(ctypes.Structure):
    """struct banyan_buckets_config"""
    _fields_ = [("size", c_size_t), ("bucket_bytes", c_size_t), ("first_bytes", c_size_t), ("op", c_uint32), ("codec", c_char_p),
                ("rules", c_char_p), ("accumulate", c_int), ("unused", c_int), ("deterministic", c_int), ("seed", c_uint64),
                ("check_nan", c_int), ("norms", c_int), ("progress", c_int), ("timeout_s", c_double), ("profile", c_int)]
    DEFAULTS = dict(bucket_bytes=1 << 20, first_bytes=128 << 10, op=AVG, accumulate=1, deterministic=-1, seed=1, progress=1,
                    timeout_s=-1.0)


class BucketsStats(ctypes.Structure):
    """struct banyan_buckets_stats"""
    _fields_ = [("size", c_size_t), ("steps", c_uint64), ("buckets", c_uint64), ("wire_bytes", c_uint64),
                ("wire_bytes_sum", c_uint64), ("hidden_s", c_double), ("exposed_s", c_double), ("hidden_s_sum", c_double),
                ("exposed_s_sum", c_double)]


class BucketsTensorStats(ctypes.Structure):
    """struct banyan_buckets_tensor_stats"""
    _fields_ = [("size", c_size_t), ("norm", c_double), ("wire_bytes", c_uint64), ("hidden_s", c_double), ("exposed_s", c_double),
                ("bucket", c_uint64)]


class AccordionConfig(ctypes.Structure):
    """struct banyan_accordion_config"""
    _fields_ = [("size", c_size_t), ("eta", c_double), ("interval", c_int), ("window", c_int), ("rate_drop", c_double),
                ("min_count", c_size_t), ("little", c_char_p), ("much", c_char_p), ("accumulate", c_int)]
    DEFAULTS = dict(eta=0.5, interval=100, rate_drop=0.7, min_count=1024, little=b"none", much=b"topk:delta=0.01", accumulate=1)


class OuterConfig(ctypes.Structure):
    """struct banyan_outer_config"""
    _fields_ = [("size", c_size_t), ("period", c_int), ("fragments", c_int), ("delay", c_int), ("warm_up", c_int),
                ("momentum", c_double), ("rate", c_double), ("merge", c_double), ("residual", c_double), ("codec", c_char_p),
                ("rules", c_char_p), ("adaptive", c_int), ("weighted", c_int), ("seed", c_uint64)]
    DEFAULTS = dict(period=30, fragments=4, delay=1, momentum=0.9, rate=0.7, merge=1.0, residual=1.0, seed=1)


def _config(struct: Any, settings: Mapping[str, Any]) -> Any:
    cfg, known = struct(ctypes.sizeof(struct), **struct.DEFAULTS), dict(struct._fields_[1:])
    for name, value in settings.items():
        if name not in known:
            raise TypeError(f"no setting {name!r}; there are {', '.join(known)}")
        if known[name] is c_char_p:
            value = text(value, name)
        elif name == "op":
            value = named(value, OPS, name)
        elif known[name] is not c_double:
            value = whole(value, 8 * ctypes.sizeof(known[name]), known[name] is c_int, name)
        setattr(cfg, name, value)
    return cfg


class _Model:
    """An object of the library over a model's tensors."""

    _prefix: str
    _struct: Any

    def __init__(self, comm: Any, tensors: Mapping[str, Any], **settings: Any):
        self._handle, cfg = c_void_p(), _config(self._struct, settings)
        self._index = {name: i for i, name in enumerate(tensors)}
        buffers = [Buffer(array, True) for array in tensors.values()]
        self._keep = comm, buffers
        shapes = [tuple(getattr(array, "shape", (b.count,))) for array, b in zip(tensors.values(), buffers)]
        c_tensors = (Tensor * len(buffers))(*[
            Tensor(text(name, "tensor"), b.dtype, len(shape), (c_int64 * len(shape))(*shape), b.pointer)
            for name, b, shape in zip(tensors, buffers, shapes)])
        check(self._call("create", byref(self._handle), comm._live(), c_tensors, c_size_t(len(buffers)), byref(cfg)))

    def _call(self, name: str, *args: Any) -> Any:
        return getattr(_lib, f"banyan_{self._prefix}_{name}")(*args)

    def _live(self) -> c_void_p:
        if not self._handle:
            raise Error(EINVAL, f"the {type(self).__name__} was freed")
        return self._handle

    def _tensor(self, tensor: Union[str, int]) -> c_size_t:
        """Of a name or a number."""
        if isinstance(tensor, str):
            if tensor not in self._index:
                raise KeyError(f"there is no tensor {tensor!r}")
            tensor = self._index[tensor]
        return as_size(tensor, "tensor")

    def save(self) -> bytes:
        """Its state between steps, for load(); each rank its own."""
        out = ctypes.create_string_buffer(self._call("bytes", self._live()))
        check(self._call("save", self._live(), out, c_size_t(len(out))))
        return out.raw

    def load(self, saved: bytes) -> None:
        """From save() of an object over the same tensors. All ranks alike."""
        check(self._call("load", self._live(), c_char_p(saved), c_size_t(len(saved))))

    def free(self) -> None:
        """Before the communicator ends. Does nothing the second time."""
        if self._handle:
            check(self._call("free", self._handle))
            self._handle, self._keep = c_void_p(), None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.free()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and self._keep[0]._handle:
            self._call("free", self._handle)


class Buckets(_Model):
    """Gradients averaged over all ranks while backward still runs. settings: the members of struct banyan_buckets_config, such
    as rules="*.bias=none; *:>=65536=topk:delta=0.01", codec, op="avg", bucket_bytes, accumulate, norms, check_nan. Collective.
    Give it a communicator of its own: comm.dup()."""

    _prefix, _struct = "buckets", BucketsConfig

    def ready(self, tensor: Union[str, int], at: Optional[int] = None, count: int = 0) -> None:
        """This tensor's gradient is complete; with at and count: these elements of it."""
        if at is None:
            check(self._call("ready", self._live(), self._tensor(tensor)))
        else:
            check(self._call("ready_part", self._live(), self._tensor(tensor), as_size(at, "at"), as_size(count, "count")))

    def progress(self) -> None:
        """Sends and receives what it can, without waiting."""
        check(self._call("progress", self._live()))

    def wait(self) -> None:
        """Ends the micro-step; in the last one of a step all gradients are reduced, in place."""
        check(self._call("wait", self._live()))

    def set_accumulate(self, k: int) -> None:
        """A step has k micro-steps from now on."""
        check(self._call("set_accumulate", self._live(), as_int(k, "k")))

    def micro(self) -> int:
        """How many micro-steps of this step have ended."""
        return check(self._call("micro", self._live()))

    def set_codec(self, tensor: Union[str, int], codec: Optional[str]) -> None:
        """Another codec from the next step on; residuals stay. On all ranks alike."""
        check(self._call("set_codec", self._live(), self._tensor(tensor), c_char_p(text(codec, "codec"))))

    def codec(self, tensor: Union[str, int]) -> str:
        """The tensor's codec."""
        found = self._call("codec", self._live(), self._tensor(tensor))
        if found is None:
            raise KeyError(f"there is no tensor {tensor!r}")
        return found.decode()

    def scale_residuals(self, factor: float) -> None:
        """The next step multiplies all residuals: old over new learning rate."""
        check(self._call("scale_residuals", self._live(), c_double(factor)))

    def residual(self, tensor: Union[str, int]) -> Optional[memoryview]:
        """A copy of its residual, as floats; None: it has no codec."""
        index = self._tensor(tensor)
        found = self._call("residual", self._live(), index)
        return memoryview(ctypes.string_at(found, 4 * self._keep[1][index.value].count)).cast("f") if found else None

    def stats(self) -> Dict[str, Any]:
        """A dict of the members of struct banyan_buckets_stats: wire_bytes, hidden_s, exposed_s, and so on."""
        return fill(BucketsStats, _lib.banyan_buckets_stats, self._live())

    def tensor_stats(self, tensor: Union[str, int]) -> Dict[str, Any]:
        """The same of a tensor in the latest step: norm, wire_bytes, hidden_s, exposed_s, bucket."""
        return fill(BucketsTensorStats, _lib.banyan_buckets_tensor_stats, self._live(), self._tensor(tensor))

    def profile(self, path: str) -> None:
        """Writes the input of banyan_topo predict; needs the setting profile."""
        check(self._call("profile", self._live(), c_char_p(text(path, "path"))))


class Accordion(_Model):
    """Little compression while a tensor's gradients change fast, much while they do not. settings: the members of struct
    banyan_accordion_config, such as interval, little="none", much="topk:delta=0.01". Collective."""

    _prefix, _struct = "accordion", AccordionConfig

    def observe(self, tensor: Union[str, int]) -> None:
        """This rank's gradient of it is complete, and not yet reduced."""
        check(self._call("observe", self._live(), self._tensor(tensor)))

    def step(self, rate: float) -> int:
        """Ends a step with this learning rate; how many tensors changed their level."""
        return check(self._call("step", self._live(), c_double(rate)))

    def codec(self, tensor: Union[str, int]) -> str:
        """The codec of the tensor's level: give it to Buckets.set_codec."""
        found = self._call("codec", self._live(), self._tensor(tensor))
        if found is None:
            raise KeyError(f"there is no tensor {tensor!r}")
        return found.decode()

    def apply(self, buckets: Buckets) -> List[str]:
        """Sets buckets' codecs where they differ; the names of these tensors."""
        changed = [name for name in self._index if buckets.codec(name) != self.codec(name)]
        for name in changed:
            buckets.set_codec(name, self.codec(name))
        return changed


class Outer(_Model):
    """Local steps, and now and then an average of what they changed, a fragment of the model at a time: DiLoCo, local SGD, SparseLoCo.
    tensors: the parameters, which become rank 0's. settings: the members of struct banyan_outer_config: period, fragments, delay,
    warm_up, momentum, rate, merge, residual, codec, rules, adaptive, weighted, seed. Collective."""

    _prefix, _struct = "outer", OuterConfig

    def step(self, loss: float = 0.0, weight: float = 1.0) -> bool:
        """Behind a local step, of that loss and weight (its tokens, with weighted=1); whether an average was merged."""
        return bool(check(self._call("step", self._live(), c_double(loss), c_double(weight))))

    def move(self, comm: Any) -> None:
        """To another communicator: after shrink or grow. Collective; ranks that are new there make an Outer."""
        before, self._keep = self._keep, (comm, *self._keep)
        check(self._call("move", self._live(), comm._live()))
        self._keep = comm, before[-1]

    def finish(self) -> None:
        """Averages once more: all ranks have the same parameters. Collective."""
        check(self._call("finish", self._live()))

    def settle(self) -> None:
        """Ends an average in flight, before save(). Collective."""
        check(self._call("settle", self._live()))
