# SPDX-License-Identifier: BSD-3-Clause
"""The flight recorder of a job in which one rank does not come: at SIGUSR2 and behind a deadline banyan_trace names that rank.
Usage: test_recorder.py BANYAN_RUN BANYAN_TRACE"""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

RUN, TRACE = sys.argv[1:3]
STUCK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stuck.py")
PATIENCE_S = 60


class Recorder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.dump = os.path.join(self.folder.name, "dump")
        self.job = None

    def tearDown(self):
        if self.job:
            self.job.kill()
            self.job.communicate()
        self.folder.cleanup()

    def start(self, deadline):
        self.job = subprocess.Popen([RUN, "-n", "3", sys.executable, STUCK, deadline], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env={**os.environ, "BANYAN_DUMP": self.dump})
        self.assertEqual(self.job.stdout.readline(), "stuck\n")

    def files(self):
        return sorted(glob.glob(self.dump + "/*.json"))

    def report(self, *options):
        p = subprocess.run([sys.executable, TRACE, "report", self.dump, *options], capture_output=True, text=True)
        self.assertEqual((p.returncode, p.stderr), (0, ""), p.stdout)
        return p.stdout

    def until(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def ranks(self):
        with open(f"/proc/{self.job.pid}/task/{self.job.pid}/children", encoding="ascii") as f:
            return [int(pid) for pid in f.read().split()]

    def check(self, report):
        odd = [r for r in json.loads(report) if r["communicator"] == 1][0]
        self.assertEqual(odd["operations"], {"0": 1501, "1": 1500, "2": 1501})
        self.assertRegex(odd["findings"][0], r"^rank 1 \(pid \d+ on .*\) has not called operation 1500, allreduce of 7 f64, which rank 0, 2 called; "
                                             r"its latest is operation 1499, allreduce of 100 f32, completed$")
        return odd

    def test_a_signal(self):
        """Rank 1 is in its own code; its control plane's thread writes."""
        self.start("300")
        self.until(lambda: [os.kill(pid, signal.SIGUSR2) for pid in self.ranks()] and len(self.files()) == 3
                   and "0 is in operation 1500" in self.report())
        odd = self.check(self.report("--json"))
        self.assertEqual(odd["failures"], {})
        with open(self.files()[0], encoding="utf-8") as f:
            entries = json.load(f)["communicators"][0]["entries"]
        self.assertEqual(len(entries), 1024)
        self.assertEqual({e["state"] for e in entries[:-1]}, {"completed"})
        self.assertTrue(all(e["duration_ms"] > 0 for e in entries[:-1]))
        self.assertEqual(sorted(e["profiling_name"] for e in entries if e["is_p2p"]), ["banyan:recv", "banyan:send"])

    def test_a_deadline(self):
        """All write, the rank that does not know of the failure included."""
        self.start("1")
        self.until(lambda: len(self.files()) == 3)
        self.until(lambda: "the deadline of allreduce" in self.report())
        odd = self.check(self.report("--json"))
        self.assertIn("rank 1 (pid", list(odd["failures"])[0])
        self.assertIn("and waits for rank", self.report("--last", "3"))

    def test_no_files(self):
        p = subprocess.run([sys.executable, TRACE, "report", self.folder.name], capture_output=True, text=True)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("was BANYAN_DUMP=", p.stderr)


if __name__ == "__main__":
    sys.argv[1:] = []
    unittest.main()
