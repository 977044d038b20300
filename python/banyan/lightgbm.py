# SPDX-License-Identifier: BSD-3-Clause
"""LightGBM over banyan: distributed training by its own Python package, without machine lists and ports.

    with banyan.Comm.from_env() as comm, banyan.lightgbm.start(comm) as network:
        data = lightgbm.Dataset(my_rows, my_labels)           # behind start(): ranks agree on the bins
        booster = lightgbm.train({"objective": "binary", **network.params}, data)

Every rank has rows of its own, and gets the same model. LightGBM's network belongs to a thread: call start() on the one that
makes the data sets and trains, as in a worker of Dask or Spark."""
import ctypes
from ctypes import c_void_p
from typing import Any, Dict

from ._lib import check, load_beside

__all__ = ["Network", "start"]


class Network:
    """What start() returns; as a context manager it ends with stop(). params: what lightgbm.train needs besides. tree_learner
    may also be "voting" or "feature"."""

    params: Dict[str, Any]

    def __init__(self, comm: Any):
        from lightgbm import basic

        self._shim, self._lightgbm, self._comm = load_beside("banyan-lightgbm"), basic._LIB, comm
        check(self._shim.banyan_lightgbm_start(comm._live(), c_void_p(ctypes.cast(
            self._lightgbm.LGBM_NetworkInitWithFunctions, c_void_p).value)))
        self.params = {"num_machines": comm.size, "tree_learner": "data", "pre_partition": True}

    def stop(self) -> None:
        """On the thread that called start(). Does nothing the second time."""
        if self._comm is not None:
            self._comm = None
            self._lightgbm.LGBM_NetworkFree()
            check(self._shim.banyan_lightgbm_stop())

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def start(comm: Any) -> Network:
    """LightGBM of this thread communicates over comm from now on; give it a communicator of its own where the program uses comm
    itself: comm.dup(). Call it before data sets are made. All ranks."""
    return Network(comm)
