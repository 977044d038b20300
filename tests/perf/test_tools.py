#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What banyan_run, banyan_perf, banyan_plot and train_digits promise on the command line.
usage: test_tools.py BANYAN_RUN BANYAN_PERF BANYAN_PLOT TRAIN_DIGITS BANYAN_TRACE"""
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom

RUN, PERF, PLOT, DIGITS, TRACE = sys.argv[1:6]
FIELDS = ("collective transport schedule codec ranks bytes count dtype op inplace iters time_us predicted_us "
          "algbw_GBps busbw_GBps wire_bytes wire_busbw_GBps wrong max_abs_err rel_err cpu_s roofline_GBps").split()


os.environ["BANYAN_ENCODE_THREADS"] = "0"  # else as many as this machine has CPUs to spare


def sh(*args, timeout=60, **opts):
    return subprocess.run(args, capture_output=True, text=True, timeout=timeout, **opts)


class Inherited(unittest.TestCase):
    """What parents leave to banyan_run, and `banyan_perf -P`: signals, descriptors, limits."""

    def under(self, preexec, *args, **opts):
        return subprocess.run(args, capture_output=True, text=True, timeout=60, preexec_fn=preexec, **opts)

    def test_signals(self):
        def ignored():
            for sig in signal.SIGCHLD, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1:
                signal.signal(sig, signal.SIG_IGN)

        def blocked():
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

        for preexec in ignored, blocked:
            p = self.under(preexec, RUN, "-n", "2", "grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
            self.assertEqual((p.returncode, p.stdout.count("0000000000000000"), p.stderr), (0, 4, ""), p.stdout)
            p = self.under(preexec, PERF, "allreduce", "-P", "2", "-b", "4", "-e", "4", "-n", "1")
            self.assertEqual(p.returncode, 0, p.stderr)
            p = subprocess.Popen((RUN, "-n", "2", "sh", "-c", "echo up; exec sleep 60"), stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, preexec_fn=preexec)
            self.assertEqual([p.stdout.readline() for _ in range(2)], [b"up\n"] * 2)
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(60), 128 + signal.SIGTERM)
            p.stdout.close()

    def test_who_ignores_hangups_goes_on(self):
        p = subprocess.Popen((RUN, "-n", "2", "sh", "-c", "kill -HUP $PPID $$; echo up"), stdout=subprocess.PIPE,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.assertEqual((p.communicate(timeout=60)[0], p.returncode), (b"up\nup\n", 0))

    def test_few_open_files(self):
        def limit(soft, hard):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        p = self.under(limit(64, 1024), RUN, "-n", "64", "true")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        p = self.under(limit(64, 1024), RUN, "-n", "64", "--tag", "sh", "-c", "ulimit -Sn")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertEqual(sorted(p.stdout.splitlines()), sorted(f"[{r}] 64" for r in range(64)))

    def test_more_files_than_the_hard_limit(self):
        p = self.under(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)), RUN, "-n", "64", "--tag", "true")
        self.assertEqual(p.returncode, 125)
        self.assertRegex(p.stderr, "64 ranks .* hard limit is 64.*--tag")

    def test_standard_input_is_rank_0s(self):
        p = sh(RUN, "-n", "3", "--tag", "cat", input="one\ntwo\n")
        self.assertEqual((p.returncode, p.stdout), (0, "[0] one\n[0] two\n"), p.stderr)

    def test_closed_standard_files(self):
        for closed in (0,), (1,), (2,), (0, 1), (0, 1, 2):
            for options in (), ("--tag",):
                p = subprocess.run((RUN, "-n", "2", *options, "sh", "-c", "exit $((BANYAN_RANK * 7))"), timeout=60,
                                   preexec_fn=lambda: [os.close(fd) for fd in closed])
                self.assertEqual(p.returncode, 7, f"{closed} closed, {options}")


class Run(unittest.TestCase):
    def test_each_rank_learns_its_place(self):
        p = sh(RUN, "-n", "3", "--tag", "sh", "-c", "echo $BANYAN_RANK/$BANYAN_WORLD_SIZE ${#BANYAN_ID}")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(sorted(p.stdout.splitlines()), [f"[{r}] {r}/3 256" for r in range(3)])

    def test_only_rank_0_listens(self):
        p = sh(RUN, "-n", "2", "sh", "-c", "echo $BANYAN_RANK:$BANYAN_LISTEN_FD:")
        self.assertRegex(p.stdout, r"0:\d+:")
        self.assertIn("1::", p.stdout)

    def test_first_failing_rank_gives_the_status(self):
        p = sh(RUN, "-n", "2", "sh", "-c", "exit $((BANYAN_RANK * 7))")
        self.assertEqual(p.returncode, 7)
        self.assertIn("rank 1", p.stderr)

    def test_a_killed_rank_is_128_plus_signal_and_named(self):
        p = sh(RUN, "-n", "2", "sh", "-c", "[ $BANYAN_RANK = 0 ] || kill -9 $$")
        self.assertEqual(p.returncode, 137)
        self.assertIn("rank 1", p.stderr)

    def test_a_rank_is_started_again(self):
        again = "[ $BANYAN_RANK = 0 ] && exec sleep 1; echo start $BANYAN_RESTART_COUNT; "
        p = sh(RUN, "-n", "2", "--tag", "--restart", "3", "sh", "-c", again + "[ $BANYAN_RESTART_COUNT = 2 ]")
        self.assertEqual((p.returncode, p.stdout.split("[1] ")), (0, ["", "start 0\n", "start 1\n", "start 2\n"]), p.stderr)
        p = sh(RUN, "-n", "2", "--max-restarts", "3", "sh", "-c", again + "kill -9 $$")
        self.assertEqual((p.returncode, p.stdout), (1, "start 0\nstart 1\nstart 2\nstart 3\n"), p.stderr)
        self.assertIn("rank 1 is started again, 3 of 3 times", p.stderr)
        self.assertIn("1 of 2 ranks failed", p.stderr)

    def test_nobody_is_started_again_for_a_job_that_has_ended(self):
        p = sh(RUN, "-n", "1", "--restart", "3", "sh", "-c", "echo start; exit 1")
        self.assertEqual((p.returncode, p.stdout), (1, "start\n"), p.stderr)

    def test_a_missing_program_is_127(self):
        self.assertEqual(sh(RUN, "-n", "1", "/nonexistent/program").returncode, 127)

    def test_the_timeout_ends_the_job(self):
        p = sh(RUN, "-n", "2", "--timeout", "0.2", "sleep", "60")
        self.assertEqual(p.returncode, 124)

    def test_wrong_options_are_2(self):
        for args in ([], ["-n", "0", "true"], ["-n", "2"], ["-n", "x", "true"], ["--nosuch", "true"], ["-n"]):
            p = sh(RUN, *args)
            self.assertEqual(p.returncode, 2, args)
            self.assertIn("--help", p.stderr)

    def test_terminate_is_passed_on(self):
        p = subprocess.Popen([RUN, "-n", "1", "sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.assertEqual(p.stdout.readline(), "up\n")
        p.terminate()
        self.assertNotEqual(p.wait(30), 0)
        p.stdout.close()

    def test_ranks_die_with_the_launcher(self):
        p = subprocess.Popen([RUN, "-n", "1", "sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE, text=True)
        rank = int(p.stdout.readline())
        p.kill()
        p.wait(30)
        self.assertEqual(p.stdout.read(), "")  # the end of the pipe: nobody holds it any more
        p.stdout.close()
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/{rank}") and state(rank) not in "ZX" and time.monotonic() < deadline:
            pass
        self.assertTrue(not os.path.exists(f"/proc/{rank}") or state(rank) in "ZX")


def state(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Perf(unittest.TestCase):
    def rows(self, *args):
        p = sh(PERF, *args, "--json", "-", timeout=120)
        self.assertEqual(p.returncode, 0, p.stderr)
        return [json.loads(line) for line in p.stdout.splitlines()], p.stderr

    def test_rows_have_the_documented_fields(self):
        rows, text = self.rows("allreduce", "-P", "2", "-b", "4", "-e", "64K", "-f", "128", "-n", "2")
        self.assertEqual([(r["bytes"], r["inplace"]) for r in rows],
                         [(s, i) for s in (4, 512, 65536) for i in (0, 1)])
        for r in rows:
            self.assertEqual(list(r), FIELDS)
            self.assertEqual((r["wrong"], r["ranks"]), (0, 2))
        self.assertIn("# Out of bounds values : 0 OK\n# Avg bus bandwidth", text)

    def test_every_collective_is_right(self):
        for name in "reduce broadcast reduce_scatter allgather alltoall gather scatter barrier sendrecv".split():
            rows, _ = self.rows(name, "-P", "3", "-b", "5000", "-e", "5000", "-n", "1", "-w", "0", "--no-roofline")
            self.assertTrue(rows and all(r["wrong"] == 0 for r in rows), name)

    def test_faults(self):
        """Two ranks die, rank 0 among them, one sleeps: those who are left do the size again, and the rest."""
        for transport in "shm", "tcp":
            with tempfile.NamedTemporaryFile("r") as rows:
                p = sh(PERF, "reduce_scatter", "-P", "4", "-b", "4K", "-e", "256K", "-f", "8", "-n", "5", "--transport", transport,
                       "--fault", "late=3@1:50,stop=1@2:300", "--fault", "kill=2@7,exit=0@23", "--json", rows.name, timeout=120)
                rows = [json.loads(line) for line in rows]
            self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
            self.assertRegex(p.stdout, "(?s)\\n# 3 of 4 ranks go on, .*\\n# 2 of 3 ranks go on, .*0 OK")
            self.assertTrue(all(r["wrong"] == 0 for r in rows))
            # 5 iterations out of place and 5 in place a size: the 8th is in the first size, the 24th in the second.
            self.assertEqual([r["ranks"] for r in rows if r["inplace"] == 0], [4, 3, 3, 2, 2])
            self.assertEqual([r["ranks"] for r in rows if r["inplace"] == 1], [3, 2, 2])

    def test_wrong_faults(self):
        for spec in "kill=1", "kill=1@", "kill=1@2:3", "stop=1@2", "kill=1@2,", "maim=1@2", "kill=-1@2", "kill=3@4", ",".join(["kill=1@1"] * 17):
            p = sh(PERF, "allreduce", "-P", "2", "--fault", spec)
            self.assertEqual(p.returncode, 2, spec)
            self.assertIn("--fault", p.stderr)
        p = sh(PERF, "allreduce", "-P", "2", "-e", "4", "-n", "5", "--fault", "kill=1@1000")
        self.assertEqual(p.returncode, 1)
        self.assertIn("kill=1@1000 never came: there were 10 iterations", p.stderr)

    def test_calls_by_turns_are_planned_once(self):
        with tempfile.TemporaryFile("w+") as said:
            subprocess.run([PERF, "allreduce", "-P", "2", "-b", "4", "-e", "4", "-n", "50", "--no-roofline"], check=True, timeout=60,
                           stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, "BANYAN_DEBUG": "info"})
            said.seek(0)
            text = said.read()
        for call in ("barrier of 1 u8", "allreduce of 1 f32"):
            self.assertEqual(text.count(f"plan: {call} on"), 2, call)  # by each rank

    def coded(self, name, codec, *extra):
        return self.rows(name, "-P", "2", "--codec", codec, "-b", "80K", "-e", "80K", "-n", "1", "-w", "0", "--no-roofline",
                         "--data", "laplace", "-T", "60", *extra)

    def test_codecs_are_used_and_judged_by_their_own_bounds(self):
        for codec in "int8 int4:block=64 sign powersgd topk:delta=0.01 mxfp4 lossless".split():
            rows, _ = self.coded("allreduce", codec)
            self.assertEqual({(r["codec"], r["wrong"]) for r in rows}, {(codec, 0)})
            self.assertEqual(all(r["rel_err"] < 1e-6 for r in rows), codec == "lossless", codec)
            self.assertTrue(all(r["wire_bytes"] < 80 << 10 for r in rows), codec)
        for name in ("reduce_scatter", "broadcast", "allgather"):
            rows, _ = self.coded(name, "int8")
            self.assertEqual({(r["codec"], r["wrong"]) for r in rows}, {("int8", 0)}, name)

    def trace(self, name, *args):
        """Rows, slices by (rank, track) of the latest call, that call's [begin, end] by rank, in microseconds; and what merge says."""
        with tempfile.TemporaryDirectory() as tmp:
            file = os.path.join(tmp, "trace.json")
            os.environ["BANYAN_TRACE"] = file
            try:
                rows, _ = self.rows(name, "-P", "2", "-n", "2", "-w", "0", "-T", "60", "--no-roofline", "--inplace", "0", *args)
            finally:
                del os.environ["BANYAN_TRACE"]
            merged = subprocess.run([sys.executable, TRACE, "merge", file], capture_output=True, text=True)
            self.assertEqual((merged.returncode, merged.stderr), (0, ""))
            with open(file, encoding="utf-8") as f:
                events = json.load(f)["traceEvents"]
            drawn = subprocess.run([sys.executable, TRACE, "draw", file], capture_output=True, text=True)
            self.assertEqual((drawn.returncode, drawn.stderr), (0, ""))
            svg = xml.dom.minidom.parseString(drawn.stdout)
            self.assertEqual(len(svg.getElementsByTagName("title")), sum(e["ph"] == "X" for e in events))
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        events = [(e["pid"], names[e["pid"], e["tid"]], e) for e in events if e["ph"] == "X"]
        size = rows[0]["bytes"]
        latest = max(e["args"]["operation"] for _, track, e in events
                     if track == "operation" and (e["args"]["collective"], e["args"]["bytes"]) == (name, size))
        tracks, whole = {}, {}
        for rank, track, e in events:
            if e["args"]["operation"] == latest and track == "operation":
                whole[rank] = e["ts"], e["ts"] + e["dur"], e["args"]
            elif e["args"]["operation"] == latest:
                tracks.setdefault((rank, track), []).append(e)
        return rows, tracks, whole, merged.stdout

    def test_a_trace_has_every_chunk_of_the_plan_in_its_track(self):
        rows, tracks, whole, text = self.trace("allreduce", "-b", "1M", "-e", "1M", "--chunk", "64K", "--transport", "tcp",
                                              "--codec", "int8", "--data", "gauss", "--schedule", "star")
        self.assertEqual([whole[0][2][k] for k in ("schedule", "codec", "lost_events")], ["star", "int8", 0])
        first, last = min(w[0] for w in whole.values()), max(w[1] for w in whole.values())
        for rank in (0, 1):
            for track in ("encode", "wire", "decode-add"):
                # half of the elements is this rank's to own, half to contribute: 8 chunks of 64 KiB each
                found = sorted((e["args"]["step"], e["args"]["chunk"]) for e in tracks[rank, track])
                self.assertEqual([c for _, c in found], 2 * list(range(8)), (rank, track))
                self.assertEqual(len(set(found)), 16, (rank, track))
            self.assertEqual(sum(e["args"]["bytes"] for e in tracks[rank, "decode-add"]), 1 << 20)
            # a header, 64 scales of 4 bytes, a byte an element
            self.assertEqual({e["args"]["bytes"] for e in tracks[rank, "wire"]}, {32 + 64 * 4 + 16384})
        self.assertAlmostEqual(rows[0]["wire_bytes"], 16 * (32 + 64 * 4 + 16384), delta=128)  # and announcements
        for (rank, track), slices in tracks.items():
            begin, end = (first, last) if track == "wire" else whole[rank][:2]
            slices.sort(key=lambda e: (e["ts"], e["ts"] + e["dur"]))
            for e, after in zip(slices, slices[1:] + [None]):
                # an operation's clock is another than its chunks'
                self.assertLessEqual(begin - 20, e["ts"], (rank, track))
                self.assertLessEqual(e["ts"] + e["dur"], after["ts"] + 0.002 if after else end + 20, (rank, track))
        for rank in (0, 1):  # a chunk is encoded before it travels, and decoded at the other end after that
            made = {(e["args"]["step"], e["args"]["chunk"]): e for e in tracks[rank, "encode"]}
            for e in tracks[rank, "wire"]:
                m = made.get((e["args"]["step"], e["args"]["chunk"]))
                if m:
                    self.assertLessEqual(m["ts"] + m["dur"], e["ts"] + 0.002)
        self.assertRegex(text, r"allreduce of 262144 f32 \(1048576 bytes\), star, codec int8: rank [01], [0-9.]+ us: "
                               r"(wire|encode|decode-add)-bound \d+ %, .*none of these \d+ %\n")

    def test_encoding_threads_have_tracks(self):
        os.environ["BANYAN_ENCODE_THREADS"] = "2"
        try:
            rows, tracks, _, _ = self.trace("allreduce", "-b", "8M", "-e", "8M", "--chunk", "64K", "--transport", "tcp", "--codec", "int8",
                                           "--data", "gauss", "--schedule", "star")
        finally:
            os.environ["BANYAN_ENCODE_THREADS"] = "0"
        self.assertTrue(all(r["wrong"] == 0 for r in rows))
        for rank in (0, 1):
            mine = [e for (r, track), v in tracks.items() if r == rank and track.startswith("encode") for e in v]
            found = sorted((e["args"]["step"], e["args"]["chunk"]) for e in mine)
            self.assertEqual(len(found), len(set(found)))
            self.assertEqual([c for _, c in found], 2 * list(range(64)))

    def test_traces_of_other_plans_and_short_messages(self):
        for args in (["--transport", "shm", "--schedule", "star"], ["--transport", "tcp"], ["--transport", "loop"],
                     ["--transport", "tcp", "--codec", "powersgd", "--data", "gauss"]):
            _, tracks, _, text = self.trace("allreduce", "-b", "1M", "-e", "1M", *args)
            for track in ("wire", "decode-add"):
                self.assertTrue(tracks.get((0, track)) and tracks.get((1, track)), (args, track))
            self.assertEqual(text.count("allreduce of 262144 f32 "), 1)
        for size in "8", "1M":  # direct and pipeline send no chunks
            _, tracks, whole, text = self.trace("allreduce", "-b", size, "-e", size, "--transport", "shm")
            self.assertEqual((tracks, len(whole)), ({}, 2))
            self.assertIn("no chunks", text)

    def test_rows_without_a_codec_say_so(self):
        self.assertEqual({r["codec"] for r in self.coded("allreduce", "int8", "-o", "min")[0]}, {"none"})
        rows, text = self.coded("allreduce", "may:int8", "--transport", "shm")
        self.assertEqual({r["codec"] for r in rows}, {"none"})
        self.assertIn("--codec int8 insists", text)

    def test_rows_name_the_schedule_that_runs(self):
        def run(name, size, schedule):
            p = sh(PERF, name, "-P", "2", "-b", str(size), "-e", str(size), "-n", "1", "-w", "0", "--csv", "--no-roofline",
                   "--schedule", schedule, "--transport", "shm", env={**os.environ, "BANYAN_DEBUG": "warn"})
            self.assertEqual(p.returncode, 0, p.stderr)
            lines = [line.split(",") for line in p.stdout.splitlines() if line]
            return {row[lines[0].index("schedule")] for row in lines[1:]}, p.stderr

        self.assertEqual(run("allreduce", 1 << 20, "ring"), ({"ring"}, ""))
        self.assertEqual(run("allreduce", 1024, "direct:messages"), ({"direct:messages"}, ""))
        for name, size, asked in ("alltoall", 1 << 20, "ring"), ("allreduce", 1 << 20, "direct:cells"):
            rows, told = run(name, size, asked)
            self.assertEqual(len(rows - {asked, "auto"}), 1, rows)
            self.assertEqual(told.count(f"--schedule {asked}: {name} of {size} bytes runs by schedule {min(rows)}"), 1, told)
            self.assertEqual(told.count(f"warning: schedule {asked} is not used for {name} of"), 1, told)
            self.assertIn("auto chooses for it", told)
        rows, told = run("alltoall", 1024, "ring")  # the short calls of a communicator are no news to the library
        self.assertNotIn("ring", rows)
        self.assertNotIn("warning", told)

    def test_ranks_of_the_loop_transport_are_threads(self):
        for name in "allreduce alltoall sendrecv".split():
            rows, text = self.rows(name, "-P", "3", "--transport", "loop", "-b", "5000", "-e", "500000", "-f", "100",
                                   "-n", "2", "-T", "60")
            self.assertEqual({(r["transport"], r["ranks"], r["wrong"]) for r in rows}, {("loop", 3, 0)}, name)
            pids = {line.split()[4] for line in text.splitlines() if line.startswith("#  rank")}
            self.assertEqual(len(pids), 1, text)

    def test_the_loop_transport_under_a_launcher_is_refused(self):
        for extra in ([], ["-P", "2"]):
            p = sh(RUN, "-n", "2", PERF, "allreduce", "--transport", "loop", *extra)
            self.assertEqual(p.returncode, 2, p.stderr)
            self.assertRegex(p.stderr, "loop joins ranks of one process: start them with -P N")

    def test_wrong_options_are_2_and_named(self):
        for args, words in (([], "collective"), (["all_reduce"], "all_reduce"), (["allreduce", "--nosuch"], "--help"),
                            (["allreduce", "-g", "2"], "--help"), (["allreduce", "-b"], "--help"),
                            (["allreduce", "-b", "1KB"], "such as 64K, got 1KB"), (["allreduce", "-b", "8", "-e", "4"], "smaller"),
                            (["allreduce", "-f", "1"], "-f wants"), (["allreduce", "-n", "0"], "-n wants 1 to"),
                            (["allreduce", "-d", "f31"], "f31"), (["allreduce", "-o", "add"], "add"),
                            (["allreduce", "-r", "1x"], "-r wants"), (["reduce", "-r", "2", "-P", "2"], "only 2 ranks"),
                            (["allreduce", "--schedule", "nosuch"], '"nosuch" is unknown'),
                            (["allreduce", "--codec", "int8:block=7", "-P", "2"], "codec int8: block=7"),
                            (["allreduce", "--topo", "nosuch"], '"nosuch" is neither')):
            p = sh(PERF, *args)
            self.assertEqual(p.returncode, 2, (args, p.stderr))
            self.assertIn(words, p.stderr)

    def test_variables_that_are_wrong_are_told(self):
        for setting, words in (("BANYAN_CHUNCK=4K", "did you mean BANYAN_CHUNK?"), ("BANYAN_DEBUG=loud", "none of error, warn, info and debug"),
                               ("BANYAN_CHUNK=x", "BANYAN_CHUNK=x is not a number"), ("BANYAN_DEBUG=INFO", "info: "),
                               ("BANYAN_DETERMINISTIC=2", "is none of 0|1; using 0"),
                               ("BANYAN_OP_TIMEOUT=1s", "is not a number >= 0 (seconds); using 300"),
                               ("BANYAN_OP_TIMEOUT=1e400", "is not a number >= 0"),
                               ("BANYAN_ORDER=chunk", "unknown variable BANYAN_ORDER"), ("BANYAN_LOCKSTEP=1", "unknown variable BANYAN_LOCKSTEP"),
                               ("BANYAN_PACE=0", "unknown variable BANYAN_PACE"),
                               ("BANYAN_SKIP_GUEST=1", None)):
            p = sh("env", "-u", "BANYAN_DEBUG", setting, PERF, "allreduce", "-e", "4", "-n", "1", "--no-roofline")
            self.assertEqual(p.returncode, 0, p.stderr)
            if words and words.startswith("info"):
                self.assertIn(words, p.stderr)
            elif words:
                self.assertEqual((p.stderr.count(words), p.stderr.count("warning")), (1, 1), p.stderr)
            else:
                self.assertNotIn("warning", p.stderr)

    def test_a_file_that_cannot_be_written_ends_the_job(self):
        p = sh(PERF, "allreduce", "-P", "2", "-e", "4", "--json", "/nonexistent/file")
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertIn("rank 0: cannot write /nonexistent/file", p.stderr)
        self.assertNotIn("rank 0 called", p.stderr)  # no report of a mismatch

    def test_memory_that_is_not_there_is_told(self):
        sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1:log_path=stderr"  # no report
        p = sh("env", f"ASAN_OPTIONS={sanitizer}", PERF, "allreduce", "-P", "2", "-b", "1000000G", "-e", "1000000G")
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertIn("use a smaller -e", p.stderr)

    def test_failures_are_1_and_name_the_rank(self):
        p = sh(PERF, "put_lat", "-P", "2", "-b", "8", "-e", "8", "--transport", "tcp")
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr, r"rank \d: .*tcp has no windows")

    def test_what_no_rank_can_run_is_2_before_anything_is_printed(self):
        for args, words in ((["put_lat", "-P", "3"], "-P wants 2 ranks for put_lat"), (["put_bw", "-P", "1"], "-P wants 2 ranks for put_bw"),
                            (["put_bw"], "put_bw runs between 2 ranks, this job has 1"),
                            (["allreduce", "-P", "2", "--codec", "nosuch"], '--codec: "nosuch"'),
                            (["allreduce", "-P", "2", "--codec", "int8:block=7"], "--codec int8: block=7"),
                            (["allreduce", "-P", "2", "--codec", "auto:int8"], "may:int8"),
                            (["allreduce", "-P", "3", "--schedule", "nosuch"], '--schedule "nosuch" is unknown')):
            p = sh(PERF, *args, "-b", "8", "-e", "8")
            self.assertEqual((p.returncode, p.stdout, p.stderr.count("\n")), (2, "", 1), (args, p.stderr))
            self.assertIn(words, p.stderr)
        p = sh(RUN, "-n", "3", PERF, "put_lat", "-e", "8")
        self.assertEqual((p.returncode, p.stdout, p.stderr.count("put_lat runs between 2 ranks, this job has 3")), (2, "", 1), p.stderr)

    def test_the_plot_is_an_svg_with_a_curve_for_each_variant(self):
        with tempfile.TemporaryDirectory() as tmp:
            file = os.path.join(tmp, "rows.json")
            p = sh(PERF, "allreduce", "-P", "2", "-b", "4", "-e", "4K", "-n", "2", "--json", file)
            self.assertEqual(p.returncode, 0, p.stderr)
            p = sh(sys.executable, PLOT, file)
            self.assertEqual(p.returncode, 0, p.stderr)
            paths = xml.dom.minidom.parseString(p.stdout).getElementsByTagName("path")
            self.assertEqual(sum(x.getAttribute("stroke") != "" for x in paths), 4)  # 2 curves and their legend


class Digits(unittest.TestCase):
    def test_wrong_arguments_are_2_and_named(self):
        for args, words in ((["extra"], "extra"), (["--nosuch"], "--nosuch"), (["-P", "0"], "from 1 to 512, got 0")):
            p = sh(DIGITS, *args)
            self.assertEqual((p.returncode, p.stdout), (2, ""), args)
            self.assertIn(words, p.stderr)

    def result(self, ranks):
        p = sh(DIGITS, "-P", str(ranks), "--epochs", "12", timeout=120)
        self.assertEqual(p.returncode, 0, p.stderr)
        return dict(x.split("=") for x in p.stdout.splitlines()[-1].split()[1:])

    def test_three_ranks_reach_the_loss_of_one(self):
        one, three = self.result(1), self.result(3)
        self.assertAlmostEqual(float(one["loss"]), float(three["loss"]), delta=1e-3)
        self.assertEqual(three["identical"], "1")
        self.assertGreater(float(three["test_accuracy"]), 0.9)


if __name__ == "__main__":
    signal.alarm(400)
    unittest.main(argv=sys.argv[:1])
