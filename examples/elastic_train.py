# SPDX-License-Identifier: BSD-3-Clause
"""Training that survives, in Python: a small network on handwritten digits, data-parallel over ranks of which any may die
at any time. Those who are left go back to the last step that all agreed on and go on; ranks that are started again join
them. docs/failures.md explains it by the same program in C.

    banyan_run --keep-going -n 4 python3 elastic_train.py --die 2@30 --die 0@100
    banyan_run --restart 1 -n 4 python3 elastic_train.py --die 1@30 --die 2@30 --wait-at 60"""
import argparse
import json
import os
import signal
import subprocess
import sys

import numpy as np

import banyan

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, CLASSES, BATCH, RATE, MOMENTUM, JOIN_S, TRIES, STOP_S = 32, 10, 64, 0.1, 0.9, 10, 3, 20
# What the others cannot mend by going on without this rank.
GO_ON = (banyan.ERANKDEAD, banyan.EABORTED, banyan.ETIMEDOUT)


class Network:
    """Pixels, a hidden layer of tanh, softmax. All parameters are views of one vector."""

    def __init__(self, inputs, rng):
        shapes = (inputs, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)
        self.ends = np.cumsum([np.prod(s) for s in shapes])
        self.shapes = shapes
        self.vector = np.zeros(self.ends[-1], np.float32)
        for part in self.parts(self.vector)[::2]:
            part[:] = rng.standard_normal(part.shape) / np.sqrt(len(part))

    def parts(self, vector):
        return [v.reshape(s) for v, s in zip(np.split(vector, self.ends[:-1]), self.shapes)]

    def loss(self, x, y, gradient):
        """The sum over the examples; adds its gradient. Returns the loss and how many were right."""
        w1, b1, w2, b2 = self.parts(self.vector)
        g1, c1, g2, c2 = self.parts(gradient)
        h = np.tanh(x @ w1 + b1)
        z = h @ w2 + b2
        right = int((z.argmax(1) == y).sum())
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        loss = -float(np.log(p[np.arange(len(y)), y] + 1e-30).sum())
        p[np.arange(len(y)), y] -= 1
        g2 += h.T @ p
        c2 += p.sum(0)
        back = (p @ w2.T) * (1 - h * h)
        g1 += x.T @ back
        c1 += back.sum(0)
        return loss, right


