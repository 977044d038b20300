# SPDX-License-Identifier: BSD-3-Clause
"""scripts/mpi-suites leaves no process behind. Its tests here are a program that spins, that does not mind signals, and that has
a child in a session of its own, under this machine's launchers.
Usage: test_suites.py openmpi,mpich"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import tap

MPIS = sys.argv[1].split(",")
SUITES = pathlib.Path(__file__).resolve().parents[3] / "scripts" / "mpi-suites"
LIMIT_S = 60
RANK = """#!{python}
import os, pathlib, signal, time
for signum in signal.SIGHUP, signal.SIGINT, signal.SIGTERM:
    signal.signal(signum, signal.SIG_IGN)
here, told = pathlib.Path({folder!r}), os.pipe()
if not os.fork():
    os.setsid()
    (here / f"child.{{os.getpid()}}").touch()
    os.write(told[1], b"x")
    os.closerange(0, 1000) # the launchers wait for these
    while True:
        time.sleep(1)
os.read(told[0], 1)
(here / f"rank.{{os.getpid()}}").touch()
{then}
"""
SPIN, GO = "while True: pass", "print(' No Errors')"



class Suites(unittest.TestCase):
    def setUp(self): # and before each case
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.here = pathlib.Path(self.folder.name)
        self.mark = "BANYANS_MARK=" + uuid.uuid4().hex
        self.addCleanup(self.kill, self.mark)

    def marked(self, mark=None):
        """The processes that this test started, by their environment."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if (mark or self.mark).encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError: # it has ended, or is another user's
                continue
        return found

    def kill(self, mark):
        for pid in self.marked(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def until(self, what, text):
        deadline = time.monotonic() + LIMIT_S
        while not what():
            self.assertLess(time.monotonic(), deadline, text)
            time.sleep(.02)

    def spinning(self):
        return len(list(self.here.glob("rank.*"))) >= 2

    def script(self, mpi, then, limit=LIMIT_S):
        """The command that runs one test of two ranks, as if MPICH's source had only that."""
        tests = self.here / "banyan-mpi-suites" / "mpich-4.0.2" / "test" / "mpi" / "coll"
        built = self.here / "banyan-mpi-suites" / mpi
        for folder in tests, built / "coll":
            folder.mkdir(parents=True)
        (tests / "testlist").write_text(f"rank 2 timeLimit={limit}\n", encoding="ascii")
        (built / "Makefile").touch() # so there is nothing to configure
        self.program(built / "coll" / "rank", then)
        return [sys.executable, SUITES, "--build", self.here, "--mpi", mpi, "--folder", "coll", "--quick"]

    def mpi4py(self, mpi):
        """The same as a test of mpi4py's, for which another script is started."""
        cache = self.here / "banyan-mpi-versions"
        (cache / "mpi4py" / "test").mkdir(parents=True)
        for name in "main.py", "test_rank.py":
            (cache / "mpi4py" / "test" / name).touch()
        (cache / mpi / "bin").mkdir(parents=True)
        (cache / mpi / "made").touch() # so there is nothing to install
        (cache / mpi / "lib" / "python3" / "site-packages" / "mpi4py").mkdir(parents=True)
        self.program(cache / mpi / "bin" / "python3", SPIN)
        return [sys.executable, SUITES, "--build", self.here, "--mpi", mpi, "--mpi4py", "wheel", "--ranks", "2", "--quick"]

    def program(self, path, then):
        path.write_text(RANK.format(python=sys.executable, folder=str(self.here), then=then), encoding="ascii")
        path.chmod(0o755)

    def start(self, command):
        name, value = self.mark.split("=")
        return subprocess.Popen(command, env={**os.environ, "XDG_CACHE_HOME": str(self.here), name: value},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self, command, signum):
        """Its exit status. Nothing is left some seconds after the signal."""
        job = self.start(command)
        with job:
            self.until(self.spinning, "the ranks did not start")
            job.send_signal(signum)
            self.until(lambda: not self.marked(), f"still there after signal {signum}: {self.marked()}")
        return job.returncode

    def test_signals_leave_no_process(self):
        for i, signum in enumerate([signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGKILL]):
            mpi = MPIS[i % len(MPIS)]
            with self.subTest(mpi=mpi, signal=signum.name):
                self.setUp()
                self.assertEqual(self.end(self.script(mpi, SPIN), signum), -signum)

    def test_signals_leave_no_process_of_mpi4py(self):
        for mpi, signum in zip(MPIS, [signal.SIGTERM, signal.SIGKILL]):
            with self.subTest(mpi=mpi, signal=signum.name):
                self.setUp()
                self.assertEqual(self.end(self.mpi4py(mpi), signum), -signum)

    def test_the_parents_death_leaves_no_process(self):
        for mpi in MPIS:
            with self.subTest(mpi=mpi):
                self.setUp()
                parent = "import subprocess, sys; subprocess.run(sys.argv[1:])"
                self.assertEqual(self.end([sys.executable, "-c", parent, *self.script(mpi, SPIN)], signal.SIGKILL), -signal.SIGKILL)

    def test_a_test_beyond_its_time_leaves_no_process(self):
        for mpi in MPIS:
            with self.subTest(mpi=mpi):
                self.setUp()
                with self.start(self.script(mpi, SPIN, limit=1)) as job:
                    said, _ = job.communicate(timeout=LIMIT_S)
                self.assertTrue(self.spinning(), said)
                self.assertEqual((self.marked(), job.returncode), ([], 0), said)

    def test_a_test_that_passes_leaves_no_process(self):
        """Its daemons go before the next test begins, with or without the interposer."""
        for mpi in MPIS:
            with self.subTest(mpi=mpi):
                self.setUp()
                with self.start(self.script(mpi, GO)) as job:
                    said, _ = job.communicate(timeout=LIMIT_S)
                self.assertTrue(self.spinning(), said)
                self.assertIn("1 pass with or without, 1 of them with the interposer", said)
                self.assertEqual((self.marked(), job.returncode), ([], 0), said)


if __name__ == "__main__":
    tap.main(Suites)
