# SPDX-License-Identifier: BSD-3-Clause
"""The MPI interposer under one MPI: the same random calls with and without it, and the cases of cases.c.
Usage: test_mpi.py openmpi|mpich LIBBANYAN_MPI RANDOM_CALLS CASES SESSIONS UNKNOWN STANDARD FORTRAN,... [OTHER_INTERPOSER]
UNKNOWN: a program of an MPI that no interposer is for, STANDARD: one whose MPI has the standard interface, but few functions. FORTRAN: the programs of fortran.F90, or "none".

BANYAN_TEST_SEED repeats a run, BANYAN_TEST_SCALE scales the number of random calls."""
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import tap

MPI, LIBRARY, RANDOM_CALLS, CASES, SESSIONS, UNKNOWN, STANDARD = sys.argv[1:8]
FORTRAN = [] if sys.argv[8] == "none" else sys.argv[8].split(",")
OTHER = sys.argv[9] if len(sys.argv) > 9 else None
MPIRUN = "mpirun." + MPI
CALLBACKS = os.environ.get("MPI_CALLBACKS")
# What another launcher, around this test, may have left.
FOREIGN = ("BANYAN_", "OMPI_", "PMI", "SLURM_", "MPIR_", "HYD", "LD_PRELOAD")
SCALE = float(os.environ.get("BANYAN_TEST_SCALE", "1"))
LIMIT_S = 100 * max(1, SCALE)
CALLS = int(1000 * SCALE)
SEED = os.environ.get("BANYAN_TEST_SEED") or 20261122
SEED = random.randrange(1 << 30) if SEED == "random" else int(SEED)


class Mpi(unittest.TestCase):
    def run_ranks(self, ranks, *command, library=LIBRARY, options=(), limit=LIMIT_S, **more):
        """Exit status, stdout and stderr of a job; none of it is left when this returns."""
        if MPI == "openmpi":
            options = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle",
                       "1", *options)
        env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        settings = {"after": "1", "nonblocking": "0"}
        settings.update(pair.split("=") for pair in more.pop("BANYAN_MPI", "").split(",") if pair)
        env.update(more, BANYAN_MPI=",".join("=".join(pair) for pair in settings.items()))
        if library:
            env["LD_PRELOAD"] = library
        job = subprocess.Popen([MPIRUN, *options, "-n", str(ranks), *command], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True, env=env)
        try:
            out, err = job.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGTERM)
            out, err = job.communicate(timeout=20)
            self.fail(f"{' '.join(command)}: not done after {limit} s\n{out[-2000:]}{err[-2000:]}")
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()
        return job.returncode, out, err

    def good(self, *args, **kw):
        code, out, err = self.run_ranks(*args, **kw)
        self.assertEqual(code, 0, out[-2000:] + err[-3000:])
        return out, err


