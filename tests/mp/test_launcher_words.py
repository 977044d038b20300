# SPDX-License-Identifier: BSD-3-Clause
"""What banyan_run --hosts tells the launchers of others: programs in their place print their arguments and environment.
And the options of banyan_run that are wrong, or for ranks of this machine. Usage: test_launcher_words.py BANYAN_RUN"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

RUN, = sys.argv[1:]
PROGRAMS = "prterun", "mpiexec.hydra", "orterun", "srun"
PRINTS = """#!/bin/sh
printf '%s\\n' "${0##*/}" "$@" --
export -p
"""
OPENMPI, HYDRA = "--host {} -np {}", "-hosts {} -n {}"
BOUND = " --bind-to core:overload-allowed"  # prterun alone
SRUN = "--nodelist {} --nodes {} --ntasks {} --ntasks-per-node {} --input=0"
# Hosts and ranks; then what prterun and orterun, hydra, and srun are told.
TOLD = {
    "--hosts a:4,b:4": (OPENMPI.format("a:4,b:4", 8), HYDRA.format("a:4,b:4", 8), SRUN.format("a,b", 2, 8, 4)),
    "--hosts a:4,b:4 -n 4": (OPENMPI.format("a:4,b:4", 4), HYDRA.format("a:4,b:4", 4), SRUN.format("a", 1, 4, 4)),
    "--hosts a:4,b:4 -n 3": (OPENMPI.format("a:4,b:4", 3), HYDRA.format("a:4,b:4", 3), SRUN.format("a", 1, 3, 3)),
    "--host a,[::1],[::2]:1": (OPENMPI.format("a:1,[::1]:1,[::2]:1", 3), HYDRA.format("a:1,[::1]:1,[::2]:1", 3),
                               SRUN.format("a,[::1],[::2]", 3, 3, 1)),
}
# For one rank; what is added for prterun, hydra, orterun and srun.
FILES = "-outfile-pattern f.%r.out -errfile-pattern f.%r.err", "--output=f.%t.out --error=f.%t.err"
ADDED = {
    "--timeout .1": ("--timeout 1", "", "--timeout 1", "--time 1"),
    "--timeout 60.1": ("--timeout 61", "", "--timeout 61", "--time 2"),
    "--timeout 1e9": ("--timeout 1000000000", "", "--timeout 1000000000", "--time 16666667"),
    "--tag": ("--output tag", "-prepend-rank", "--tag-output", "--label"),
    "--output-filename f": ("--output file=f", FILES[0], "--output-filename f", FILES[1]),
    "--tag --output-filename f": ("--output tag,file=f", "-prepend-rank " + FILES[0],
                                  "--tag-output --output-filename f", "--label " + FILES[1]),
    "-x W='one two' -x V": ("-x 'W=one two' -x V", "-genv W 'one two'", "-x 'W=one two' -x V", ""),
}
# What is refused, and with which words.
WRONG = {
    "--hosts a:x": '"x" is no number of ranks', "--hosts a:2 -n 3": "3 ranks are more than the 2",
    "--hostfile /nonexistent": "No such file", "--hosts ,": "no hosts in --hosts",
    "--hostfile /dev/null": "no hosts in --hostfile", "--hosts -oProxyCommand=x": "is no host",
    "--hosts 'a;x'": '"a;x" is no host', "--hosts 'a$(x):2'": '"a$(x)" is no host', "--hosts 'a`x`'": "is no host",
    "--hosts 'a slots=2 x'": '"x" is no host', "--hosts a --keep-going": "docs/hosts.md",
    "-n 2 --launcher srun": "give --hosts", "--hosts a --launcher rsh": "none of prterun, hydra, orterun, srun",
    "-n 1 -x =3": "NAME", "--hosts a --host b": "--hosts is given twice", "-n p 1": "from 1 to 4096, got p",
    "-np p2": "got p2", "-n 1 --timeout 1e12": "at most 1e9", "-n 1 --timeout nan": "at most 1e9",
    "-n 1 --tag --output-filename f": "files of its own", "--launcher srun --hosts a:4,b:2": "6 ranks on a:4,b:2",
    "--launcher srun --hosts a:2,b:4": "equally many ranks on each host",
    "--launcher srun --hosts a:4,b:4 -n 6": "equally many ranks on each host",
}
FILE = """# name and ranks
a slots=2 max_slots=8
	b:2   # two