class Trainer:
    def __init__(self, args):
        self.args = args
        data = np.loadtxt(args.data, delimiter=",", dtype=np.float32)
        self.x, self.y = data[:, :-1] / 16, data[:, -1].astype(int)
        self.test = len(self.y) // 5  # the last fifth
        self.net = Network(self.x.shape[1], np.random.default_rng(1))
        self.velocity = np.zeros_like(self.net.vector)
        self.step = self.undone = self.joined = self.tries = 0
        self.fresh = banyan.job_restarts() > 0  # came, and has no parameters yet
        self.world_rank, self.world = int(os.environ["BANYAN_RANK"]), int(os.environ["BANYAN_WORLD_SIZE"])
        self.comm = banyan.Comm.join() if self.fresh else banyan.Comm.from_env()
        self.keep()

    # what all agreed on

    def keep(self):
        self.kept = self.step, self.net.vector.copy(), self.velocity.copy()
        self.tries = 0

    def go_back(self):
        self.undone += self.step - self.kept[0]
        self.step, self.net.vector[:], self.velocity[:] = self.kept

    # a step

    def mine(self, examples):
        """However many ranks are left, all examples are taken."""
        return examples[self.comm.rank::self.comm.size]

    def one_step(self):
        """The batch depends on the step alone, so that a step can be done again, by others."""
        if (self.world_rank, self.step) in self.args.die and not banyan.job_restarts():
            os.kill(os.getpid(), signal.SIGKILL)
        if (self.world_rank, self.step) in self.args.stop:
            self.args.stop.clear()
            subprocess.Popen(["sh", "-c", f"sleep {STOP_S}; kill -CONT {os.getpid()}"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
            os.kill(os.getpid(), signal.SIGSTOP)
        train = len(self.y) - self.test
        batch = np.random.default_rng(self.step).choice(train, BATCH, replace=False)
        gradient = np.zeros_like(self.net.vector)
        own = self.mine(batch)
        self.net.loss(self.x[own], self.y[own], gradient)
        self.comm.allreduce(gradient)
        self.velocity = MOMENTUM * self.velocity + gradient / BATCH
        self.net.vector -= np.float32(RATE) * self.velocity
        self.step += 1

    def evaluate(self):
        """Loss over what was trained on, and the share of the rest that is right."""
        train, sums = len(self.y) - self.test, np.zeros(2)
        for i, part in enumerate((range(train), range(train, len(self.y)))):
            own = self.mine(np.array(part))
            sums[i] = self.net.loss(self.x[own], self.y[own], np.zeros_like(self.net.vector))[i]
        self.comm.allreduce(sums)
        self.result = sums[0] / train, sums[1] / self.test

    # who is there

    def meet(self):
        """Who is left, by the number at the start; and who came gets what the others have."""
        everybody = np.empty((self.comm.size, 2), np.int32)
        self.comm.allgather(np.array([self.world_rank, -1 if self.fresh else self.step], np.int32), everybody)
        self.members = everybody[:, 0].tolist()
        root = next((r for r in range(self.comm.size) if everybody[r, 1] >= 0), None)
        if root is None:
            sys.exit("elastic_train: all who had the parameters have died")
        if (everybody[:, 1] < 0).any():
            at = np.array([self.step, self.undone, self.joined], np.int32)
            for what in at, self.net.vector, self.velocity:
                self.comm.broadcast(what, root)
            self.step, self.undone, self.joined = at.tolist()
            if self.fresh:
                self.keep()
            self.fresh = False

    def shrink(self):
        smaller = self.comm.shrink()
        self.tries = self.tries + 1 if smaller.size == self.comm.size else 0
        self.comm.destroy()
        self.comm = smaller
        if self.tries > TRIES:
            sys.exit("elastic_train: nobody dies, and still it fails")

    def grow(self, newcomers):
        """Whether they are there. Where not, all go on as before; or the next operation tells that somebody died."""
        try:
            ident = self.comm.grow_id() if self.comm.rank == 0 else None
            larger = self.comm.grow(newcomers, ident, init_timeout_s=JOIN_S)
        except banyan.Error as e:
            print("elastic_train: not grown:", e.text, file=sys.stderr)
            return False
        self.comm.destroy()
        self.comm = larger
        self.joined += newcomers
        return True

    # the loop

    def attempt(self, met):
        """Whether a round went well here. What only this rank got wrong ends it; the others go on."""
        try:
            if not met:
                self.meet()
            if self.step == self.args.wait_at and self.comm.size < self.world:
                return True  # until all are back
            if self.step == self.args.steps:
                self.evaluate()
            else:
                self.one_step()
        except banyan.Error as e:
            if e.code in GO_ON:
                return False
            raise
        return True

    def agree(self, well):
        """What all say, and who is dead. Where somebody did not come in time it did not go well: shrink leaves it out."""
        # One bit for "it went well", and as many ones as processes wait: the AND has as many as all see.
        try:
            return self.comm.agree(well | ((1 << min(banyan.job_waiting(), 60)) - 1) << 1)
        except banyan.Error as e:
            if e.code != banyan.ETIMEDOUT:
                raise
            return 0, []

    def train(self):
        met = done = False
        while not done:
            last = self.step == self.args.steps
            word, dead = self.agree(self.attempt(met))
            met = bool(word & 1) and not dead
            done = met and last
            if word & 1:
                self.keep()
            else:
                self.go_back()
            if not met:
                self.shrink()
            elif not done and word >> 1:
                met = not self.grow(bin(word >> 1).count("1"))


def death(word):
    rank, step = word.split("@")
    return int(rank), int(step)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--die", type=death, action="append", default=[], metavar="RANK@STEP",
                   help="this rank, as numbered at the start, kills itself before this step")
    p.add_argument("--stop", type=death, action="append", default=[], metavar="RANK@STEP",
                   help=f"this rank stops before this step, for {STOP_S} s; try it with BANYAN_OP_TIMEOUT=2")
    p.add_argument("--wait-at", type=int, default=-1, metavar="STEP", help="before this step wait until all are back")
    p.add_argument("--data", default=os.path.join(HERE, "train_digits", "digits.csv"))
    t = Trainer(p.parse_args())
    t.train()
    if t.comm.rank == 0:
        lost = sorted(set(range(t.world)) - set(t.members))
        print(json.dumps({"left": t.comm.size, "lost": lost, "joined": t.joined, "undone": t.undone,
                          "loss": t.result[0], "test_accuracy": t.result[1]}))
    t.comm.finalize()


if __name__ == "__main__":
    main()
