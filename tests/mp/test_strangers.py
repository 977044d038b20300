# SPDX-License-Identifier: BSD-3-Clause
"""Another user attacks jobs from their start to their end, at all ports and abstract sockets where it listens: garbage, pieces and echoes
of handshakes, one byte at a time, floods, descriptors, squatters. Everything they add is right, and no rank is ended.
Usage: test_strangers.py BANYAN_PERF. BANYAN_TEST_SEED, and BANYAN_TEST_SCALE above 1 for more attacks."""
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

LIMIT_S = 120
NOBODY = 65534
RANKS = 3
CYCLES = 2 # sweeps of banyan_perf
ATTACKS = 500 # that must have been made
TOLD = 100 # attacks between two words of the strangers about their number
HELD = 200
LETTERS = b"bnyT", b"bnyQ", b"bnyH", b"bnyV", b"bnyS", b"bnyR", b"\x01\x62\x6e\x79"


# ---- the strangers, in a process of their own ----

class Strangers:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.held, self.slow, self.echo, self.squatted, self.attacks, self.told = [], [], [b""], [], 0, 0

    def hold(self, s):
        self.held.append(s)
        if len(self.held) > HELD:
            self.held.pop(self.rng.randrange(HELD)).close()

    def connect(self, kind, address, style):
        s = socket.socket(kind, style)
        s.settimeout(0.02)
        try:
            s.connect(address)
        except OSError:
            s.close()
            return None
        return s

    def words(self):
        """What might be the first message of some protocol."""
        r = self.rng
        if r.random() < 0.2:
            return self.echo[-1]
        text = r.choice(LETTERS) + bytes([r.randrange(16, 32), 0, r.randrange(3), 0]) + r.choice((0, 1, 2, 2**31)).to_bytes(4, "little")
        return text + r.randbytes(r.choice((16, 88, 100, 400, 5000))) if r.random() < 0.8 else r.randbytes(r.randrange(1, 300))

    def say(self, s, words, rights=()):
        try:
            if rights:
                socket.send_fds(s, [words], rights)
            else:
                s.send(words)
            answer = s.recv(4096)
            self.echo.append(answer or self.echo[-1])
        except OSError: # it is closed, or says nothing
            pass

    def at_port(self, port):
        how = self.rng.randrange(6)
        if how == 0:
            for _ in range(50):
                s = self.connect(socket.AF_INET, ("127.0.0.1", port), socket.SOCK_STREAM)
                if s:
                    self.hold(s)
            return
        s = self.connect(socket.AF_INET, ("127.0.0.1", port), socket.SOCK_STREAM)
        if not s:
            return
        if how == 1:
            self.slow.append((s, self.words()))
            return
        if how > 2:
            self.say(s, self.words())
        if how == 3: # a reset
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.close()
        else:
            self.hold(s)

    def at_name(self, name):
        s = self.connect(socket.AF_UNIX, name, self.rng.choice((socket.SOCK_SEQPACKET, socket.SOCK_STREAM)))
        if not s:
            return
        if self.rng.random() < 0.5:
            fd = os.memfd_create("short") # a file that ends before what it might stand for
            os.ftruncate(fd, self.rng.choice((0, 1, 4095)))
            self.say(s, self.words(), [fd])
            os.close(fd)
        else:
            self.say(s, self.words())
        self.hold(s)

    def squat(self, name):
        """The names beside one of the job's, and ports that it might take next."""
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            s.bind(name[:-1] + bytes([self.rng.randrange(48, 103)]))
            s.listen(4)
        except OSError:
            pass
        self.squatted = self.squatted[-50:] + [s]

    def trickle(self):
        """A byte more of each message that was begun."""
        slow, self.slow = self.slow[-HELD:], []
        for s, words in slow:
            try:
                s.send(words[:1])
                self.slow.append((s, words[1:]))
            except OSError: # it was given up
                s.close()

    def attack(self, targets):
        while True:
            with open(targets, encoding="ascii") as f:
                lines = [line.split() for line in f.read().splitlines()]
            for _ in range(20):
                if not lines:
                    break
                kind, what = self.rng.choice(lines)
                if kind == "port":
                    self.at_port(int(what))
                elif self.rng.random() < 0.2:
                    self.squat(bytes.fromhex(what))
                else:
                    self.at_name(bytes.fromhex(what))
                self.attacks += 1
            self.trickle()
            if self.attacks >= self.told + TOLD:
                self.told = self.attacks
                print(self.told, flush=True)
            if not lines:
                time.sleep(0.01)


