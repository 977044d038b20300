# SPDX-License-Identifier: BSD-3-Clause
"""banyan_perf as it is, on four ranks, under the launchers that users have: Open MPI's and MPICH's mpirun, and processes with
torchrun's variables. Usage: test_launchers.py BANYAN_PERF"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import unittest

PERF = sys.argv[1]
RANKS = 4
COMMAND = [PERF, "allreduce", "-b", "4", "-e", "64K", "-f", "16"]
SIZES = ["4", "64", "1024", "16384"]
# What another launcher, around this test, may have left.
FOREIGN = ("BANYAN_", "OMPI_", "PMI", "SLURM_", "MPIR_", "HYD")
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
LIMIT_S = 90


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in TORCHRUN}
    # The launchers' own libraries keep memory until exit.
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return {**env, **more}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Launchers(unittest.TestCase):
    def finish(self, jobs):
        """Outputs of the processes, which must all end well; none is left when this returns."""
        try:
            out = [job.communicate(timeout=LIMIT_S) for job in jobs]
        finally:
            for job in jobs:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.communicate()
        for job, (stdout, stderr) in zip(jobs, out):
            self.assertEqual(job.returncode, 0, stdout + stderr)
        return "".join(stdout for stdout, _ in out)

    def start(self, *command, **env):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True, env=environment(**env))

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
        port = str(free_port())
        self.check(self.finish([self.start(*COMMAND, RANK=str(rank), LOCAL_RANK=str(rank),
                                           WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                                           MASTER_PORT=port) for rank in range(RANKS)]))


class Verbose(unittest.TextTestResult):
    """Lines of TAP, so that every skip is counted by its name."""

    def startTestRun(self):
        super().startTestRun()
        self.done = 0

    def line(self, verdict, test, note=""):
        self.done += 1
        print(f"{verdict} {self.done} - {test.id().split('.')[-1]}{note}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.line("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line("not ok", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.line("not ok", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line("ok", test, f" # SKIP {reason}")


if __name__ == "__main__":
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Launchers)
    print("TAP version 13", f"1..{tests.countTestCases()}", sep="\n", flush=True)
    sys.exit(not unittest.TextTestRunner(resultclass=Verbose).run(tests).wasSuccessful())
