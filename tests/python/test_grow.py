# SPDX-License-Identifier: BSD-3-Clause
"""A Python job that loses ranks and gets them back: every rank of `banyan_run --restart 1 -n N` runs this. Exit status 0
of all is a pass."""
import array
import os
import signal
import sys

import banyan

RANKS = int(os.environ["BANYAN_WORLD_SIZE"])
DYING = {1: 3, RANKS - 1: 7}  # rank at the start: step


def same(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, not {wanted!r}")


def refused(code, call, *args):
    try:
        call(*args)
    except banyan.Error as e:
        same(e.code, code, f"the code of {e.text!r}")
    else:
        sys.exit(f"{call} succeeded")


def step(comm):
    """0, or the code of what failed."""
    x = array.array("f", [1] * 1000)
    try:
        comm.allreduce(x)
    except banyan.Error as e:
        return e.code
    same(x.tolist(), [comm.size] * 1000, "sum")
    return 0


def crosswise(comm):
    """Two communicators, which every second rank shrinks in the other order."""
    pair = [comm.dup(), comm.dup()]
    order = pair[::-1] if comm.rank % 2 else pair
    shrunk = banyan.Comm.shrink_many(order)
    for one in order:
        one.destroy()
    for one in shrunk[::-1] if comm.rank % 2 else shrunk:
        same(step(one), 0, "a sum behind shrink_many")
        one.destroy()


def survive(comm):
    """On with those who are left, then with those who come back."""
    bits, dead = comm.agree(0b110)
    same(bits, 0b110, "agreed bits")
    same(len(dead), 1, "dead")
    same(comm.failed(), dead, "failed")
    left = comm.shrink()
    comm.destroy()
    same(left.size, RANKS - 1, "ranks left")
    crosswise(left)
    waiting = array.array("i", [0])
    while not waiting[0]:
        waiting[0] = banyan.job_waiting()
        left.allreduce(waiting, op=banyan.MIN)
    last = left.rank == left.size - 1
    refused(banyan.EINVAL, left.grow, 1)  # nobody has an id
    ident = left.grow_id() if last else None
    grown = left.grow(int(waiting[0]), ident, init_timeout_s=20)
    refused(banyan.EINVAL, left.grow, 1, ident)  # used
    left.finalize()
    return grown


def main():
    came = banyan.job_restarts() > 0
    if came:
        refused(banyan.ECONFIG, banyan.Comm.from_env)
        comm = banyan.Comm.join(init_timeout_s=20)
    else:
        comm = banyan.Comm.from_env(init_timeout_s=20)
    start, i, grew = comm.rank, 0, came
    while i < 10 or comm.size < RANKS:
        if grew:  # rank 0 has been there all the time
            at = array.array("i", [i])
            comm.broadcast(at, 0)
            i, grew = at[0], False
        if not came and DYING.get(start) == i:
            os.kill(os.getpid(), signal.SIGKILL)
        if step(comm):
            comm, grew = survive(comm), True
        else:
            i += 1
    comm.agree()
    comm.revoke("enough")
    while not step(comm):
        pass
    comm.destroy()


main()
