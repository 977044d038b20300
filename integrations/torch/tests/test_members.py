# SPDX-License-Identifier: BSD-3-Clause
"""Groups whose ranks die, and go on: without them, with others, or started again by torchrun."""
import datetime
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import common

SHM = pathlib.Path("/dev/shm")


def total(group=None):
    x = torch.ones(1000)
    dist.all_reduce(x, group=group)
    return x[0].item()


def wait_for_death(rank):
    with pytest.raises(dist.DistBackendError, match=f"rank {rank}"):
        while True:
            total()


def shrinks():
    rank = dist.get_rank()
    part = dist.new_group([0, 2])
    assert total() == 3
    if rank == 1:
        os._exit(0)
    wait_for_death(1)
    assert total(part) == 2                                # a group without the dead rank is not harmed
    dist.shrink_group([1])
    assert dist.get_world_size() == 2 and dist.get_rank() == rank // 2
    assert total() == 2
    assert total(dist.new_group([0, 1])) == 2
    dist.barrier()


def shrinks_in_an_operation():
    """SHRINK_ABORT ends what other ranks left unfinished."""
    rank = dist.get_rank()
    if rank == 1:
        os._exit(0)
    works = [dist.irecv(torch.empty(3), 2 - rank, tag=5)]
    dist.shrink_group([1], shrink_flags=1)
    with pytest.raises(dist.DistBackendError):
        works[0].wait()
    assert total() == 2


def groups_are_made_in_time():
    """The timeout of new_group counts, not that of the group it is made from."""
    rank = dist.get_rank()
    if rank == 0:
        with pytest.raises(RuntimeError, match="the timeout passed"):
            dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
        for other in 1, 2:
            dist.send(torch.ones(1), other)
    else:
        dist.recv(torch.ones(1), 0)
    assert total() == 3


@pytest.mark.parametrize("fn", [shrinks, shrinks_in_an_operation, groups_are_made_in_time], ids=lambda fn: fn.__name__)
def test_shrink(fn):
    common.run(fn, 3)


def members_change(path):
    """Three ranks; one dies and two go on, in another order; then a new one comes."""
    me = int(os.environ["RANK"])
    store = dist.FileStore(path, 4)
    dist.init_process_group("banyan", store=store, rank=min(me, 2), world_size=3, enable_reconfigure=True,
                            timeout=datetime.timedelta(seconds=60))
    with pytest.raises(RuntimeError, match=r"call reconfigure\(\) first"):
        total()
    handle = dist._get_reconfigure_handle()
    store.set(f"handle {me}", handle)

    def become(uuid, *ranks):
        dist._reconfigure(uuid, [store.get(f"handle {r}").decode() for r in ranks]).wait()
        assert dist.get_rank() == ranks.index(me) and dist.get_world_size() == len(ranks)
        assert total() == len(ranks)
    with pytest.raises(ValueError, match="not among"):
        dist._reconfigure(1, ["another"])
    with pytest.raises(ValueError, match="twice"):
        dist._reconfigure(1, [handle, handle])
    if me < 3:
        become(2, 0, 1, 2)
        if me == 1:
            os._exit(0)
        wait_for_death(1)
        become(3, 2, 0)
    become(4, 0, 3, 2)
    with pytest.raises(ValueError, match="used before"):
        dist._reconfigure(4, [handle])
    dist._reconfigure(5, {store.get(f"handle {r}").decode() for r in (0, 2, 3)}).wait()
    assert total() == 3
    dist.destroy_process_group()


def test_reconfigure(tmp_path):
    common.run(members_change, 4, str(tmp_path / "store"), backend=None)


SCRIPT = """
import os, signal, sys, torch, torch.distributed as dist
import banyan_torch; banyan_torch.register()
dist.init_process_group("banyan")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((100000,), float(rank + 1))
dist.all_reduce(x)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        dist.all_reduce(x)
os.write(1, f"sum {x[0].item()}\\n".encode())
dist.destroy_process_group()
"""


def test_torchrun_starts_a_killed_worker_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    before = set(SHM.iterdir())
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", TORCHELASTIC_ERROR_FILE=str(tmp_path / "error"))
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                           "--max-restarts=1", "--monitor-interval=0.2", script], env=env, capture_output=True, text=True,
                          timeout=common.PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 3.0") == 2, (done.stdout, done.stderr)
    assert "died" in done.stderr or "Signal 9" in done.stderr or "SIGKILL" in done.stderr, done.stderr
    left = {path for path in set(SHM.iterdir()) - before if "banyan" in path.name or "bny" in path.name}
    assert not left, left
