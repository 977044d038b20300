# SPDX-License-Identifier: BSD-3-Clause
"""A stranger on the path records the bytes of a job's connections and plays them again, whole, in part and exchanged,
to the same job and to the next one, which has the same key: as a client of every port where a rank listens, and as a
server where ranks look for their root. Nobody takes it for a rank, and what the jobs add is right.
Usage: test_replay.py BANYAN_PERF. BANYAN_TEST_SEED, and BANYAN_TEST_SCALE above 1 for more jobs."""
import collections
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
from test_strangers import listeners

LIMIT_S = 60
PORT = 29500
RANKS = 3
KEPT = 1 << 16 # bytes of a direction of a connection
FIRST_ANSWER = 112 # the longest answer to who has proven nothing
ANSWER_S = 0.02 # that a replay waits for an answer, which may not come
REPLAYS = 40 # to a rank in one state of its job
KINDS = {b"bnyT": "tcp", 1: "bootstrap", 2: "control"}
SETTINGS = "plain", "mac", "encrypt"
ETH_P_IP = 0x800
SYN, ACK = 2, 16

Session = collections.namedtuple("Session", "kind said answered")


class Recorder(threading.Thread):
    """Sees all packets of the loopback device."""

    def __init__(self):
        super().__init__(daemon=True)
        self.begun, self.pieces, self.lock, self.done = {}, collections.defaultdict(dict), threading.Lock(), False
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        self.socket.bind(("lo", ETH_P_IP))
        self.start()

    def run(self):
        while not self.done:
            packet = self.socket.recv(1 << 17)
            with self.lock:
                self.take(packet)

    def take(self, packet):
        at = (packet[0] & 15) * 4
        if packet[9] != socket.IPPROTO_TCP:
            return
        source, target, seq, _, head, flags = struct.unpack_from("!HHIIBB", packet, at)
        way = source, target
        if flags & SYN:
            self.begun[way] = (seq + 1) % 2**32, flags & ACK
        elif way in self.begun:
            offset, data = (seq - self.begun[way][0]) % 2**32, packet[at + (head >> 4) * 4:]
            if data and offset < KEPT:
                self.pieces[way].setdefault(offset, data)

    def stream(self, way):
        out = b""
        while len(out) in self.pieces[way]:
            out += self.pieces[way][len(out)]
        return out[:KEPT]

    def sessions(self):
        with self.lock:
            found = []
            for way, (_, is_answer) in list(self.begun.items()):
                said = self.stream(way)
                kind = struct.unpack_from("<H", said, 14)[0] if said[8:12] == b"bnyH" else said[:4]
                if kind in KINDS and not is_answer:
                    found.append(Session(KINDS[kind], said, self.stream(way[::-1])))
            return found


class Player:
    """Plays the sessions as a client, and as a server from a thread of its own."""

    def __init__(self, sessions, rng):
        self.sessions, self.rng, self.made, self.turned_away, self.heard = sessions, rng, 0, 0, []
        self.met = 0 # ranks that took the server for their root

    def words(self):
        """Messages of one replay, and whether they end a handshake, which the rank then has to end."""
        one, other, r = self.rng.choice(self.sessions), self.rng.choice(self.sessions), self.rng
        hello = 96 if one.kind == "tcp" else 72
        how = r.randrange(6)
        if how < 2: # as it was said, waiting for the answer or not
            return ([one.said[:hello], one.said[hello:]] if how else [one.said]), True
        if how == 2: # another's end
            return [one.said[:hello], other.said[r.choice((72, 96)):]], False
        if how == 3: # what was answered
            return [one.answered], False
        if how == 4:
            at = r.randrange(1, hello)
            return [one.said[:at], one.said[at:hello]], False
        return [one.said[:r.randrange(1, 256)]], False

    @staticmethod
    def recv(s):
        try:
            return s.recv(KEPT)
        except TimeoutError: # of another protocol, whose first message is longer
            return b""

    def play(self, port):
        words, ends = self.words()
        answer = b""
        with socket.socket() as s:
            s.connect(("127.0.0.1", port))
            self.made += 1
            try:
                for word in words[:-1]:
                    s.sendall(word)
                    s.settimeout(ANSWER_S)
                    answer += self.recv(s)
                s.sendall(words[-1])
                s.settimeout(LIMIT_S if ends else ANSWER_S)
                while ends or not answer:
                    more = s.recv(KEPT)
                    if not more:
                        break
                    answer += more
                self.turned_away += ends
            except TimeoutError:
                if ends:
                    raise AssertionError(f"port {port} keeps who repeats {words}") from None
            except OSError: # a reset
                self.turned_away += ends
        if len(answer) > FIRST_ANSWER:
            raise AssertionError(f"port {port} told {len(answer)} bytes to who repeats {words}")
        if len(answer) > 32:
            self.heard.append(answer)

    def serve(self, listener):
        answers = [x.answered for x in self.sessions if x.kind == "bootstrap"]
        while True:
            try:
                s, _ = listener.accept()
            except OSError: # it was closed
                return
            with s:
                s.settimeout(0.2)
                try:
                    s.recv(KEPT)
                    self.met += 1
                    s.sendall(answers[self.met % len(answers)])
                    while s.recv(KEPT):
                        pass
                except OSError:
                    pass


