# SPDX-License-Identifier: BSD-3-Clause
"""banyan_status and BANYAN_METRICS at a job in which one rank does not come.
Usage: test_status.py BANYAN_RUN BANYAN_STATUS"""
import glob
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

RUN, STATUS = sys.argv[1:3]
HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 60
RANKS = 3

SAMPLE = re.compile(r'(banyan_\w+)\{((?:[a-z]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)$')
LABEL = re.compile(r'([a-z]\w*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def open_metrics(text):
    """{(sample, labels): value} of a page, which conforms to OpenMetrics 1.0, or AssertionError."""
    assert text.endswith("\n# EOF\n"), text[-100:]
    families, samples, family, kind = {}, {}, None, None
    for line in text[:-len("# EOF\n")].splitlines():
        if line.startswith("# "):
            word, name, rest = line[2:].split(" ", 2)
            if word == "TYPE":
                assert name not in families and rest in ("counter", "gauge"), line
                family, kind, families[name] = name, rest, set()
            else:
                assert name == family and word not in families[name], line
                assert not any(k[0].startswith(name) for k in samples), line
                assert word == "HELP" or (word == "UNIT" and name.endswith("_" + rest)), line
                families[name].add(word)
            continue
        m = SAMPLE.match(line)
        assert m and m[1] == family + {"counter": "_total", "gauge": ""}[kind], line
        labels = LABEL.findall(m[2])
        assert ",".join(f'{k}="{v}"' for k, v in labels) == m[2] and len(dict(labels)) == len(labels), line
        key = m[1], tuple(sorted(labels))
        assert key not in samples and float(m[3]) >= 0, line
        samples[key] = float(m[3])
    return samples


def classic(text):
    """The samples by the rules of Prometheus' text format 0.0.4, as node_exporter reads files, or AssertionError."""
    samples, types, helps, ended, last = {}, set(), set(), set(), None
    for line in text.splitlines():
        words = line.split(None, 3)
        if words[:2] in (["#", "TYPE"], ["#", "HELP"]):
            told = types if words[1] == "TYPE" else helps
            assert len(words) == 4 and words[2] not in told, line
            assert words[1] == "HELP" or words[3] in ("counter", "gauge", "histogram", "summary", "untyped"), line
            assert not any(name == words[2] for name, _ in samples), line
            told.add(words[2])
        elif not line.startswith("#"):
            m = SAMPLE.match(line)
            assert m and (m[1] == last or m[1] not in ended), line
            ended.add(last)
            last, key = m[1], (m[1], tuple(sorted(LABEL.findall(m[2]))))
            assert key not in samples, line
            samples[key] = float(m[3])
    return samples


def value(samples, name, **labels):
    found = [v for (n, have), v in samples.items() if n == name and labels.items() <= dict(have).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def free_ports():
    """The first of RANKS ports in a row that nobody has."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        try:
            for i in range(RANKS):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port + i))
            return port
        except (OSError, OverflowError):
            pass


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rpartition(")")[2].split()[0]


class Status(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.job = None

    def tearDown(self):
        if self.job:
            for pid in self.ranks() if self.job.poll() is None else []:
                os.kill(pid, signal.SIGCONT)
            self.job.terminate()
            self.job.communicate()
        self.folder.cleanup()

    def start(self, program, argument, **env):
        """The program prints its name when it is where the test wants it."""
        self.job = subprocess.Popen([RUN, "--keep-going", "-n", str(RANKS), sys.executable,
                                     f"{HERE}/{program}.py", argument],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env={**os.environ, **env})
        self.assertEqual(self.job.stdout.readline(), program + "\n")
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
        port = free_ports()
        pids = self.start("stuck", "300", BANYAN_METRICS=str(port), BANYAN_TRANSPORT="tcp")
        self.check_waits(pids)
        self.check_http(port)
        self.check_stopped(pids)
        self.check_all_stopped(pids)

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
        with socket.socket(socket.AF_UNIX) as deaf:  # another that has the name of a rank of this job is passed over
            deaf.bind(f"\0banyan-status-{seen['job']}-0-of-3-{os.getpid()}")
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

    def check_all_stopped(self, pids):
        """A look ends without them, --watch goes on, and it ends with the job."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.until(lambda: all(state_of(pid) == "T" for pid in pids))
        table = self.status(str(pids[0]))
        self.assertEqual((table.returncode, table.stderr), (1, ""))
        self.assertIn(": 0 of 3 ranks answer\nno rank on this host answers", table.stdout)
        for pid in pids:
            self.assertIn(f"no answer, stopped (SIGSTOP, gdb): kill -CONT {pid}\n", table.stdout)
        watch = subprocess.Popen([sys.executable, STATUS, "--watch", "0.1", "--json", str(pids[0])],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        looks = (json.loads(line) for line in watch.stdout)
        for _ in range(2):
            self.assertEqual(len(next(looks)["missing"]), RANKS)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        job = next(look["job"] for look in looks if not look["missing"])
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for _ in looks:
            pass
        self.assertEqual((watch.wait(PATIENCE_S), watch.stderr.read()), (0, f"job {job} has ended\n"))
        watch.stdout.close()
        watch.stderr.close()

    def check_http(self, port):
        # Those that send nothing block nobody for long.
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]

        def get(rank, path="/metrics"):
            c = http.client.HTTPConnection("127.0.0.1", port + rank, timeout=PATIENCE_S)
            c.request("GET", path)
            answer = c.getresponse()
            body = answer.read().decode()
            c.close()
            return answer.status, answer.headers["Content-Type"], body
        for rank in range(RANKS):
            status, kind, body = self.until(
                lambda r=rank: (got := get(r)) and 'operation="recv"} 1\n' in got[2] and got)
            self.assertEqual((status, kind), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"))
            page = self.check(body, rank)
            self.assertEqual(value(page, "banyan_replaced_connections_total", transport="tcp"), 0)
            self.assertGreater(value(page, "banyan_wire_bytes_total", transport="tcp"), 1500 * 400)
            for peer in set(range(RANKS)) - {rank}:
                self.assertGreater(value(page, "banyan_peer_sent_bytes_total", peer=str(peer)), 400)
        self.assertEqual(get(0, "/else")[0], 404)
        for rude, told in ((b"x" * 5000, b"HTTP/1.1 400 "), (b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 ")):
            with socket.create_connection(("127.0.0.1", port)) as s:
                s.sendall(rude)
                self.assertTrue(s.recv(100).startswith(told))
        for s in idle:
            s.close()

    def test_several_communicators(self):
        """A rank is shown where it works, and a communicator that has failed though nobody uses it."""
        go_on = os.path.join(self.folder.name, "go")
        pid = self.start("several", go_on)[0]

        def all_work(seen):
            return not seen["missing"] and all(a["op_per_s"] for a in seen["answers"]) and any(
                "allreduce" in a["where"] for a in seen["answers"])
        code, seen = self.asked(pid, all_work)
        self.assertEqual(code, 0)
        where = " | ".join(a["where"] for a in seen["answers"])
        self.assertNotIn("its own code", where)
        self.assertRegex(where, r"allreduce \d+ of communicator \d+ of 8 B")
        with open(go_on, "w", encoding="ascii"):
            pass
        code, seen = self.asked(pid, lambda s: not s["missing"] and all(
            a["where"].startswith("failed in communicator") for a in s["answers"]))
        self.assertEqual(code, 1)
        for a in seen["answers"]:
            self.assertIn("the test says so", a["where"])
            self.assertEqual([bool(c["failure"]) for c in a["communicators"]], [True, False])

    def test_no_such_job(self):
        p = self.status("nosuchjob")
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("no job here is called nosuchjob", p.stderr)

    def test_names_are_not_trusted(self):
        """A socket whose name has the pid of a process that does not own it is no job."""
        with socket.socket(socket.AF_UNIX) as s, subprocess.Popen(["sleep", "1000"]) as other:
            s.bind(f"\0banyan-status-deadbeef-0-of-2-{other.pid}")
            s.listen()
            p = self.status("deadbeef")
            other.kill()
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("no job here is called deadbeef", p.stderr)

    def test_an_answer_without_end_is_cut(self):
        def talk():
            for _ in range(2):
                with s.accept()[0] as to:
                    try:
                        while sum(sent) < 1 << 28:
                            sent.append(to.send(b"{}\n" * 10000))
                    except OSError:
                        pass
        sent = []
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f"\0banyan-status-feedface-0-of-2-{os.getpid()}")
            s.listen()
            talker = threading.Thread(target=talk)
            talker.start()
            p = self.status("feedface")
            talker.join()
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertLess(sum(sent), 1 << 24)

    def check(self, page, rank):
        self.assertEqual(open_metrics(page), classic(page))
        page = classic(page)
        self.assertEqual(value(page, "banyan_build_info"), 1)
        all_of = {"rank": str(rank), "host": socket.gethostname()}
        for op, n in (("allreduce", 1500), ("send", 1), ("recv", 1)):
            self.assertEqual(value(page, "banyan_operations_total", operation=op, **all_of), n)
        self.assertEqual(value(page, "banyan_operation_bytes_total", operation="allreduce"), 1500 * 400)
        self.assertEqual(value(page, "banyan_operation_bytes_total", operation="send"), 400)
        return page

    def test_metrics_in_files(self):
        """The last page has the operation that failed."""
        self.start("stuck", "300", BANYAN_METRICS=os.path.join(self.folder.name, "%r.prom"))
        os.kill(self.ranks()[1], signal.SIGKILL)
        self.job.communicate(timeout=PATIENCE_S)
        self.assertLessEqual({"0.prom", "2.prom"}, set(os.listdir(self.folder.name)))
        self.assertFalse(glob.glob(self.folder.name + "/*.part"))
        for rank in (0, 2):
            with open(f"{self.folder.name}/{rank}.prom", encoding="utf-8") as f:
                page = self.check(f.read(), rank)
            self.assertEqual(value(page, "banyan_operations_failed_total", operation="allreduce"), 1)

    def test_metrics_nowhere(self):
        for to, told in (("/proc/nowhere", "no metrics are written"), ("65536", "no metrics are served"),
                         ("99999999999999999999999", "no metrics are served")):
            p = subprocess.run([sys.executable, "-c", "import banyan; banyan.Comm.from_env().finalize()"],
                               capture_output=True, text=True, cwd=self.folder.name,
                               env={**os.environ, "BANYAN_METRICS": to})
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertRegex(p.stderr, f"BANYAN_METRICS={to}: .*; {told}")
        self.assertEqual(os.listdir(self.folder.name), [])


if __name__ == "__main__":
    sys.argv[1:] = []
    unittest.main()
