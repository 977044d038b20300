# SPDX-License-Identifier: BSD-3-Clause
"""banyan_status at a job in which one rank does not come.
Usage: test_status.py BANYAN_RUN BANYAN_STATUS"""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

RUN, STATUS = sys.argv[1:3]
STUCK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stuck.py")
PATIENCE_S = 60
RANKS = 3


class Status(unittest.TestCase):
    def setUp(self):
        self.job = None

    def tearDown(self):
        if self.job:
            for pid in self.ranks() if self.job.poll() is None else []:
                os.kill(pid, signal.SIGCONT)
            self.job.terminate()
            self.job.communicate()

    def start(self, deadline, **env):
        self.job = subprocess.Popen([RUN, "--keep-going", "-n", str(RANKS), sys.executable, STUCK, deadline],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env={**os.environ, **env})
        self.assertEqual(self.job.stdout.readline(), "stuck\n")
        return self.ranks()

    def ranks(self):
        with open(f"/proc/{self.job.pid}/task/{self.job.pid}/children", encoding="ascii") as f:
            return [int(pid) for pid in f.read().split()]

    def status(self, *options):
        return subprocess.run([sys.executable, STATUS, *options], capture_output=True, text=True)

    def until(self, what):
        """The first truth that what() returns."""
        end = time.monotonic() + PATIENCE_S
        while not (found := what()):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return found

    def asked(self, pid, is_so):
        """The status of the job of a process as soon as it is as it should be."""
        def look():
            p = self.status("--json", str(pid))
            seen = json.loads(p.stdout) if p.stdout else {}
            return (p.returncode, seen) if seen and is_so(seen) else None
        return self.until(look)

    def test_a_rank_does_not_come(self):
        pids = self.start("300", BANYAN_TRANSPORT="tcp")
        self.check_waits(pids)
        self.check_stopped(pids)
        self.check_watch(pids)

    def check_waits(self, pids):
        code, seen = self.asked(pids[0], lambda s: not s["missing"] and all(
            "op" in s["answers"][r]["communicators"][0] for r in (0, 2)))
        self.assertEqual((code, seen["ranks"], [a["pid"] for a in seen["answers"]]), (0, RANKS, pids))
        for r in (0, 2):
            op = seen["answers"][r]["communicators"][0]["op"]
            self.assertEqual((op["name"], op["seq"], op["bytes"], op["waits_for"]), ("allreduce", 1500, 56, [1]))
            self.assertRegex(seen["answers"][r]["where"], r"^allreduce 1500 of 56 B for .*s, waits for 1")
        self.assertRegex(seen["answers"][1]["where"], "^in its own code for .*s, has not called operation 1500$")
        self.assertEqual(sorted((p["from"], p["to"]) for a in seen["answers"] for p in a["pairs"]),
                         [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)])
        self.assertTrue(all(p["sent"] > 400 for a in seen["answers"] for p in a["peers"]))
        table = self.status(str(pids[1]))
        self.assertEqual((table.returncode, table.stderr), (0, ""))
        self.assertIn("3 of 3 ranks answer", table.stdout)
        self.assertIn("\nthe others wait for rank 1\n", table.stdout)
        self.assertLessEqual(max(map(len, table.stdout.splitlines())), 120)

    def check_stopped(self, pids):
        os.kill(pids[2], signal.SIGSTOP)
        table = self.until(lambda: (p := self.status(str(pids[0]))) and p.returncode == 1 and p.stdout)
        self.assertRegex(table, rf"(?m)^ +2 .* no answer, stopped \(SIGSTOP, gdb\): kill -CONT {pids[2]}$")
        os.kill(pids[2], signal.SIGCONT)

    def check_watch(self, pids):
        """It ends with the job."""
        watch = subprocess.Popen([sys.executable, STATUS, "--watch", "0.1", "--json", str(pids[0])],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        first, second = (json.loads(watch.stdout.readline()) for _ in range(2))
        self.assertEqual(first["job"], second["job"])
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(watch.wait(PATIENCE_S), 0)
        watch.stdout.close()

    def test_no_such_job(self):
        p = self.status("nosuchjob")
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("no job here is called nosuchjob", p.stderr)


if __name__ == "__main__":
    sys.argv[1:] = []
    unittest.main()
