# SPDX-License-Identifier: BSD-3-Clause
"""Starts that fail, with real processes under banyan_run: whatever one rank dies of or lacks, all others end with a sentence
that names it, long before init's deadline. And what banyan_run does with the others.
Usage: test_start.py BANYAN_RUN START (start.c). BANYAN_TEST_SEED repeats the kills, BANYAN_TEST_SCALE multiplies them."""
import os
import random
import re
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

RUN, START = sys.argv[1:]
SEED = int(os.environ.get("BANYAN_TEST_SEED", "20261122"))
ROUNDS = int(24 * float(os.environ.get("BANYAN_TEST_SCALE", "1")))
LIMIT_S = 90
# Nothing here may take as long as this.
INIT_S = 60
RANKDEAD, SYSTEM, CONFIG, INVALID, NOMEM = 4, 9, 13, 1, 2


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(word) for word in f.read().split()]
    except FileNotFoundError:
        return []


class Start(unittest.TestCase):
    def start(self, ranks, *words, options=("--keep-going",), **env):
        return tap.start(RUN, "-n", str(ranks), *options, START, *words, **{"BANYAN_INIT_TIMEOUT": str(INIT_S), **env})

    def finish(self, job):
        begun = time.monotonic()
        (status, out, err), = tap.finish([job], LIMIT_S)
        took = time.monotonic() - begun
        self.assertLess(took, INIT_S / 2, f"by a deadline: {out}{err}")
        return status, out.splitlines(), err, took

    def failing(self, spec, code, words, ranks=4, transport="auto"):
        """Rank r of spec fails by itself with the code, and all others with its sentence."""
        victim = int(spec.split(":")[0])
        status, lines, err, took = self.finish(self.start(ranks, "1", spec, BANYAN_TRANSPORT=transport))
        self.assertEqual((status, len(lines)), (ranks, ranks), (lines, err))
        others = [line for line in lines if f"rank {victim} cannot join: " in line]
        self.assertEqual(len(others), ranks - 1, lines)
        for line in lines:
            self.assertRegex(line, rf"^init {code} .*{words}")
        return took

    def test_a_wrong_setting_of_one_rank(self):
        for rank in 0, 2:
            for setting, code, words in (("BANYAN_TRANSPORT=smh", INVALID, "did you mean shm"),
                                         ("BANYAN_CODEC=int99", INVALID, "int99"),
                                         ("BANYAN_IFNAME=nosuch0", CONFIG, "BANYAN_IFNAME=nosuch0"),
                                         ("BANYAN_TOPO=/nonexistent.txt", ".*", "nonexistent")):
                with self.subTest(rank=rank, setting=setting):
                    self.failing(f"{rank}:{setting}", code, words)

    def test_descriptors_run_out_on_one_rank(self):
        """At every count of them up to those that suffice: found by the first that is well. Of tcp's listener, which opens
        after init, only the operation's deadline tells."""
        for transport in "shm", "tcp":
            for rank in 0, 3:
                well = False
                for files in range(60):
                    status, lines, err, _ = self.finish(self.start(4, "0.05", f"{rank}:files={files}",
                                                                   BANYAN_TRANSPORT=transport, BANYAN_OP_TIMEOUT="8"))
                    text = f"{transport}, {files} files on rank {rank}: {lines} {err}"
                    well = lines == ["well"] * 4
                    if well:
                        break
                    self.assertEqual((status, len(lines)), (4, 4), text)
                    for line in lines:
                        self.assertRegex(line, rf"^(init|call) \d+ .*(rank {rank}\b|[Tt]oo many open files|descriptor)"
                                         + (r"|^call 3 the deadline" if transport == "tcp" else ""), text)
                self.assertTrue(well, text)

    def test_standard_files_that_are_closed_stay_nobodys(self):
        """No socket of the library takes their numbers: what ranks print goes nowhere, and writing fails."""
        for transport in "shm", "tcp", "auto":
            job = tap.start(RUN, "-n", "3", "--keep-going", "sh", "-c", 'exec "$0" 0.05 <&- >&- 2>&-', START,
                            BANYAN_TRANSPORT=transport)
            status, _, err, _ = self.finish(job)
            self.assertEqual((status, len(re.findall(r"^banyan_run: rank \d \(pid \d+\) exited with status 6$", err, re.M))), (3, 3), f"{transport}: {err}")

    def limited(self, kib, trap, **env):
        return self.finish(tap.start("sh", "-c", f'{trap} ulimit -f {kib}; exec "$@"', "sh", RUN, "-n", "2", "--keep-going", START, "0.05",
                                     **env))

    def test_a_limit_of_file_sizes_kills_nobody(self):
        for kib in 0, 100, 1024, 10240:
            for trap in "", "trap '' XFSZ;":
                status, lines, err, _ = self.limited(kib, trap)
                self.assertEqual((status, lines), (0, ["well"] * 2), f"{kib} KiB, {trap} {err}")
        status, lines, err, _ = self.limited(100, "", BANYAN_TRANSPORT="shm")
        self.assertEqual(status, 2, err)
        for line in lines:
            self.assertRegex(line, "init .*ulimit -f")

    def test_memory_runs_out_on_one_rank(self):
        with open(START, "rb") as f:
            if b"__asan_init" in f.read():
                self.skipTest("AddressSanitizer's shadow is more than any limit")
        failed = 0
        for rank in 1, 0:
            for kib in 64, 512, 2048, 6000, 12000:
                status, lines, err, _ = self.finish(self.start(4, "0.05", f"{rank}:memory={kib}"))
                text = f"{kib} KiB on rank {rank}: {lines} {err}"
                if status == 0:
                    continue
                failed += 1
                self.assertEqual(status, 4, text)
                for line in lines:
                    self.assertRegex(line, rf"^(init|call) \d+ .*(rank {rank}\b|memory)", text)
        self.assertGreater(failed, 2)

    def test_kills_at_random_moments_of_init(self):
        rnd = random.Random(SEED)
        slowest, phases = 0, {"init": 0, "call": 0}
        print(f"# seed {SEED}, {ROUNDS} rounds", flush=True)
        for i in range(ROUNDS):
            ranks, victim = rnd.randint(2, 6), None
            victim = rnd.randrange(ranks)
            transport, wait_s = ("shm", "tcp")[i % 2], rnd.choice((0.004, 0.015, 0.2)) * rnd.random()
            job = self.start(ranks, "60", BANYAN_TRANSPORT=transport)
            while len(children(job.pid)) < ranks and job.poll() is None:
                time.sleep(0.0005)
            time.sleep(wait_s)
            os.kill(children(job.pid)[victim], signal.SIGKILL)
            status, lines, err, took = self.finish(job)
            slowest = max(slowest, took)
            text = f"round {i}: {ranks} ranks, {transport}, rank {victim} after {wait_s * 1e3:.1f} ms: {lines} {err}"
            self.assertEqual((status, len(lines)), (ranks, ranks - 1), text)
            for line in lines:
                self.assertRegex(line, rf"^(init|call) {RANKDEAD} .*\brank {victim}\b", text)
                phases[line.split()[0]] += 1
        print(f"# slowest {slowest * 1e3:.0f} ms; {phases}", flush=True)

    def test_an_end_before_init_is_told(self):
        """By banyan_run: that rank never connected."""
        script = f'if [ "$BANYAN_RANK" = 2 ]; then exit 7; else exec {START} 60; fi'
        job = tap.start(RUN, "-n", "4", "--keep-going", "sh", "-c", script, BANYAN_INIT_TIMEOUT=str(INIT_S))
        status, lines, err, _ = self.finish(job)
        self.assertEqual((status, len(lines)), (4, 3), (lines, err))
        for line in lines:
            self.assertRegex(line, rf"^init {RANKDEAD} rank 2 \(pid \d+\) exited with status 7")

    # ---- what banyan_run does with the others ----

    def with_a_death(self, *options):
        """Rank 1 ends at once with 9; rank 0 a second later, well, having ignored SIGTERM for that long or not."""
        script = 'if [ "$BANYAN_RANK" = 1 ]; then exit 9; fi; sleep 1; echo lived'
        begun = time.monotonic()
        (status, out, err), = tap.finish([tap.start(RUN, "-n", "2", *options, "sh", "-c", script)], LIMIT_S)
        return status, out, err, time.monotonic() - begun

    def test_keep_going_counts_the_dead(self):
        status, out, err, _ = self.with_a_death("--keep-going")
        self.assertEqual((status, out), (1, "lived\n"), err)
        self.assertIn("1 of 2 ranks failed", err)
        (status, out, _), = tap.finish([tap.start(RUN, "-n", "120", "--keep-going", "false")], LIMIT_S)
        self.assertEqual(status, 100)
        (status, out, _), = tap.finish([tap.start(RUN, "-n", "3", "--keep-going", "true")], LIMIT_S)
        self.assertEqual(status, 0)

    def test_keep_going_ends_by_signals_and_timeouts(self):
        for options, kill, want in ((("--timeout", "0.5"), None, 124), ((), signal.SIGTERM, 128 + signal.SIGTERM),
                                    ((), signal.SIGINT, 128 + signal.SIGINT)):
            job = tap.start(RUN, "-n", "2", "--keep-going", *options, "sleep", "60")
            time.sleep(0.3)
            if kill:
                os.kill(job.pid, kill)
            (status, _, err), = tap.finish([job], LIMIT_S)
            self.assertEqual(status, want, err)
            if kill:
                self.assertEqual(err, "", "whoever sends a signal wants the end")

    def test_restarts_are_no_failed_ranks(self):
        """Each rank but 0 fails so often; rank 0 lives until all of them have ended."""
        script = """[ $BANYAN_RANK = 0 ] && { until [ $(ls @ | wc -l) = $WANT ]; do sleep 0.02; done; exit; }
                    touch @/$BANYAN_RANK.$BANYAN_RESTART_COUNT; [ $BANYAN_RESTART_COUNT = $DEATHS ] || exit 9"""
        for ranks, restarts, deaths, failed in (2, 2, 3, 1), (2, 2, 2, 0), (4, 1, 2, 3), (12, 1, 1, 0):
            with self.subTest(ranks=ranks, deaths=deaths), tempfile.TemporaryDirectory() as folder:
                want = (ranks - 1) * (min(deaths, restarts) + 1)
                job = tap.start(RUN, "-n", str(ranks), "--restart", str(restarts), "sh", "-c",
                                script.replace("@", folder), WANT=str(want), DEATHS=str(deaths))
                (status, _, err), = tap.finish([job], LIMIT_S)
                self.assertEqual(status, failed, err)
                self.assertEqual(err.count("exited with status 9"), (ranks - 1) * deaths + (failed > 1), err)
                self.assertEqual(re.findall(r"(\d+) of \d+ ranks failed", err), [str(failed)] if failed else [], err)

    def test_grace_is_a_choice(self):
        self.assertEqual(self.with_a_death()[:2], (9, "lived\n"))
        self.assertEqual(self.with_a_death("--grace", "30")[:2], (9, "lived\n"))
        for grace in "0", "0.2":
            status, out, err, took = self.with_a_death("--grace", grace)
            self.assertEqual((status, out), (9, ""), err)

    def test_wrong_options(self):
        for words in ("--grace", "x"), ("--grace", "-1"), ("--keep-going", "--grace", "3"):
            (status, _, err), = tap.finish([tap.start(RUN, "-n", "2", *words, "true")], LIMIT_S)
            self.assertEqual(status, 2)
            self.assertIn("--grace", err)

    def test_nothing_is_left(self):
        """A rank's end that nobody wants to know, in a program that does not use the library."""
        job = tap.start(RUN, "-n", "2", "--grace", "30", "sh", "-c", '[ "$BANYAN_RANK" = 0 ] && sleep 1 || exit 3')
        group = job.pid
        (status, _, err), = tap.finish([job], LIMIT_S)
        self.assertEqual(status, 3, err)
        self.assertRaises(ProcessLookupError, os.killpg, group, 0)


if __name__ == "__main__":
    tap.main(Start)