# ---- the job ----

def processes(session):
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8") as f:
                if int(f.read().rsplit(")", 1)[1].split()[3]) == session:
                    yield path.split("/")[2]
        except OSError: # it has ended
            pass


def listeners(session):
    """Where these processes listen, a line each."""
    inodes = set()
    for pid in processes(session):
        for fd in glob.glob(f"/proc/{pid}/fd/*"):
            try:
                inodes.add(os.readlink(fd))
            except OSError:
                pass
    found = set()
    with open("/proc/net/tcp", encoding="ascii") as f:
        for line in f.read().splitlines()[1:]:
            word = line.split()
            if word[3] == "0A" and f"socket:[{word[9]}]" in inodes:
                found.add(f"port {int(word[1].split(':')[1], 16)}")
    with open("/proc/net/unix", encoding="latin-1") as f:
        for line in f.read().splitlines()[1:]:
            word = line.split()
            if len(word) > 7 and word[3] == "00010000" and word[7][0] == "@" and f"socket:[{word[6]}]" in inodes:
                found.add("name " + ("\0" + word[7][1:]).encode("latin-1").hex())
    return sorted(found)


class Job(unittest.TestCase):
    def job(self, transport, targets):
        """Runs one while it tells the strangers where it listens. Its rows and its words."""
        job = tap.start(PERF, "allreduce", "-P", str(RANKS), "--transport", transport, "-b", "4", "-e", "1M", "-f", "16", "-n", "20", "-c", "2",
                        "-N", str(CYCLES), "--no-roofline", "-J", "-", BANYAN_DEBUG="warn")
        begun = time.monotonic()
        while job.poll() is None and time.monotonic() < begun + LIMIT_S:
            with open(targets + "~", "w", encoding="ascii") as f:
                f.write("\n".join(listeners(job.pid)))
            os.replace(targets + "~", targets)
            time.sleep(0.05)
        (status, out, err), = tap.finish([job], 10)
        self.assertEqual(status, 0, err)
        rows = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([row["wrong"] for row in rows], [0] * len(rows))
        return rows, err

    def attacked(self, transport, seed):
        """Jobs run one after the other until the strangers have attacked often enough."""
        least = ATTACKS * max(1, float(os.environ.get("BANYAN_TEST_SCALE", "1")))
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 and shutil.which("setpriv") else []
        if not as_nobody:
            print("# the strangers are of this user: another's need root and setpriv")
        attacks, jobs, said = 0, 0, ""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            targets = os.path.join(folder, "targets")
            open(targets, "w", encoding="ascii").close()
            script = shutil.copy(__file__, folder) # others may not read where this one lies
            os.symlink(os.path.abspath(tap.__file__), os.path.join(folder, "tap.py"))
            strangers = subprocess.Popen([*as_nobody, sys.executable, "-B", script, "attack", targets, str(seed)], stdout=subprocess.PIPE,
                                         start_new_session=True)
            os.set_blocking(strangers.stdout.fileno(), False)
            try:
                while attacks < least or jobs == 0:
                    self.assertIsNone(strangers.poll(), "the strangers have ended")
                    self.assertLess(jobs, least / 10, f"{attacks} attacks on {jobs} jobs")
                    rows, err = self.job(transport, targets)
                    jobs, said = jobs + 1, said + err
                    told = (strangers.stdout.read() or b"").split()
                    attacks = int(told[-1]) if told else attacks
            finally:
                os.killpg(strangers.pid, signal.SIGKILL)
                strangers.communicate()
        print(f"# {transport}, seed {seed}: {attacks} attacks on {jobs} jobs of {len(rows)} rows")
        self.assertIn("which did not prove to be a rank of this job", said)

    def test_over_tcp(self):
        self.attacked("tcp", SEED)

    def test_over_shared_memory(self):
        self.attacked("shm", SEED)


if __name__ == "__main__":
    if sys.argv[1] == "attack":
        Strangers(int(sys.argv[3])).attack(sys.argv[2])
    PERF = sys.argv[1]
    SEED = int(os.environ.get("BANYAN_TEST_SEED", "20261130"), 0)
    tap.main(Job)
