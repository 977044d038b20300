# SPDX-License-Identifier: BSD-3-Clause
"""Nobody joins a job who is not meant to: real processes with torchrun's and srun's variables, and strangers that know all
that the launcher says. Usage: test_secrets.py WORKER (tests/transport/bootstrap/launch_worker.c)"""
import os
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

WORKER = sys.argv[1]
LIMIT_S = 60
NOBODY = 65534
SPAN = 16 # candidate ports of a root: BNY_LAUNCH_SPAN


def torchrun(rank, ranks, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "secrets"}


def srun(rank, ranks, port):
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(ranks), "SLURM_JOB_ID": str(port), "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": "localhost"}


class Secrets(unittest.TestCase):
    def run(self, result=None):
        """Its files are gone afterwards; others may see the program."""
        with tempfile.TemporaryDirectory() as self.dir:
            os.chmod(self.dir, 0o755)
            self.worker = shutil.copy(WORKER, self.dir)
            os.chmod(self.worker, 0o755)
            return super().run(result)

    def home(self, name):
        path = os.path.join(self.dir, name)
        os.makedirs(path, 0o700, exist_ok=True)
        return path

    def rank(self, variables, home="home", **more):
        return tap.start(self.worker, HOME=self.home(home), **variables, **more)

    def stranger(self, variables):
        """Another user who has read all that the launcher said."""
        if os.geteuid() != 0 or not shutil.which("setpriv"):
            self.skipTest("another user's process needs root and setpriv")
        return tap.start("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", self.worker,
                         HOME=self.dir, **variables)

    def check_well(self, ends, how, ranks):
        for rank, (status, out, err) in enumerate(ends):
            self.assertEqual((status, out), (0, f"{how} {rank} {ranks}\n"), err)

    def check_stranger_as(self, launcher, how, rank):
        """The stranger comes first, and stays."""
        port = tap.free_port()
        stranger = self.stranger(launcher(rank, 2, port))
        try:
            other = self.rank(launcher(1 - rank, 2, port))
            time.sleep(1.5)
            if other.poll() is not None:
                self.fail(f"joined with the stranger, or was ended by it: {other.communicate()}")
            ends = tap.finish([other, self.rank(launcher(rank, 2, port))], LIMIT_S)
        finally:
            if stranger.poll() is None: # tries until its deadline
                os.killpg(stranger.pid, signal.SIGKILL)
            (status, out, err), = tap.finish([stranger], LIMIT_S)
        self.check_well(sorted(ends, key=lambda end: end[1]), how, 2)
        self.assertNotEqual(status, 0, out + err)
        self.assertEqual(out, "")
        if os.path.exists(f"/tmp/.banyan-cookie-{NOBODY}"):
            os.unlink(f"/tmp/.banyan-cookie-{NOBODY}")

    def test_stranger_as_rank_1_of_torchrun(self):
        self.check_stranger_as(torchrun, "torchrun", 1)

    def test_stranger_as_root_of_torchrun(self):
        self.check_stranger_as(torchrun, "torchrun", 0)

    def test_stranger_as_rank_1_of_srun(self):
        self.check_stranger_as(srun, "slurm", 1)

    def test_no_setting_is_needed(self):
        for launcher, how in (torchrun, "torchrun"), (srun, "slurm"):
            port = tap.free_port()
            self.check_well(tap.finish([self.rank(launcher(r, 4, port)) for r in range(4)], LIMIT_S), how, 4)
        mode = os.stat(os.path.join(self.home("home"), ".banyan-cookie")).st_mode
        self.assertEqual((stat.S_ISREG(mode), stat.S_IMODE(mode)), (True, 0o600))
        self.assertEqual(os.listdir(self.home("home")), [".banyan-cookie"])

    def test_other_cookies_end_soon_everywhere(self):
        """As hosts with homes of their own."""
        for odd in range(3):
            port, begun = tap.free_port(), time.monotonic()
            jobs = [self.rank(torchrun(r, 3, port), "other" if r == odd else "home") for r in range(3)]
            for status, out, err in tap.finish(jobs, LIMIT_S):
                self.assertEqual((status, out), (1, ""), err)
                self.assertRegex(err, r"rank \d.* has another secret than rank 0 \(.*copy ~/.banyan-cookie")
            # Init's deadline is 15 s.
            self.assertLess(time.monotonic() - begun, 12)

    def test_a_secret_on_one_rank_only(self):
        port = tap.free_port()
        jobs = [self.rank(torchrun(0, 2, port), BANYAN_SECRET="hush-hush-hush-hush"), self.rank(torchrun(1, 2, port))]
        for status, _, err in tap.finish(jobs, LIMIT_S):
            self.assertEqual(status, 1)
            self.assertRegex(err, "rank 1.* has another secret than rank 0 .*BANYAN_SECRET_FILE alike on all ranks")

    def test_insecure_needs_no_file(self):
        port = tap.free_port()
        ends = tap.finish([self.rank(torchrun(r, 2, port), BANYAN_INSECURE="1") for r in range(2)], LIMIT_S)
        self.check_well(ends, "torchrun", 2)
        self.assertEqual(os.listdir(self.home("home")), [])
        self.assertIn("whoever reaches the ports", ends[0][2])

    def test_a_rank_taken_twice_names_both(self):
        port = tap.free_port()
        for status, _, err in tap.finish([self.rank(torchrun(r, 4, port)) for r in (0, 1, 2, 1)], LIMIT_S):
            self.assertEqual(status, 1)
            self.assertRegex(err, r"two processes joined as rank 1: 127\.0\.0\.1:\d+ and 127\.0\.0\.1:\d+; give each")

    def test_a_thousand_connections_leave_few_lines(self):
        """Silent ones, garbage, and hellos of other jobs, while rank 1 is late."""
        port = tap.free_port()
        root = self.rank(torchrun(0, 2, port))
        hello = struct.pack("<II", 64, 0x796E6201) + b"bnyH" + bytes(60)
        done = at = begun = 0
        end = time.monotonic() + 10
        while done < 1000 and time.monotonic() < end:
            with socket.socket() as s:
                s.settimeout(5)
                try:
                    s.connect(("127.0.0.1", port + 1 + at))
                    begun = begun or time.monotonic()
                    s.sendall((b"", b"GET / HTTP/1.0\r\n\r\n", hello, hello[:20])[done % 4])
                    done += 1
                except OSError: # not there yet, or at another of its ports, where that one was taken
                    at = (at + 1) % SPAN
                    time.sleep(0.01)
        self.assertEqual(done, 1000)
        print(f"# 1000 connections in {time.monotonic() - begun:.2f} s")
        ends = tap.finish([root, self.rank(torchrun(1, 2, port))], LIMIT_S)
        self.check_well(ends, "torchrun", 2)
        lines = ends[0][2].splitlines()
        self.assertGreater(len(lines), 0)
        self.assertLess(len(lines), 10, ends[0][2])


if __name__ == "__main__":
    tap.main(Secrets)
