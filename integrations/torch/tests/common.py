# SPDX-License-Identifier: BSD-3-Clause
"""Runs a function on several ranks, as forked processes of this one, which has torch loaded."""
import contextlib
import faulthandler
import os
import tempfile
import traceback

import torch
import torch.distributed as dist

import banyan_torch

PATIENCE = int(os.environ.get("PATIENCE", "300"))  # seconds until a test counts as hung
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


def _rank_main(fn, rank, size, folder, backend, args):
    code = 1
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        if backend:
            dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size)
        fn(*args)
        if backend and dist.is_initialized():
            dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            os.sys.stdout.flush()
            os.sys.stderr.flush()
        os._exit(code)


def run(fn, size=2, *args, backend="banyan"):
    """Runs fn(*args) on `size` ranks in a group of `backend` (None: none). All must return."""
    banyan_torch.register()
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(size):
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
            pid = os.fork()
            if pid == 0:
                _rank_main(fn, rank, size, folder, backend, args)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * size, f"exit codes of ranks 0 to {size - 1}: {codes}"
