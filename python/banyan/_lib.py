# SPDX-License-Identifier: BSD-3-Clause
"""The library over ctypes: its constants, structures and errors, and the conversion of numbers and texts."""
import ctypes
import operator
import os
import pathlib
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, List, Optional

# enum banyan_dtype, enum banyan_op_kind, enum banyan_error: the order of banyan.h.
(F32, F64, F16, BF16, I8, U8, I32, U32, I64, U64, BOOL, I16, U16, C64, C128, F8E4M3, F8E5M2) = range(17)
ANY_SOURCE = -1
SPLIT_HOST = -2**31
SUM, AVG, MIN, MAX, PROD, BAND, BOR, BXOR = range(8)
(OK, EINVAL, ENOMEM, ETIMEDOUT, ERANKDEAD, EMISMATCH, EABORTED, EPROTO, ENOTSUP, ESYSTEM, EFORK,
 EBUSY, EVERSION, ECONFIG) = range(14)

DTYPES = ("f32", "f64", "f16", "bf16", "i8", "u8", "i32", "u32", "i64", "u64", "bool", "i16", "u16", "c64", "c128",
          "f8e4m3", "f8e5m2")
OPS = ("sum", "avg", "min", "max", "prod", "band", "bor", "bxor")
ITEM_BYTES = (4, 8, 2, 2, 1, 1, 4, 4, 8, 8, 1, 2, 2, 8, 16, 1, 1)

ProgressHook = ctypes.CFUNCTYPE(None, c_void_p)
Allgather = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)


class Config(ctypes.Structure):
    """struct banyan_config"""
    _fields_ = [
        ("size", c_size_t), ("init_timeout_s", c_double), ("op_timeout_s", c_double),
        ("transport", c_char_p), ("schedule", c_char_p), ("codec", c_char_p), ("ifname", c_char_p),
        ("port_range", c_char_p), ("chunk_bytes", c_size_t), ("progress_thread", c_int),
        ("progress_cpu", c_int), ("deterministic", c_int), ("progress_hook", ProgressHook),
        ("progress_hook_ctx", c_void_p), ("allgather", Allgather), ("allgather_ctx", c_void_p),
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


class Stats(ctypes.Structure):
    """struct banyan_stats"""
    _fields_ = [("size", c_size_t)] + [(name, c_uint64) for name in (
        "ops", "wire_bytes", "messages", "copied_bytes", "sleeps", "replaced", "moved", "staged_bytes", "pinned_bytes",
        "sums_asked", "sums_by_arrival")]


class RequestStats(ctypes.Structure):
    """struct banyan_request_stats"""
    _fields_ = [("size", c_size_t), ("wire_bytes", c_uint64), ("start_ns", c_uint64), ("end_ns", c_uint64)]


class Error(RuntimeError):
    """A call failed. code: the positive BANYAN_E* value; text: the sentence that says what to do."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code, self.text = code, text


def _candidates() -> List[str]:
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
    prefixes = (_moved_prefix(_where), _where.PREFIX)
    installed = [os.path.join(prefix, _where.LIBDIR, "libbanyan.so.1") for prefix in prefixes if prefix]
    return [name for name in installed if _is_trusted(name)] + ["libbanyan.so.1"]


def _moved_prefix(where) -> Optional[str]:
    """The prefix that this module lies in: installations may be moved as a whole."""
    here = pathlib.Path(__file__).resolve().parent
    inside = pathlib.Path(os.path.relpath(where.PACKAGE, where.PREFIX)).parts
    return str(here.parents[len(inside) - 1]) if here.parts[-len(inside):] == inside else None


def _is_trusted(name: str) -> bool:
    """Does it exist, and can only this user, root and who can change this module change it?"""
    try:
        own, other = os.stat(__file__), os.stat(name)
    except OSError:
        return False
    return other.st_uid in (0, os.geteuid(), own.st_uid) and not other.st_mode & 0o002 & ~own.st_mode


def _load(soname: str, names: List[str]) -> ctypes.CDLL:
    failures = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as why:
            failures.append(str(why))
    raise ImportError(f"{soname} cannot be loaded ({'; '.join(failures)}); install it, or "
                      "set BANYAN_LIBRARY to the path of libbanyan.so.1")


lib = _load("libbanyan.so.1", _candidates())
lib.banyan_last_error.restype = c_char_p
lib.banyan_version_string.restype = c_char_p
lib.banyan_strerror.restype = c_char_p


def load_beside(name: str) -> ctypes.CDLL:
    """Another library of this project: beside libbanyan, or in its own folder of the build tree."""
    soname, folder = f"lib{name}.so.1", pathlib.Path(lib._name).parent
    places = []
    if "/" in lib._name:
        places = [folder / soname] if (folder / soname).exists() else [
            place for where in ("*", "integrations/*") for place in folder.glob(f"{where}/{soname}")]
    return _load(soname, [str(place) for place in places] or [soname])


def check(rc: int) -> int:
    """Returns rc, or raises what the library says about it."""
    if rc < 0:
        text = (lib.banyan_last_error() or b"").decode("utf-8", "replace")
        raise Error(-rc, text or lib.banyan_strerror(c_int(rc)).decode())
    return rc


def whole(value: Any, bits: int, signed: bool, what: str) -> int:
    """value as an int that fits the C type: ctypes itself would cut it off."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {type(value).__name__}") from None
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= number <= high:
        raise ValueError(f"{what}: {number} is not in [{low}, {high}]")
    return number


def as_int(value: Any, what: str) -> c_int:
    return c_int(whole(value, 32, True, what))


def as_size(value: Any, what: str) -> c_size_t:
    return c_size_t(whole(value, 64, False, what))


def text(value: Any, what: str) -> Optional[bytes]:
    """None or bytes for a char *, which ctypes would also make of a number."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what}: {value!r} has a NUL in it")
    return value.encode()


def named(value: Any, names: tuple, what: str) -> int:
    """A constant, or its name: banyan.SUM or "sum"."""
    if isinstance(value, str):
        if value not in names:
            raise ValueError(f"{what}: {value!r} is none of {', '.join(names)}")
        return names.index(value)
    return whole(value, 32, False, what)


def fill(struct: Any, call: Any, *before: Any) -> dict:
    """What a call writes to a structure that begins with its size, as a dict."""
    out = struct(ctypes.sizeof(struct))
    check(call(*before, byref(out)))
    return {name: getattr(out, name) for name, _ in struct._fields_[1:]}
