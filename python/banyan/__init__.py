# SPDX-License-Identifier: BSD-3-Clause
"""Collective communication with libbanyan, over ctypes.

    import banyan, numpy
    with banyan.Comm.from_env() as comm:          # under banyan_run, torchrun, mpirun, srun, or alone
        x = numpy.full(1000, comm.rank, "float32")
        comm.allreduce(x)                         # in place; op="sum"

Buffers are numpy arrays, torch tensors, array.array, bytearray, memoryview: objects in host memory that speak the
buffer protocol, DLPack or __array_interface__, with elements one after the other. The element type is the buffer's
own; dtype= overrides it (banyan.BF16, or "bf16", in a uint16 array). Every collective `name` has a twin `name_init`
that makes a Request, which borrows its buffers: it keeps them alive, their content is the caller's business. `await
request.start()` waits in asyncio. Failures raise banyan.Error; arguments of a wrong kind raise TypeError, buffers and
numbers that cannot serve ValueError or BufferError, before anything is sent. A blocking call is one call into C:
Python's Ctrl-C handler runs only when it returns.

Comm has the collectives, Op operations of the program, CodecState what codecs keep of a tensor. Modules:
banyan.training (gradient buckets), banyan.objects (an object store), banyan.run (the launcher).
"""
from ._comm import Comm, Request, create_id, group, job_restarts, job_waiting, version, wait_all
from ._lib import (ANY_SOURCE, AVG, BAND, BF16, BOOL, BOR, BXOR, C64, C128, EABORTED, EBUSY, ECONFIG, EFORK, EINVAL,
                   EMISMATCH, ENOMEM, ENOTSUP, EPROTO, ERANKDEAD, ESYSTEM, ETIMEDOUT, EVERSION, F8E4M3, F8E5M2, F16,
                   F32, F64, I8, I16, I32, I64, MAX, MIN, OK, PROD, SPLIT_HOST, SUM, U8, U16, U32, U64, Error)
from ._state import CodecState, Op

__all__ = [
    "Comm", "CodecState", "Error", "Op", "Request", "create_id", "group", "job_restarts", "job_waiting", "version",
    "wait_all",
    "F32", "F64", "F16", "BF16", "I8", "U8", "I32", "U32", "I64", "U64", "BOOL", "I16", "U16", "C64", "C128", "F8E4M3",
    "F8E5M2",
    "ANY_SOURCE", "SPLIT_HOST",
    "SUM", "AVG", "MIN", "MAX", "PROD", "BAND", "BOR", "BXOR",
    "OK", "EINVAL", "ENOMEM", "ETIMEDOUT", "ERANKDEAD", "EMISMATCH", "EABORTED", "EPROTO", "ENOTSUP", "ESYSTEM",
    "EFORK", "EBUSY",
    "EVERSION", "ECONFIG",
]

for _public in Comm, CodecState, Error, Op, Request:
    _public.__module__ = __name__  # tracebacks and help() name what users import
del _public
