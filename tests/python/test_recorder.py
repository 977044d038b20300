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
        self.assertTrue(all(e["duration_ms"] > 0 for e in entries if "duration_ms" in e))
        self.assertEqual(sorted(e["profiling_name"] for e in entries if e["is_p2p"]), ["banyan:recv", "banyan:send"])

        self.check_links()

    def times(self):
        def time_of(path):
            with open(path, encoding="utf-8") as f:
                return json.load(f)["time_ns"]
        return [time_of(path) for path in self.files()]

    def check_links(self):
        """Others who may write the folder do not direct what is written there to another file."""
        victim, before = os.path.join(self.folder.name, "victim"), self.times()
        with open(victim, "w", encoding="ascii") as f:
            f.write("mine")
        for path in self.files():
            os.symlink(victim, path + ".part")
        self.until(lambda: [os.kill(pid, signal.SIGUSR2) for pid in self.ranks()] and min(self.times()) > max(before))
        with open(victim, encoding="ascii") as f:
            self.assertEqual(f.read(), "mine")

    def test_a_deadline(self):
        """All write, the rank that does not know of the failure included."""
        self.start("1")
        self.until(lambda: len(self.files()) == 3)
        self.until(lambda: "the deadline of allreduce" in self.report())
        odd = self.check(self.report("--json"))
        self.assertIn("rank 1 (pid", list(odd["failures"])[0])
        self.assertIn("and waits for rank", self.report("--last", "3"))

        self.check_foreign_files()

    def check_foreign_files(self):
        """Others may write into the folder: nothing of theirs reaches the terminal as a control byte, or ends in a traceback."""
        path = self.files()[0]
        with open(path, encoding="utf-8") as f:
            dump = json.load(f)
        dump["host"] = dump["communicators"][0]["failure"] = dump["communicators"][0]["entries"][-1]["codec"] = "\x1b[2J\n\x9b2J"
        with open(path, "w", encoding="utf-8") as f:
            json.dump(dump, f)
        report = self.report("--last", "3")
        self.assertIn("?[2J??2J", report)
        self.assertFalse(set(report) & set("\x1b\x9b"))
        del dump["communicators"][0]["entries"][-1]["state"]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(dump, f)
        p = subprocess.run([sys.executable, TRACE, "report", self.dump], capture_output=True, text=True)
        self.assertEqual((p.returncode, p.stdout, p.stderr.count("\n")), (1, "", 1), p.stderr)
        self.assertIn("is damaged", p.stderr)

    def test_operations_that_found_no_place_are_counted(self):
        code = """import banyan, numpy
with banyan.Comm.from_env(transport='tcp') as c:
    x = [numpy.ones(2) for _ in range(1500)]
    requests = [c.allreduce_init(a) for a in x]
    for r in requests:
        r.start()
    for r in requests:
        r.wait()
"""
        p = subprocess.run([RUN, "-n", "2", sys.executable, "-c", code], capture_output=True, text=True,
                           env={**os.environ, "BANYAN_METRICS": self.folder.name + "/%r.prom"})
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        for rank in 0, 1:
            with open(f"{self.folder.name}/{rank}.prom", encoding="ascii") as f:
                self.assertRegex(f.read(), r'banyan_operations_total\{[^}]*operation="allreduce"[^}]*\} 1500\n')

    def test_no_files(self):
        p = subprocess.run([sys.executable, TRACE, "report", self.folder.name], capture_output=True, text=True)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("was BANYAN_DUMP=", p.stderr)


class Trace(unittest.TestCase):
    """What BANYAN_TRACE writes of a real job stands in tests/perf/test_tools.py."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = os.path.join(self.folder.name, "trace[1].json")

    def merge(self):
        return subprocess.run([sys.executable, TRACE, "merge", self.file], capture_output=True, text=True)

    def slices(self):
        with open(self.file, encoding="utf-8") as f:
            return [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]

    def test_a_program_that_does_not_end_its_communicator(self):
        code = "import banyan, numpy; c = banyan.Comm.from_env(transport='tcp'); c.allreduce(numpy.ones(300000)); c.barrier()"
        p = subprocess.run([RUN, "-n", "2", sys.executable, "-c", code], capture_output=True, text=True,
                           env={**os.environ, "BANYAN_TRACE": self.file})
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertEqual((self.merge().returncode, self.merge().stderr), (0, ""))
        names = [(e["pid"], e["name"]) for e in self.slices()]
        for rank in 0, 1:
            self.assertEqual(names.count((rank, "allreduce of 300000 f64")), 1)
            self.assertIn((rank, "wire"), names)

    def test_communicators_that_have_ended(self):
        code = """import banyan, numpy
with banyan.Comm.from_env(transport='tcp') as c:
    part = c.dup()
    for _ in range(5):
        part.allreduce(numpy.ones(5))
    part.finalize()
    c.allreduce(numpy.ones(7))
