# SPDX-License-Identifier: BSD-3-Clause
"""banyan_perf as it is, on four ranks, under the launchers that users have: Open MPI's and MPICH's mpirun, and processes with
torchrun's variables. Usage: test_launchers.py BANYAN_PERF"""
import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

PERF = sys.argv[1]
RANKS = 4
COMMAND = [PERF, "allreduce", "-b", "4", "-e", "64K", "-f", "16"]
SIZES = ["4", "64", "1024", "16384"]
LIMIT_S = 90


class Launchers(unittest.TestCase):
    def run(self, result=None):
        """With a home of its own for the cookie."""
        with tempfile.TemporaryDirectory() as self.home:
            return super().run(result)

    def finish(self, jobs):
        """Outputs of the processes, which must all end well."""
        ends = tap.finish(jobs, LIMIT_S)
        for status, stdout, stderr in ends:
            self.assertEqual(status, 0, stdout + stderr)
        return "".join(stdout for _, stdout, _ in ends)

    def start(self, *command, **env):
        return tap.start(*command, HOME=self.home, **env)

    def check(self, text):
        rows = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
        self.assertEqual([row[0] for row in rows], SIZES, text)
        self.assertIn(f"allreduce, {RANKS} ranks, transport shm", text)
        self.assertIn("# Out of bounds values : 0 OK", text)

    def mpirun(self, name, *options):
        if not shutil.which(name):
            self.skipTest(f"{name} is not installed")
        self.check(self.finish([self.start(name, *options, "-n", str(RANKS), *COMMAND)]))

    def test_open_mpi(self):
        self.mpirun("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe")

    def test_mpich(self):
        self.mpirun("mpirun.mpich")

    def test_torchrun_variables(self):
        port = str(tap.free_port())
        self.check(self.finish([self.start(*COMMAND, RANK=str(rank), LOCAL_RANK=str(rank),
                                           WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                                           MASTER_PORT=port) for rank in range(RANKS)]))

    def test_torchrun_within_mpirun(self):
        """As with srun --mpi=pmix: its workers inherit what torchrun itself was told, here that it is one of one."""
        job = " ".join(f"RANK={rank} LOCAL_RANK={rank} {' '.join(COMMAND)} &" for rank in range(RANKS))
        started = 0
        for name, *options in ("mpirun.mpich",), ("mpirun.openmpi", "--allow-run-as-root"):
            if shutil.which(name):
                started += 1
                self.check(self.finish([self.start(name, *options, "-n", "1", "sh", "-c", job + " wait", TORCHELASTIC_RUN_ID="none",
                                                   WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(tap.free_port()))]))
        if not started:
            self.skipTest("no mpirun is installed")


if __name__ == "__main__":
    tap.main(Launchers)