class Replay(unittest.TestCase):
    def rank(self, rank, setting, home):
        return tap.start(PERF, "allreduce", "-b", "4", "-e", "16K", "-f", "16", "-n", "20", "-c", "2", "-N", "3",
                         "--no-roofline", "-J", "-", "--transport", "tcp",
                         RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                         MASTER_PORT=str(PORT), TORCHELASTIC_RUN_ID="replay", HOME=home, BANYAN_DEBUG="warn",
                         BANYAN_INTEGRITY=setting, BANYAN_SILENT_S="60", BANYAN_SPIN_US="0")

    def ports(self, job):
        return [int(line.split()[1]) for line in listeners(job.pid) if line.startswith("port")]

    def until(self, what, jobs):
        end = time.monotonic() + LIMIT_S
        while not what():
            for job in jobs:
                self.assertIsNone(job.poll(), "a rank has ended")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)

    def until_it_adds(self, jobs, recorder):
        """Its ranks have met, so that each answers while another stands still. What was recorded until then."""
        self.until(lambda: sum(len(x.said) > 1000 and x.kind == "tcp" for x in recorder.sessions()) >= RANKS, jobs)
        recorder.done = True
        return recorder.sessions()

    def play_to(self, player, jobs):
        """To those that run, while the last one stands still, so that the job cannot end; then to the last one."""
        for stopped, targets in (jobs[-1], jobs[:-1]), (jobs[0], jobs[-1:]):
            os.kill(stopped.pid, signal.SIGSTOP)
            try:
                for job in targets:
                    ports = self.ports(job)
                    self.assertTrue(ports, "the rank has ended")
                    for _ in range(REPLAYS):
                        player.play(player.rng.choice(ports))
            finally:
                os.kill(stopped.pid, signal.SIGCONT)

    def finish(self, jobs):
        ends = tap.finish(jobs, LIMIT_S)
        for status, _, err in ends:
            self.assertEqual(status, 0, err)
        rows = [json.loads(line) for line in ends[0][1].splitlines()]
        self.assertGreater(len(rows), 0)
        self.assertEqual([row["wrong"] for row in rows], [0] * len(rows))
        return "".join(err for _, _, err in ends)

    def record(self, setting, home, rng):
        """A job whose connections are recorded, and then meets them again."""
        recorder = Recorder()
        jobs = [self.rank(r, setting, home) for r in range(RANKS)]
        try:
            player = Player(self.until_it_adds(jobs, recorder), rng)
            self.assertEqual({x.kind for x in player.sessions}, set(KINDS.values()))
            self.play_to(player, jobs)
        finally:
            said = self.finish(jobs)
        self.assertIn("which did not prove to be a rank of this job", said)
        return player

    def meet_again(self, setting, home, player):
        """The next job with the same key: its root alone, its ranks on their way to the root, and all of them."""
        with socket.create_server(("127.0.0.1", PORT + 1)) as squatter:
            threading.Thread(target=player.serve, args=[squatter], daemon=True).start()
            jobs = [self.rank(0, setting, home)]
            try:
                self.until(lambda: self.ports(jobs[0]), jobs)
                for _ in range(REPLAYS):
                    player.play(self.ports(jobs[0])[0])
                recorder = Recorder()
                jobs += [self.rank(r, setting, home) for r in range(1, RANKS)]
                self.until_it_adds(jobs, recorder)
                self.play_to(player, jobs)
            finally:
                self.finish(jobs)
                squatter.shutdown(socket.SHUT_RDWR)

    def test_nobody_believes_what_was_said_before(self):
        for i in range(int(max(1, float(os.environ.get("BANYAN_TEST_SCALE", "1"))))):
            rng, setting = random.Random(SEED + i), SETTINGS[i % len(SETTINGS)]
            with tempfile.TemporaryDirectory() as home:
                player = self.record(setting, home, rng)
                self.meet_again(setting, home, player)
            print(f"# seed {SEED + i}, integrity {setting}: {len(player.sessions)} sessions, {player.made} replays, "
                  f"{player.turned_away} turned away after a whole handshake, {len(player.heard)} answered, "
                  f"{player.met} ranks met the server")
            self.assertEqual(len(set(player.heard)), len(player.heard), "an answer was given twice")
            self.assertTrue(player.turned_away and player.heard and player.met)


def skipped(why):
    print(f"TAP version 13\n1..1\nok 1 - test_nobody_believes_what_was_said_before # SKIP {why}")
    sys.exit(0)


def in_a_network_of_its_own():
    """Where it may see all packets, and no other test's."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        skipped("recording needs unshare and ip")
    unshare = ["unshare", "--net"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    probe = subprocess.run([*unshare, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    if probe.returncode:
        skipped(f"{' '.join(unshare)}: {probe.stderr.strip()}")
    os.execvp("unshare", [*unshare, sys.executable, __file__, PERF, "inside"])


if __name__ == "__main__":
    PERF = sys.argv[1]
    SEED = int(os.environ.get("BANYAN_TEST_SEED", "20261130"), 0)
    if len(sys.argv) < 3:
        in_a_network_of_its_own()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    tap.main(Replay)
