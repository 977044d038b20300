# SPDX-License-Identifier: BSD-3-Clause
"""An ensemble that answers although some of it is slow or dead: rank 0 asks, every other rank has a classifier of
handwritten digits of its own (trained on its own half of the data), and the sum of the first k answers decides. Nobody
waits for the rest.

    banyan_run --keep-going -n 6 python3 ensemble.py --k 3 --slow 2 --die 4"""
import argparse
import os
import signal
import sys
import time

import numpy as np

import banyan
import banyan.objects

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_digits", "digits.csv")
CLASSES, BATCH, ROUNDS, NEIGHBOURS = 10, 64, 12, 5


def digits():
    """Training set and test set: (pixels, labels) of each."""
    rows = np.loadtxt(DIGITS, delimiter=",", dtype="float32")
    x, y = rows[:, :-1] / 16, rows[:, -1].astype(int)
    cut = len(x) - BATCH * ROUNDS // 2
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


class Nearest:
    """Votes of the nearest neighbours in half of the data, which half being this member's own."""

    def __init__(self, x, y, seed):
        keep = np.random.default_rng(seed).permutation(len(x))[:len(x) // 2]
        self.x, self.y = x[keep], np.eye(CLASSES, dtype="float32")[y[keep]]

    def votes(self, q):
        far = (q ** 2).sum(1)[:, None] - 2 * q @ self.x.T + (self.x ** 2).sum(1)
        return self.y[np.argsort(far, 1)[:, :NEIGHBOURS]].sum(1)


def ask(store, size, k, x, y):
    """Returns the share of right answers, and how often each member was among the first k."""
    right, used = 0, np.zeros(size, int)
    for i in range(ROUNDS):
        rows = np.arange(i * BATCH, (i + 1) * BATCH) % len(x)
        answers = [f"answer {i} {r}" for r in range(1, size)]
        store.put(f"query {i}", x[rows])
        store.reduce(f"sum {i}", answers, BATCH * CLASSES, banyan.F32, k=k)
        votes = np.frombuffer(store.get(f"sum {i}"), "float32").reshape(BATCH, CLASSES)
        right += int((votes.argmax(1) == y[rows]).sum())
        used[1:] += store.contributors(f"sum {i}", size - 1)
    return right / (BATCH * ROUNDS), used


def answer(store, rank, args, train):
    member = Nearest(*train, seed=rank)
    for i in range(ROUNDS):
        query = np.frombuffer(store.get(f"query {i}"), "float32").reshape(BATCH, -1)
        if rank == args.slow:
            time.sleep(0.2)
        if rank == args.die and i == ROUNDS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        store.put(f"answer {i} {rank}", member.votes(query))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--k", type=int, default=3, help="answers that are waited for")
    p.add_argument("--slow", type=int, help="rank that takes 0.2 s for each query")
    p.add_argument("--die", type=int, help="rank that is killed halfway")
    args = p.parse_args()
    train, test = digits()
    comm, share, used = banyan.Comm.from_env(), None, None
    with banyan.objects.Store(comm) as store:
        if comm.rank:
            answer(store, comm.rank, args, train)
        else:
            share, used = ask(store, comm.size, args.k, *test)
    comm.destroy()  # the barrier of finalize would raise the death of a member
    if share is None:
        return 0
    print(f"{share:.1%} right; of {ROUNDS} queries the members answered in time: {used[1:].tolist()}")
    return 0 if share > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