class Random(Mpi):
    """Every rank's file of results, line by line: equal, or within the bound of re-association."""

    def compare(self, plain, ours, ranks):
        rough = 0
        for a, b in zip(plain, ours):
            if a == b:
                continue
            x, y = a.split(), b.split()
            self.assertEqual((x[:2], "eps" in x), (y[:2], True), f"{a}\n{b}")
            eps = float(x[-1])
            for u, v in zip(x[2:-2], y[2:-2]):
                # Each of the ranks - 1 additions rounds a sum of at most `ranks` numbers up to 1.
                self.assertLessEqual(abs(float(u) - float(v)), 2 * ranks * ranks * eps, f"{a}\n{b}")
            rough += 1
        return rough

    def both(self, ranks):
        seed = SEED + ranks
        # Plain ranks of MPICH spin while they wait: of 7 that share 2 CPUs a call takes 16 ms.
        calls = CALLS // 3 if MPI == "mpich" and ranks > 3 else CALLS
        print(f"# seed BANYAN_TEST_SEED={SEED}, {ranks} ranks, {calls} calls", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, name) for name in ("plain", "ours")]
            self.good(ranks, RANDOM_CALLS, str(seed), str(calls), str(files[0]), "plain", library=None)
            _, err = self.good(ranks, RANDOM_CALLS, str(seed), str(calls), str(files[1]), BANYAN_MPI="stats=1")
            for rank in range(ranks):
                plain, ours = (sorted(pathlib.Path(f"{f}.{rank}").read_text(encoding="ascii").splitlines(),
                                      key=lambda line: int(line.split()[0])) for f in files)
                self.assertEqual(len(plain), len(ours))
                self.assertGreater(len(plain), calls // 4)
                self.compare(plain, ours, ranks)
            if ranks > 1:  # it was banyan that ran
                rows = {w[1]: int(w[2]) for w in map(str.split, err.splitlines())
                        if w[:1] == ["banyan-mpi:"] and len(w) == 7 and w[2].isdigit()}
                for name in "allreduce", "iallreduce", "alltoallv", "ibcast", "scan", "reduce_scatter":
                    self.assertGreater(rows.get(name, 0), 0, err)

    def test_random_calls_1_rank(self):
        self.both(1)

    def test_random_calls_2_ranks(self):
        self.both(2)

    def test_random_calls_3_ranks(self):
        self.both(3)

    def test_random_calls_4_to_6_ranks(self):
        self.both(4 if MPI == "mpich" else 5)

    def test_random_calls_7_ranks(self):
        self.both(7)


class Cases(Mpi):
    def case(self, name, ranks=3, **kw):
        out, err = self.good(ranks, CASES, name, limit=60, **kw)
        self.assertIn("ok", out, err)
        return err

    def test_rendezvous_send_to_a_rank_in_a_collective(self):
        self.case("rendezvous")

    def test_a_communicator_is_freed_behind_finalize(self):
        self.case("freed_behind_the_end")

    def test_progress_in_a_blocking_receive(self):
        self.case("blocked_recv")

    def test_progress_while_a_communicator_is_made(self):
        self.case("blocked_dup")

    def test_progress_while_a_window_is_made(self):
        self.case("blocked_window")

    def test_epoch_that_ended_before_a_barrier(self):
        """Plain, Open MPI 4.1 does not pass always: then there is nothing to compare."""
        plain, _, _ = self.run_ranks(3, CASES, "window_tested", library=None, limit=60)
        code, out, err = self.run_ranks(3, CASES, "window_tested", limit=60)
        if plain == 0:
            self.assertEqual(code, 0, out + err)

    def passive(self, ranks):
        """With the part of Open MPI that sends messages for it, as over networks without RDMA."""
        options = ("--mca", "osc", "pt2pt,sm") if MPI == "openmpi" else ()
        self.case("passive", ranks=ranks, options=options)

    def test_passive_target_that_waits(self):
        self.passive(2)

    @unittest.skipIf(MPI == "mpich", "three ranks of plain MPICH on two CPUs take minutes beside other programs")
    def test_passive_target_that_waits_beside_others(self):
        self.passive(3)

    @unittest.skipIf(MPI != "openmpi", "Open MPI's callbacks")
    def test_nothing_more_to_poll_after_init(self):
        """Open MPI calls them in every MPI_Test: one more is a twelfth of that."""
        plain, ours = (self.good(3, CASES, "callbacks", library=library)[0] for library in (CALLBACKS, f"{CALLBACKS}:{LIBRARY}"))
        self.assertRegex(plain, r"(?m)^[1-9]\d* callbacks$")
        self.assertEqual(sorted(plain.split()), sorted(ours.split()))

    def test_requests_of_both_in_one_wait(self):
        self.case("mixed")

    def test_handles_freed_in_flight(self):
        self.case("freed_in_flight")

    def test_reduce_in_place_at_the_last_rank(self):
        self.case("reduce_in_place")

    def test_thread_multiple(self):
        self.case("threads")

    def test_thread_multiple_costs_little_with_one_thread(self):
        """It was 100 times slower when each call was a request that was tested under one lock."""
        tries = []
        for _ in range(5):  # other load makes any one of them slow
            times = {}
            for name in "sums", "sums_threads":
                out, err = self.good(2, CASES, name, limit=60)
                times[name] = float(re.search(r"1000 sums: (\d+) us", out + err).group(1))
            tries.append(times)
            if times["sums_threads"] < 10 * times["sums"] + 1000:
                return
        self.fail(f"in five tries: {tries}")

    def test_lost_rank_is_an_error(self):
        options = ("-disable-auto-cleanup",) if MPI == "mpich" else ("--enable-recovery",)
        with tempfile.TemporaryDirectory() as folder:
            code, out, err = self.run_ranks(3, CASES, "lost", folder + "/r", options=options, limit=60)
            for rank in 0, 1:
                path = pathlib.Path(folder, f"r.{rank}")
                # MPICH's launcher may end the job before the survivors have written: that is an error as well.
                if path.exists() or MPI == "openmpi":
                    # (Or of the other survivor, when Open MPI was faster in ending the job.)
                    self.assertRegex(path.read_text(encoding="ascii"), r"rank \d \(pid \d+ on \S+\) (is gone|died)", out + err)
                else:
                    self.assertNotEqual(code, 0, out + err)

    def test_mismatch_is_an_error_at_every_rank(self):
        _, out, err = self.run_ranks(3, CASES, "mismatch", limit=60)
        self.assertIn("rank 0 called allreduce(count 101, f32, sum)", err, out)
        self.assertIn("ok", out, err)

    def test_what_comes_behind_a_mismatch_is_alike_at_all_ranks(self):
        for _ in range(5):
            _, out, err = self.run_ranks(3, CASES, "mismatch_behind", limit=60)
            self.assertIn("called broadcast(count 400", err, out)
            self.assertIn("ok", out, err)

    def test_settings_that_differ_keep_all_on_mpi(self):
        shell = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then BANYAN_MPI=after=7,nonblocking=0,stats=1; fi; exec "$0" "$@"'
        out, err = self.good(2, "sh", "-c", shell, CASES, "mixed", limit=60, BANYAN_MPI="stats=1")
        self.assertIn("ok", out)
        self.assertIn("all collectives stay on MPI", err)

    def test_join_that_fails_on_one_rank_leaves_all_on_mpi(self):
        enough_for_the_mpi = 35 if MPI == "mpich" else 26
        for what in "export BANYAN_TOPO=/nonexistent", f"ulimit -n {enough_for_the_mpi}":
            for one in 0, 2:
                shell = f'if [ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = {one} ]; then {what}; fi; exec "$0" "$@"'
                out, err = self.good(3, "sh", "-c", shell, CASES, "mixed", limit=60, BANYAN_MPI="stats=1")
                self.assertIn("ok", out)
                self.assertIn(f"rank {one}: MPI_Init: every communicator stays on MPI", err)
                self.assertRegex(err, r" iallreduce +0 ")

    def test_rank_without_the_interposer_ends_the_job(self):
        shell = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then unset LD_PRELOAD; fi; exec "$0" "$@"'
        code, out, err = self.run_ranks(2, "sh", "-c", shell, CASES, "mixed", limit=60, BANYAN_MPI="join=2")
        self.assertNotEqual(code, 0, out)
        self.assertIn("not every rank has this library", err)

    def test_codec_is_for_sums_of_floats(self):
        err = self.case("codec", BANYAN_MPI_CODEC="int8:force=1", BANYAN_MPI="stats=1")
        self.assertIn("codec int8:force=1: 3 sums of MPI_FLOAT were encoded", err)

    def test_codec_between_ranks_that_share_memory_gains_nothing(self):
        err = self.case("mixed", BANYAN_MPI_CODEC="int8", BANYAN_MPI="stats=1")
        self.assertIn("codec int8: 0 sums of MPI_FLOAT were encoded; of 15 it was predicted to gain nothing", err)

    def test_codec_that_does_not_exist(self):
        err = self.case("mixed", BANYAN_MPI_CODEC="int9")
        self.assertIn("stays on MPI", err)
        self.assertIn("int9", err)

    def test_buffers_at_absolute_addresses(self):
        self.case("bottom")

    def test_buffers_at_absolute_addresses_at_one_rank(self):
        self.case("bottom_at_one_rank")

    def test_overlapping_buffers_work_where_the_mpi_takes_them(self):
        plain, _, _ = self.run_ranks(3, CASES, "overlap", library=None, limit=60)
        code, out, err = self.run_ranks(3, CASES, "overlap", limit=60)
        self.assertEqual(code == 0, plain == 0, out + err)

    def test_blocking_and_non_blocking_calls_in_another_order_at_each_rank(self):
        err = self.case("crossed", BANYAN_MPI="stats=1")
        self.assertRegex(err, r" iallreduce +36 ")

    def test_init_by_lookup_leaves_all_on_the_mpi(self):
        self.case("found_init")

    def test_small_non_blocking_calls_are_the_mpis(self):
        for bytes_from, ours in ("4000000", 15), ("5000000", 0):
            err = self.case("mixed", BANYAN_MPI=f"nonblocking={bytes_from},stats=1")
            self.assertRegex(err, rf" iallreduce +{ours} ")

    def test_wrong_arguments_give_the_errors_of_the_mpi(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, library in ("plain", None), ("ours", LIBRARY):
                self.good(3, CASES, "wrong_arguments", f"{folder}/{name}", library=library, limit=60)
            for rank in range(3):
                plain, ours = (pathlib.Path(folder, f"{name}.{rank}").read_text(encoding="ascii").splitlines() for name in ("plain", "ours"))
                self.assertGreater(sum(not line.endswith(": 0") for line in plain), 100)
                self.assertEqual(plain, ours)

    def test_interposer_of_another_mpi_is_refused(self):
        if not OTHER:
            self.skipTest("only one MPI is installed")
        code, out, err = self.run_ranks(2, CASES, "mixed", library=OTHER, limit=60)
        self.assertNotEqual(code, 0, out)
        self.assertIn("this interposer was built for", err)

    def test_functions_that_the_mpi_lacks_are_not_there(self):
        for library in None, LIBRARY:
            self.case("large_counts", library=library)

    def test_persistent_collective_of_the_mpi_beside_one_of_ours(self):
        self.case("persistent_of_the_mpi")

    def persistent(self, name, made, ranks=3):
        code, out, err = self.run_ranks(ranks, CASES, name, limit=60, BANYAN_MPI="stats=1")
        self.assertEqual(code, 0, out + err)
        if "no persistent collectives" in out:
            self.skipTest("this MPI has no persistent collectives")
        self.assertIn("ok", out)
        self.assertRegex(err, rf" pallreduce +{made} ")
        return err

    def test_persistent_collectives_beside_messages(self):
        self.persistent("persistent", 3)

    def test_more_persistent_collectives_than_a_process_may_have(self):
        self.persistent("many_persistent", 2 * 2 * 511, ranks=2)

    def test_more_communicators_than_go_to_banyan(self):
        """512 beside MPI_COMM_WORLD, two sums each, at two ranks; then one on a line that is free again."""
        err = self.case("many_comms", ranks=2, BANYAN_MPI="stats=1")
        self.assertRegex(err, rf" allreduce +{2 * (1 + 2 * 512 + 1)} ")

    def test_persistent_collectives_that_differ(self):
        self.assertIn("rank 0 called allreduce(count 101, f32, sum)", self.persistent("persistent_mismatch", 6))

    def session(self, name):
        """MPICH 4.0.2 does not survive a session after all have ended: then there is nothing to compare."""
        plain, out, err = self.run_ranks(3, SESSIONS, name, library=None, limit=60)
        if "no sessions" in out:
            self.skipTest("this MPI has no sessions")
        for after in ("1", "3") if plain == 0 else ():
            out, err = self.good(3, SESSIONS, name, limit=60, BANYAN_MPI=f"after={after}")
            self.assertIn("ok", out, err)

    def test_session_without_init(self):
        self.session("alone")

    def test_sessions_one_after_another(self):
        self.session("again")

    def test_several_sessions(self):
        self.session("several")

    def test_session_inside_init(self):
        self.session("inside")

    def test_session_around_init(self):
        self.session("around")

    def test_session_of_another_thread(self):
        self.session("threads")

    def test_library_of_another_name(self):
        """MPICH 4.3, Intel MPI and MVAPICH are libmpi.so.12."""
        own = next(line.split()[2] for line in subprocess.run(["ldd", CASES], capture_output=True, text=True, check=True).stdout.splitlines()
                   if line.split()[0].startswith(("libmpich.so", "libmpi.so")))
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "libmpi.so.12" if MPI == "mpich" else "libompi-renamed.so")
            other.symlink_to(own)
            err = self.case("mixed", library=f"{LIBRARY}:{other}", BANYAN_MPI="stats=1")
        self.assertRegex(err, r" iallreduce +15 ")

    def test_unknown_mpi_gets_all_calls(self):
        for rank, lines in ("0", 1), ("1", 0):
            done = subprocess.run([UNKNOWN], env=dict(os.environ, LD_PRELOAD=LIBRARY, PMI_RANK=rank), capture_output=True, text=True, timeout=20, check=True)
            self.assertEqual(done.stdout, "ok\n")
            self.assertEqual(done.stderr.count("no interposer for Nobody's MPI 1.0: all calls go to the MPI library"), lines, done.stderr)

    def test_standard_interface_is_told_by_name_and_version(self):
        for version, said in ("1", "the program's MPI has no function PMPI_"), ("2", "no interposer for Nobody's MPI 1.0"):
            done = subprocess.run([STANDARD], env=dict(os.environ, LD_PRELOAD=LIBRARY, PMI_RANK="0", TEST_ABI_VERSION=version), capture_output=True,
                                  text=True, timeout=20, check=True)
            self.assertEqual(done.stdout, "ok\n")
            self.assertIn(said, done.stderr)

    def test_preloaded_into_a_program_without_mpi(self):
        done = subprocess.run(["true"], env=dict(os.environ, LD_PRELOAD=LIBRARY), capture_output=True, timeout=20)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


class Fortran(Mpi):
    """fortran.F90 checks its results itself: plain, so that a failure is ours, and with the interposer."""

    def both(self, ranks):
        if not FORTRAN:
            self.skipTest("no Fortran compiler for this MPI (gfortran)")
        for program in FORTRAN:
            plain, _ = self.good(ranks, program, library=None, limit=60)
            ours, err = self.good(ranks, program, limit=60, BANYAN_MPI="stats=1")
            self.assertRegex(plain, r"ok \d+ checks")
            self.assertEqual(plain, ours)
            rows = {w[1]: w[2:] for w in map(str.split, err.splitlines()) if len(w) == 7 and w[2].isdigit()}
            for name in "allreduce", "reduce", "bcast", "scan", "gatherv", "alltoall", "iallreduce", "ibcast":
                self.assertGreater(int(rows[name][0]), 0, err)

    def test_fortran_2_ranks(self):
        self.both(2)

    def test_fortran_3_ranks(self):
        self.both(3)


class Hpcc(Mpi):
    """HPC Challenge, which Debian builds with its default MPI."""

    def test_hpc_challenge(self):
        if MPI != "openmpi":
            self.skipTest("Debian's hpcc is linked with Open MPI")
        if not shutil.which("hpcc"):
            self.skipTest("hpcc is not installed")
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "hpccinf.txt").write_text(HPCC_INPUT, encoding="ascii")
            here = os.getcwd()
            os.chdir(folder)
            try:
                _, err = self.good(4, "hpcc", BANYAN_MPI="stats=1")
                result = pathlib.Path("hpccoutf.txt").read_text(encoding="ascii", errors="replace")
            finally:
                os.chdir(here)
        self.assertIn("Success=1", result)
        self.assertIn("0 tests completed and failed residual checks", result)
        self.assertIn("on banyan", err)


HPCC_INPUT = """HPLinpack benchmark input file
test
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
400          Ns
1            # of NBs
40           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
2            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0                               Number of additional problem sizes for PTRANS
1200 10000 30000                values of N
0                               number of additional blocking sizes for PTRANS
40 9 8 13 13 20 16 32 64        values of NB
"""


if __name__ == "__main__":
    tap.main(Random, Cases, Fortran, Hpcc)