c  max_slots=8 slots=2
"""
# The variables of a rank.
JOB = {"BANYAN_ID": "x", "BANYAN_RANK": "1", "BANYAN_WORLD_SIZE": "2", "BANYAN_LOCAL_RANK": "1",
       "BANYAN_LOCAL_SIZE": "2", "BANYAN_LISTEN_FD": "9", "BANYAN_BOARD_FD": "8", "BANYAN_RESTART_COUNT": "1",
       "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "x", "MASTER_PORT": "1",
       "TORCHELASTIC_RUN_ID": "x"}


class Words(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def program(self, name):
        with open(f"{self.folder}/{name}", "w", opener=lambda p, f: os.open(p, f, 0o755)) as f:
            f.write(PRINTS)

    def run_it(self, *options, **env):
        env.setdefault("PATH", self.folder)
        return subprocess.run([RUN, *options, "program", "-n"], capture_output=True, text=True,
                              env=tap.environment(**env))

    def told(self, *options, **env):
        """The launcher and its arguments before the program's; the environment."""
        p = self.run_it(*options, **env)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        words, _, variables = p.stdout.partition("\n--\n")
        words = words.split("\n")
        self.assertEqual(words[-2:], ["program", "-n"])
        pairs = [word.split("=", 1) for word in shlex.split(variables) if "=" in word]
        return words[:-2], dict(pairs)

    def check(self, options, program, want):
        found, env = self.told("--launcher", program.removeprefix("mpiexec."), *shlex.split(options))
        self.assertEqual(found, [program, *shlex.split(want)], options)
        return env

    def test_each_launcher(self):
        for program in PROGRAMS:
            self.program(program)
        for options, (openmpi, hydra, srun) in TOLD.items():
            for program, want in zip(PROGRAMS, (openmpi + BOUND, hydra, openmpi, srun)):
                self.check(options, program, want)
        one = OPENMPI.format("a:1", 1)
        for options, (prterun, hydra, orterun, srun) in ADDED.items():
            options = "--hosts a " + options
            self.check(options, "prterun", f"{one}{BOUND} {prterun}")
            self.check(options, "orterun", f"{one} {orterun}")
            env = self.check(options, "mpiexec.hydra", f"-hosts a:1 {hydra} -n 1")
            said = re.search("--timeout (.*)", prterun)
            self.assertEqual(env.get("MPIEXEC_TIMEOUT"), said and said[1])
            env = self.check(options, "srun", f"{SRUN.format('a', 1, 1, 1)} {srun}")
            self.assertEqual(env.get("W"), "one two" if "-x" in options else None)

    def test_which_launcher(self):
        self.program("srun")
        for program in "orterun", "mpiexec.hydra", "prterun":
            self.program(program)
            self.assertEqual(self.told("--hosts", "a")[0][0], program)
        self.assertEqual(self.told("--hosts", "a", SLURM_JOB_ID="7")[0][0], "srun")

    def test_variables_of_the_job_around(self):
        """A rank of another job may start one; the library's settings go along."""
        for program in PROGRAMS:
            self.program(program)
            found, env = self.told("--launcher", program.removeprefix("mpiexec."), "--hosts", "a", **JOB,
                                   BANYAN_CHUNK="64K")
            self.assertEqual(env.keys() & JOB.keys(), set())
            self.assertEqual(env["BANYAN_CHUNK"], "64K")
            self.assertEqual([word for word in found if word.startswith("BANYAN_")],
                             ["BANYAN_CHUNK"] if program in ("prterun", "orterun") else [])

    def test_hostfile(self):
        self.program("prterun")
        with open(self.folder + "/hosts", "w", newline="") as f:
            f.write(FILE + "d" * 2000 + "\n")
        for option in "--hostfile", "--machinefile":
            self.assertEqual(self.told(option, self.folder + "/hosts")[0],
                             ["prterun", "--host", f"a:2,b:2,c:2,{'d' * 2000}:1", "-np", "7", *BOUND.split()])

    def test_ways_to_say_np(self):
        self.program("prterun")
        for np in ("-n", "2"), ("-n2",), ("-np", "2"), ("-np2",), ("-np=2",), ("--ranks", "2"), ("--ranks=2",):
            self.assertEqual(self.told("--hosts", "a:4", *np)[0][3:5], ["-np", "2"], np)

    def test_wrong_words(self):
        self.program("srun")
        for options, words in WRONG.items():
            p = self.run_it(*shlex.split(options))
            self.assertEqual(p.returncode, 2, options + p.stderr)
            self.assertIn(words, p.stderr)
            self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
        with open(self.folder + "/hosts", "w") as f:
            f.write("a,b\n")
        self.assertIn('"a,b" is no host', self.run_it("--hostfile", self.folder + "/hosts").stderr)
        p = self.run_it("--hosts", "a", PATH="/nonexistent")
        self.assertEqual(p.returncode, 125, p.stderr)
        self.assertIn("PRRTE", p.stderr)

    def test_files_of_local_ranks(self):
        command = "sh", "-c", "echo $WORD $BANYAN_RANK; echo no >&2"
        p = subprocess.run([RUN, "-np", "2", "-x", "WORD=one", "--output-filename", self.folder + "/r", *command],
                           capture_output=True, text=True, env=tap.environment())
        self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "", ""))
        said = {}
        for name in os.listdir(self.folder):
            with open(os.path.join(self.folder, name)) as f:
                said[name] = f.read()
        self.assertEqual(said, {"r.0.err": "no\n", "r.0.out": "one 0\n", "r.1.err": "no\n", "r.1.out": "one 1\n"})


if __name__ == "__main__":
    tap.main(Words)
