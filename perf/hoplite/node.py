#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""One host of perf/hoplite/run.py: a job by banyan's object store, by its collectives, or by Ray. RANK, WORLD_SIZE and
MASTER_ADDR say which one it is. All hosts are namespaces of one machine, so that their clocks are one.

    node.py objects|static|arrival|ray JOB BYTES ROUNDS SPREAD

Jobs: broadcast, gather, reduce, allreduce of float32: each rank comes SPREAD seconds * rank / (ranks - 1) after the
start, ranks 1 to n-1 first and rank 0, which has the result, with them. Printed: seconds from the last arrival to the
last end, of each round. And three applications (Hoplite, section 5.2 to 5.4), whose workers compute (sleep) for 50 to
150 ms, the same for all:
  sgd      asynchronous parameter server: rank 0 averages the first half of the gradients to come; models of BYTES
  serving  an ensemble: a query of BYTES to all, the first half of the answers (4 KiB) decide
  rl       a model of BYTES to whom has delivered, samples (64 KiB) of the first half are taken
Printed: seconds a round."""
import json
import os
import random
import socket
import subprocess
import sys
import time

import numpy as np
try:
    import banyan
    import banyan.objects
except ImportError:
    banyan = None  # in Ray's own Python

SMALL = {"serving": 4096, "rl": 65536}
DOOR = 29500
WARM = 1  # rounds that are not counted
APPS = ("sgd", "serving", "rl")


def pause(worker, step):
    time.sleep(random.Random(worker * 1000003 + step).uniform(0.05, 0.15))


def arrival(rank, size, spread):
    return spread * (rank if rank else size // 2) / max(size - 1, 1)


def sleep_until(t):
    time.sleep(max(0, t - time.monotonic()))


class Banyan:
    """Ranks agree on a start; the slowest end counts."""

    def __init__(self, comm):
        self.comm, self.me, self.n = comm, comm.rank, comm.size

    def start(self):
        t = np.array([time.monotonic() + 0.05])
        self.comm.allreduce(t, op=banyan.MAX)
        return t[0]

    def timed(self, spread, work):
        start = self.start()
        sleep_until(start + arrival(self.me, self.n, spread))
        work()
        end = np.array([time.monotonic()])
        self.comm.allreduce(end, op=banyan.MAX)
        return end[0] - start - spread


class Objects(Banyan):
    """A name is used once: the round is part of it."""

    def __init__(self, comm):
        super().__init__(comm)
        self.store = banyan.objects.Store(comm, timeout=60)

    def close(self):
        self.store.finalize()
        self.comm.finalize()

    def array(self, name):
        return np.frombuffer(self.store.get(name), "float32")

    def reduce(self, target, names, x, k=None):
        self.store.reduce(target, names, x.size, banyan.F32, k)

    def micro(self, job, nbytes, step, spread):
        x = np.full(nbytes // 4, self.me + 1, "float32")
        names = [f"{step}/{r}" for r in range(self.n)]

        def work():
            if job != "broadcast" or self.me == 0:
                self.store.put(names[self.me], x)
            if job == "broadcast":
                self.array(names[0])
            elif job == "gather" and self.me == 0:
                [self.array(name) for name in names]
            elif job in ("reduce", "allreduce"):
                if self.me == 0:
                    self.reduce(f"{step}/sum", names, x)
                if self.me == 0 or job == "allreduce":
                    y = self.array(f"{step}/sum")
                    assert y[0] == y[-1] == self.n * (self.n + 1) / 2
        t = self.timed(spread, work)
        self.comm.barrier()
        if self.me == 0:
            for name in names[:1] if job == "broadcast" else names + [f"{step}/sum"] * (job in ("reduce", "allreduce")):
                self.store.delete(name)
        return t

    def app(self, job, nbytes, rounds):
        """Tickets tell a worker which version is its next; -1: it is over."""
        workers = range(1, self.n)
        if self.me:
            step = 0
            while True:
                version = int(self.array(f"ticket/{self.me}/{step}")[0])
                if version < 0:
                    return 0
                x = self.array(f"model/{version}")
                pause(self.me, step)
                self.store.put(f"out/{self.me}/{step}", x if job == "sgd" else np.zeros(SMALL[job] // 4, "float32"))
                step += 1
        x = np.ones(nbytes // 4, "float32")
        turn, k = {w: 0 for w in workers}, max(1, (self.n - 1) // 2)
        small = np.zeros(SMALL.get(job, nbytes) // 4, "float32")
        self.store.put("model/0", x)
        for w in workers:
            self.store.put(f"ticket/{w}/0", np.zeros(1, "float32"))
        for version in range(1, rounds + WARM + 1):
            names = [f"out/{w}/{turn[w]}" for w in workers]
            self.reduce(f"sum/{version}", names, small, k)
            got = self.array(f"sum/{version}")
            inside = self.store.contributors(f"sum/{version}", len(names))
            if job == "sgd":
                x = got / np.float32(k)
            elif job == "rl":
                [self.array(name) for name, there in zip(names, inside) if there]
            self.store.put(f"model/{version}", x)
            for w, there in zip(workers, inside):
                if there:
                    self.store.delete(f"out/{w}/{turn[w]}")
                    turn[w] += 1
                    self.store.put(f"ticket/{w}/{turn[w]}", np.full(1, version, "float32"))
            del got
            self.store.delete(f"sum/{version}")
            if version == WARM:
                began = time.monotonic()
        seconds = (time.monotonic() - began) / rounds
        for w in workers:
            self.store.put(f"ticket/{w}/{turn[w] + 1}", np.full(1, -1, "float32"))
        return seconds


class Static(Banyan):
    """The same by collectives, to which all come."""

    def __init__(self, comm, schedule=None):
        super().__init__(comm)
        self.how = {"schedule": schedule} if schedule else {}

    def close(self):
        self.comm.finalize()

    def micro(self, job, nbytes, _step, spread):
        x = np.full(nbytes // 4, self.me + 1, "float32")
        y = np.empty(x.size * self.n, "float32") if job == "gather" and self.me == 0 else None

        def work():
            if job == "broadcast":
                self.comm.broadcast(x, 0)
            elif job == "gather":
                self.comm.gather(x, y)
            elif job == "reduce":
                self.comm.reduce(x, np.empty_like(x) if self.me == 0 else None, **self.how)
            else:
                self.comm.allreduce(x, **self.how)
        return self.timed(spread, work)

    def app(self, job, nbytes, rounds):
        x = np.ones(nbytes // 4, "float32")
        small = np.zeros(SMALL.get(job, nbytes) // 4, "float32")
        every = np.empty(small.size * self.n, "float32") if self.me == 0 and job != "sgd" else None
        for step in range(rounds + WARM):
            if step == WARM:
                began = time.monotonic()
            self.comm.broadcast(x, 0)
            if self.me:
                pause(self.me, step)
            if job == "sgd":
                self.comm.reduce(x, np.empty_like(x) if self.me == 0 else None)
            else:
                self.comm.gather(small, every)
        return (time.monotonic() - began) / rounds


class Ray:
    """Rank 0 drives; an actor on each node. Arrays are views of its node's store."""

    def __init__(self, me, n):
        self.me, self.n = me, n
        master = os.environ["MASTER_ADDR"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect((master, 1))
            ip = s.getsockname()[0]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--node-ip-address", ip, "--num-cpus", "2",
                   "--object-store-memory", str(1 << 30), "--resources", json.dumps({f"host{me}": 4}),
                   "--disable-usage-stats"]
        command += ["--address", master + ":6379"] if me else ["--head", "--port", "6379", "--include-dashboard", "false"]
        if me == 0:
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            with socket.create_server((ip, DOOR)) as server:
                self.doors = [server.accept()[0] for _ in range(1, n)]
            for door in self.doors:  # one after the other
                door.send(b"1")
                door.recv(1)
            return
        with self.connect(master) as door:
            door.recv(1)
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            door.send(b"1")
            door.recv(1)  # until rank 0 ends

    @staticmethod
    def connect(master):
        for _ in range(600):
            try:
                return socket.create_connection((master, DOOR))
            except OSError:
                time.sleep(0.1)
        sys.exit("Ray's head did not start")

    @staticmethod
    def have_own_files():
        """Nodes of one machine would meet in /tmp/ray."""
        os.makedirs("/tmp/ray", exist_ok=True)
        if not os.environ.get("HOPLITE_OWN_FILES"):
            os.environ["HOPLITE_OWN_FILES"] = "1"
            os.execvp("unshare", ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /tmp/ray && exec "$@"', "sh",
                                  sys.executable, *sys.argv])

    def actors(self):
        import ray
        ray.init(address="auto", log_to_driver=False)
        while sum(node["Alive"] for node in ray.nodes()) < self.n:
            time.sleep(0.2)
        kind = ray.remote(Actor)
        made = [kind.options(resources={f"host{r}": 1}, num_cpus=0).remote(r, self.n) for r in range(self.n)]
        ray.get([a.ready.remote() for a in made])
        return made

    def micro(self, job, nbytes, _step, spread):
        import ray
        start = time.monotonic() + 0.1
        made = [a.make.remote(nbytes, start, spread) for a in self.who(job)]
        if job in ("broadcast", "gather"):
            ends = [a.take.remote(made, start, spread) for a in (self.made if job == "broadcast" else self.made[:1])]
        else:
            total = self.made[0].add.remote(made)
            ends = [a.take.remote([total], start, spread) for a in (self.made if job == "allreduce" else self.made[:1])]
        return max(ray.get(ends)) - start - spread

    def who(self, job):
        return self.made[:1] if job == "broadcast" else self.made

    def app(self, job, nbytes, rounds):
        import ray
        x = np.ones(nbytes // 4, "float32")
        k, step = max(1, (self.n - 1) // 2), {w: 0 for w in range(1, self.n)}
        model = ray.put(x)
        busy = {self.made[w].compute.remote(model, job, 0): w for w in step}
        for version in range(1, rounds + WARM + 1):
            ready, _ = ray.wait(list(busy), num_returns=k)
            got = sum(ray.get(r) for r in ready)
            if job == "sgd":
                x = got / np.float32(k)
            model = ray.put(x)
            for r in ready:
                w = busy.pop(r)
                step[w] += 1
                busy[self.made[w].compute.remote(model, job, step[w])] = w
            if version == WARM:
                began = time.monotonic()
        return (time.monotonic() - began) / rounds

    def close(self):
        for door in self.doors:
            door.close()


class Actor:
    def __init__(self, me, n):
        self.me, self.n = me, n

    def ready(self):
        return True

    def make(self, nbytes, start, spread):
        sleep_until(start + arrival(self.me, self.n, spread))
        return np.full(nbytes // 4, self.me + 1, "float32")

    def take(self, refs, start, spread):
        import ray
        sleep_until(start + arrival(self.me, self.n, spread))
        ray.get(refs)
        return time.monotonic()

    def add(self, refs):
        import ray
        total = None
        while refs:
            ready, refs = ray.wait(refs)
            x = ray.get(ready[0])
            total = np.array(x) if total is None else np.add(total, x, out=total)
        return total

    def compute(self, x, job, step):
        pause(self.me, step)
        return x if job == "sgd" else np.zeros(SMALL[job] // 4, "float32")


def main():
    backend, job, nbytes, rounds, spread = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), float(sys.argv[5])
    me, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if backend == "ray":
        Ray.have_own_files()
        it = Ray(me, n)
        if me:
            return
        it.made = it.actors()
    else:
        comm = banyan.Comm.from_env()
        it = Objects(comm) if backend == "objects" else Static(comm, None if backend == "static" else backend)
    if job in APPS:
        result = [it.app(job, nbytes, rounds)]
    else:
        result = [it.micro(job, nbytes, step, spread) for step in range(rounds + WARM)][WARM:]
    it.close()
    if me == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
