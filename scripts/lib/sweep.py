# SPDX-License-Identifier: BSD-3-Clause
"""A script that leaves no process behind, however it ends: its launchers' ranks leave the process group, and spin on when their
launcher is gone. Linux hands children whose parent is gone to the nearest process that asked for them; guard() asks."""
import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def prctl(what, value):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(what, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def children():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb") as f:
                parent = f.read().rpartition(b")")[2].split()[1]
        except OSError: # it has ended
            continue
        if int(parent) == os.getpid():
            found.append(int(pid))
    return found


def reap(seconds, signum):
    """Whether no child is left. A child's id is nobody else's until it is reaped here, so the signal meets no stranger."""
    deadline = time.monotonic() + seconds
    told = set()
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        for pid in children():
            if pid not in told:
                os.kill(pid, signum)
                told.add(pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(.01)


def sweep(seconds=3):
    """Ends this process's children, and theirs, which become ours; those that do not go in so many seconds are killed.
    Launchers remove their files and shared memory when they are asked to go."""
    if not reap(seconds, signal.SIGTERM):
        reap(10, signal.SIGKILL)


def ended(signum, seconds):
    sweep(seconds)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def guard():
    """To be called first, by a process of one thread: goes on in a child, while this process waits for it and then ends what it
    left. Signals and the parent's death end all (nohup: the parent's death does not). Each of the two ends what there is if
    the other is killed."""
    sys.stdout.flush()
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    worker = os.fork()
    for signum in ENDS:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda signum, _: ended(signum, 8 if os.getpid() == keeper else 3))
    if not worker:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != keeper:
            os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    if not worker:
        return
    status = os.waitpid(worker, 0)[1]
    sweep()
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in ENDS:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(keeper, os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))
