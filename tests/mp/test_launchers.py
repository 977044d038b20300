# SPDX-License-Identifier: BSD-3-Clause
"""banyan_perf as it is, on four ranks, under the launchers that users have: Open MPI's and MPICH's mpirun, and processes with
torchrun's variables; and banyan_doctor, as docs/hosts.md says.
Usage: test_launchers.py BANYAN_PERF BANYAN_RUN BANYAN_DOCTOR LIBBANYAN"""
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

PERF, RUN, DOCTOR, LIBRARY = sys.argv[1:]
DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "hosts.md")
RANKS = 4
COMMAND = [PERF, "allreduce", "-b", "4", "-e", "64K", "-f", "16"]
SIZES = ["4", "64", "1024", "16384"]
LIMIT_S = 90


class Launchers(unittest.TestCase):
    def run(self, result=None):
        """With a home of its own for the cookie."""
        with tempfile.TemporaryDirectory() as self.home:
            return super().run(result)

    def finish(self, jobs):
        """Outputs of the processes, which must all end well."""
        ends = tap.finish(jobs, LIMIT_S)
        for status, stdout, stderr in ends:
            self.assertEqual(status, 0, stdout + stderr)
        return "".join(stdout for _, stdout, _ in ends)

    def start(self, *command, **env):
        return tap.start(*command, HOME=self.home, **env)

    def check(self, text):
        rows = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
        self.assertEqual([row[0] for row in rows], SIZES, text)
        self.assertIn(f"allreduce, {RANKS} ranks, transport shm", text)
        self.assertIn("# Out of bounds values : 0 OK", text)

    def mpirun(self, name, *options):
        if not shutil.which(name):
            self.skipTest(f"{name} is not installed")
        self.check(self.finish([self.start(name, *options, "-n", str(RANKS), *COMMAND)]))

    def test_open_mpi(self):
        self.mpirun("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe")

    def test_mpich(self):
        self.mpirun("mpirun.mpich")

    def test_torchrun_variables(self):
        port = str(tap.free_port())
        self.check(self.finish([self.start(*COMMAND, RANK=str(rank), LOCAL_RANK=str(rank),
                                           WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                                           MASTER_PORT=port) for rank in range(RANKS)]))

    def test_torchrun_within_mpirun(self):
        """As with srun --mpi=pmix: its workers inherit what torchrun itself was told, here that it is one of one."""
        job = " ".join(f"RANK={rank} LOCAL_RANK={rank} {' '.join(COMMAND)} &" for rank in range(RANKS))
        started = 0
        for name, *options in ("mpirun.mpich",), ("mpirun.openmpi", "--allow-run-as-root"):
            if shutil.which(name):
                started += 1
                self.check(self.finish([self.start(name, *options, "-n", "1", "sh", "-c", job + " wait", TORCHELASTIC_RUN_ID="none",
                                                   WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(tap.free_port()))]))
        if not started:
            self.skipTest("no mpirun is installed")


class Doctor(unittest.TestCase):
    def run(self, result=None):
        with tempfile.TemporaryDirectory() as self.home:
            return super().run(result)

    def examine(self, *command, **env):
        status, out, err = tap.finish([tap.start(*command, HOME=self.home, BANYAN_LIBRARY=LIBRARY, **env)], LIMIT_S)[0]
        self.assertEqual(status, 0, out + err)
        return out

    def command(self, words):
        """A command of the document, for two ranks of this machine; the launcher may be another of that name."""
        program, *rest = words
        if program == "banyan_run":
            return [RUN, "-n", "2", DOCTOR]
        if program == "mpirun":
            more = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if shutil.which("orterun") else []
            name = "orterun" if more else "mpirun"
            return [name, *more, "-n", "2", DOCTOR] if shutil.which(name) else None
        if program == "srun":  # its variables, for one rank: there is no Slurm here
            return ["env", "SLURM_PROCID=0", "SLURM_NTASKS=1", DOCTOR, *[w for w in rest if w == "--json"]]
        return [DOCTOR, *rest]

    def test_doctor_of_the_document(self):
        with open(DOCUMENT, encoding="utf-8") as f:
            block = re.search(r"## Before the first job.*?```sh\n(.*?)```", f.read(), re.S)[1]
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            command = self.command(words)
            out = self.examine(*command) if command else ""
            if "--json" in words:
                self.assertEqual(json.loads(out)["status"], 0, out)
                self.assertEqual(json.loads(out)["ranks"][0]["rank"], 0, out)
            elif command:
                self.assertRegex(out, r"ok +ranks +host \S+: (1 by no launcher|2 by \S+( PMI)?), on 1 host\n")
                self.assertRegex(out, r"ok +version +host \S+: banyan [\d.]+, wire version \d+\n")

    def test_doctor_by_mpich(self):
        if not shutil.which("mpirun.mpich"):
            self.skipTest("mpirun.mpich is not installed")
        self.assertRegex(self.examine("mpirun.mpich", "-n", "2", DOCTOR), "2 by MPICH's PMI, on 1 host\n")

    def test_doctor_refuses_an_option(self):
        status, _, err = tap.finish([tap.start(DOCTOR, "--rate", "0")], LIMIT_S)[0]
        self.assertEqual((status, "--rate" in err), (2, True), err)

    def test_doctor_out_of_range(self):
        status, out, _ = tap.finish([tap.start(DOCTOR, RANK="5", WORLD_SIZE="2")], LIMIT_S)[0]
        self.assertEqual(status, 1)
        self.assertRegex(out, "FAIL launcher +host .*: RANK=5 is not a whole number from 0 to 1; set RANK, WORLD_SIZE")


if __name__ == "__main__":
    tap.main(Launchers, Doctor)
