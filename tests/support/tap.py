# SPDX-License-Identifier: BSD-3-Clause
"""Runs unittest cases and prints TAP, so that every skip is counted by its name; and what tests that start processes share."""
import os
import signal
import socket
import subprocess
import sys
import unittest

# What another launcher, around this test, may have left.
FOREIGN = ("BANYAN_", "OMPI_", "PMI", "SLURM_", "MPIR_", "HYD")
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def environment(**more):
    """This one without a launcher's variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in TORCHRUN}
    # The launchers' own libraries keep memory until exit.
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return {**env, **more}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(*command, **env):
    """A process in a group of its own; its output can be read."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env=environment(**env))


def finish(jobs, limit_s):
    """(exit status, stdout, stderr) of each; none is left when this returns."""
    try:
        out = [job.communicate(timeout=limit_s) for job in jobs]
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()
    return [(job.returncode, stdout, stderr) for job, (stdout, stderr) in zip(jobs, out)]


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


def main(*cases):
    """All tests of these classes. Does not return."""
    tests = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(c) for c in cases)
    print("TAP version 13", f"1..{tests.countTestCases()}", sep="\n", flush=True)
    sys.exit(not unittest.TextTestRunner(resultclass=Verbose).run(tests).wasSuccessful())
