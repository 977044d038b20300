# SPDX-License-Identifier: BSD-3-Clause
"""Ray's collectives (ray.util.collective) over banyan, for numpy arrays and torch tensors in host memory. Importing this module,
in the driver and in each actor, registers the backend "banyan":

    import banyan.ray
    from ray.util import collective
    collective.init_collective_group(world_size, rank, backend="banyan", group_name="default")
    collective.allreduce(x)

The group's id, which is its secret, goes over the key-value store of Ray's cluster. examples/ray_sum.py is a complete program."""
import ctypes
import time
from typing import Any, List, Optional

import ray
import ray.experimental.internal_kv as internal_kv
from ray.util.collective.backend_registry import BackendRegistry, register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (AllGatherOptions, AllReduceOptions, BarrierOptions, BroadcastOptions, RecvOptions, ReduceOp,
                                       ReduceOptions, ReduceScatterOptions, SendOptions)

from ._buffer import Buffer, need
from ._comm import Comm, create_id
from ._lib import ITEM_BYTES, U8

__all__ = ["BanyanGroup"]
_OPS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}
_WAIT_S = 60.0  # for rank 0's id, as for the other ranks in init


class BanyanGroup(BaseGroup):
    """A group of actors; Ray makes it."""

    def __init__(self, world_size: int, rank: int, group_name: str):
        super().__init__(world_size, rank, group_name)
        # The store is the cluster's, and other jobs have groups of this name.
        key = f"banyan_group_{ray.get_runtime_context().get_job_id()}_{group_name}"
        ident = create_id() if rank == 0 else _wait_for(key, group_name)
        if rank == 0:
            internal_kv._internal_kv_put(key, ident, overwrite=True)
        try:
            self.comm = Comm.init(ident, rank, world_size)
        finally:  # here all ranks have it, or the group has failed: a later one of this name has another
            if rank == 0:
                internal_kv._internal_kv_del(key)

    @classmethod
    def backend(cls) -> str:
        return "BANYAN"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        """Without waiting for the other actors."""
        self.comm.destroy()

    def allreduce(self, tensor: List[Any], allreduce_options: Any = AllReduceOptions) -> None:
        self.comm.allreduce(_only(tensor), op=_OPS[allreduce_options.reduceOp], timeout=_seconds(allreduce_options))

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        self.comm.barrier(timeout=_seconds(barrier_options))

    def reduce(self, tensor: List[Any], reduce_options: Any = ReduceOptions) -> None:
        x = _only(tensor)
        self.comm.reduce(x, op=_OPS[reduce_options.reduceOp], root=reduce_options.root_rank, timeout=_seconds(reduce_options))

    def broadcast(self, tensor: List[Any], broadcast_options: Any = BroadcastOptions) -> None:
        self.comm.broadcast(_only(tensor), root=broadcast_options.root_rank, timeout=_seconds(broadcast_options))

    def allgather(self, tensor_list: List[List[Any]], tensor: List[Any], allgather_options: Any = AllGatherOptions) -> None:
        mine = Buffer(_only(tensor), False)
        nbytes = mine.count * ITEM_BYTES[mine.dtype]
        targets = _blocks(_only(tensor_list), mine, True)
        gathered = bytearray(nbytes * self.world_size)
        self.comm.allgather(_only(tensor), gathered, dtype=U8, timeout=_seconds(allgather_options))
        for rank, target in enumerate(targets):
            ctypes.memmove(target.pointer, bytes(gathered[rank * nbytes:(rank + 1) * nbytes]), nbytes)

    def reducescatter(self, tensor: List[Any], tensor_list: List[List[Any]],
                      reducescatter_options: Any = ReduceScatterOptions) -> None:
        mine = Buffer(_only(tensor), True)
        nbytes = mine.count * ITEM_BYTES[mine.dtype]
        blocks = _blocks(_only(tensor_list), mine, False)
        self.comm.reduce_scatter(b"".join(ctypes.string_at(b.pointer, nbytes) for b in blocks), _only(tensor), dtype=mine.dtype,
                                 op=_OPS[reducescatter_options.reduceOp], timeout=_seconds(reducescatter_options))

    def send(self, tensor: List[Any], send_options: SendOptions) -> None:
        self.comm.send(_only(tensor), send_options.dst_rank, timeout=_seconds(send_options))

    def recv(self, tensor: List[Any], recv_options: RecvOptions) -> None:
        self.comm.recv(_only(tensor), recv_options.src_rank)


def _wait_for(key: str, group_name: str) -> bytes:
    """Rank 0's id."""
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        ident = internal_kv._internal_kv_get(key)
        if ident is not None:
            return ident
        time.sleep(0.01)
    raise TimeoutError(f"rank 0 of the group {group_name!r} did not come within {_WAIT_S:.0f} s")


def _only(tensors: List[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"banyan takes one tensor of an actor, not {len(tensors)}: calls of several GPUs need NCCL")
    return tensors[0]


def _blocks(tensors: List[Any], like: Buffer, writable: bool) -> List[Buffer]:
    buffers = [Buffer(t, writable) for t in tensors]
    for rank, buffer in enumerate(buffers):
        need(buffer, like.count, f"the tensor of rank {rank}")
        if buffer.dtype != like.dtype:
            raise TypeError(f"the tensor of rank {rank} has another type of elements")
    return buffers


def _seconds(options: Any) -> Optional[float]:
    seconds = options.timeout_ms.total_seconds()
    return seconds if seconds >= 0 else None


if not BackendRegistry().is_registered("BANYAN"):
    register_collective_backend("BANYAN", BanyanGroup)