"""
        p = subprocess.run([RUN, "-n", "2", sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "BANYAN_TRACE": self.file})
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertEqual((self.merge().returncode, self.merge().stderr), (0, ""))
        names = [e["name"] for e in self.slices()]
        self.assertEqual((names.count("allreduce of 5 f64"), names.count("allreduce of 7 f64")), (10, 2))

    def write(self, rank, boot, shift, events, job="", lost=0):
        """Times in us; this rank's clock is fast by shift."""
        events = [[kind, 1, 7, 1, 7, 0, ordinal, 0, 64, peer, 0, (t + shift) * 1000, (t + shift) * 1000] for kind, peer, ordinal, t in events]
        entry = {"record_id": 1, "collective_seq_id": 7, "profiling_name": "banyan:allreduce", "is_p2p": False, "input_sizes": [[16]],
                 "input_dtypes": ["f32"], "bytes": 64, "schedule": "ring", "codec": "none", "root": -1, "time_created_ns": shift * 1000,
                 "state": "completed", "time_completed_ns": (shift + 90) * 1000, "duration_ms": 0.09}
        with open(f"{self.file}{job and '.' + job}.rank{rank}", "w", encoding="utf-8") as f:
            json.dump({"job": job, "rank": rank, "world_size": 3, "host": f"h{rank}", "pid": 1, "boot": boot, "time_ns": (shift + 100) * 1000,
                       "communicators": [{"pg_id": 1, "ranks": [0, 1, 2], "entries": [entry]}], "lost_events": lost, "events": events}, f)

    def test_clocks_of_other_hosts(self):
        """Rank 1 is a second ahead, rank 2, which talks to it alone, an hour behind; the shortest ways take 3 us, others longer."""
        post, arrive, hour = 1, 3, 3600 * 10**6
        self.write(0, "a", 0, [(post, 1, 0, 10), (post, 1, 1, 20), (arrive, 1, 2, 43)])
        self.write(1, "b", 10**6, [(arrive, 0, 0, 60), (arrive, 0, 1, 23), (post, 0, 2, 40), (post, 2, 3, 50), (arrive, 2, 4, 63)])
        self.write(2, "c", -hour, [(arrive, 1, 3, 53), (post, 1, 4, 60)])
        p = self.merge()
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        whole = [e["ts"] for e in self.slices() if e["name"] == "allreduce of 16 f32"]
        self.assertEqual(whole, [0, 0, 0])
        wire = sorted((e["pid"], e["args"]["peer"], e["ts"] + e["dur"]) for e in self.slices() if e["name"] == "wire")
        self.assertEqual(wire, [(0, 1, 23), (0, 1, 60), (1, 0, 43), (1, 2, 53), (2, 1, 63)])
        self.assertIn("(64 bytes), ring, codec none: rank 0, 90.0 us: wire-bound ", p.stdout)

    def test_several_jobs(self):
        self.write(0, "a", 0, [])
        for rank in 0, 1, 2:
            self.write(rank, "a", 1000 + rank, [], job="0123abcd")
        p = self.merge()
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("the latest job is 0123abcd; other files are of ", p.stderr)
        self.assertEqual({e["pid"] for e in self.slices()}, {0, 1, 2})
        p = subprocess.run([sys.executable, TRACE, "merge", self.file, "--job", "00000000"], capture_output=True, text=True)
        self.assertIn("no file is of job 00000000, but of ", p.stderr)

    def test_chunks_that_were_overwritten(self):
        post, arrive = 1, 3
        self.write(0, "a", 0, [(post, 1, 0, 50)], lost=9)
        self.write(1, "a", 0, [(arrive, 0, 0, 60)])
        self.write(2, "a", 0, [])
        self.assertIn("later chunks took the place of its own", self.merge().stdout)

    def draw(self, *options):
        p = subprocess.run([sys.executable, TRACE, "draw", self.file, *options], capture_output=True, text=True)
        return p.returncode, p.stdout.count("<title>"), p.stderr

    def test_pictures(self):
        post, arrive = 1, 3
        self.write(0, "a", 0, [(post, 1, 0, 10), (post, 2, 1, 20)])
        self.write(1, "a", 0, [(arrive, 0, 0, 30)])
        self.write(2, "a", 0, [(arrive, 0, 1, 70)])
        self.assertEqual(self.merge().returncode, 0)
        for options, slices in (((), 5), (("--operation", "7"), 5), (("--ranks", "1-2"), 2), (("--from", "0", "--to", "5"), 3),
                                (("--ranks", "0", "--from", "40", "--to", "60"), 2)):
            self.assertEqual(self.draw(*options), (0, slices, ""), options)
        for options, words in ((("--operation", "8"), "no operation 8 of communicator 1"), (("--ranks", "5"), "no slices of these ranks"),
                               (("--from", "900", "--to", "901"), "0 slices lie between 900 and 901"),
                               (("--from", "5", "--to", "5"), "nothing lies between 5 and 5")):
            code, slices, said = self.draw(*options)
            self.assertEqual((code, slices, said.count("\n")), (1, 0, 1), options)
            self.assertIn(words, said)
        with open(self.file, "w", encoding="utf-8") as f:
            f.write("{}")
        self.assertIn("is no trace", self.draw()[2])

    def test_files_that_are_missing_or_broken(self):
        p = self.merge()
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("was BANYAN_TRACE=", p.stderr)
        self.write(0, "a", 0, [])
        self.write(2, "c", 5, [])
        with open(self.file + ".rank1", "w", encoding="utf-8") as f:
            f.write('{"rank": 1')
        p = self.merge()
        self.assertEqual(p.returncode, 0, p.stderr)
        for words in "rank1 is left out", "2 of 3 ranks wrote: 0, 2", "no messages both ways tell the clock of rank 2 on h2":
            self.assertIn(words, p.stderr)


if __name__ == "__main__":
    sys.argv[1:] = []
    unittest.main()
