# SPDX-License-Identifier: BSD-3-Clause
"""banyan_run --hosts and --hostfile: ranks on eight hosts, which are network namespaces, by the launchers of others that are
installed here; what they pass on: variables, standard input to rank 0, exit status, output.
Usage: test_run_hosts.py NETNS_CLUSTER BANYAN_RUN BANYAN_PERF [TEST...]"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

CLUSTER, RUN, PERF, *ONLY = sys.argv[1:]
HOSTS = 8
# Host 0 starts the job once all namespaces are there; the agent, in ssh's place, enters the host that is its first argument but options.
SCRIPT = r"""
folder=$1; shift
echo $$ > $folder/new.$NETNS_HOST && mv $folder/new.$NETNS_HOST $folder/10.77.0.$((NETNS_HOST + 1))
if [ $NETNS_HOST != 0 ]; then until [ -e $folder/done ]; do sleep 0.05; done; exit; fi
for h in $(seq @N); do until [ -e $folder/10.77.0.$h ]; do sleep 0.05; done; done
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
"$@" <$folder/in
status=$?
touch $folder/done
exit $status
""".replace("@N", str(HOSTS))
AGENT = r"""#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec nsenter -t $(cat FOLDER/$host) -n -- sh -c "$*"
"""
LAUNCHERS = {"hydra": ("mpiexec.hydra", {"HYDRA_LAUNCHER": "ssh"}, "HYDRA_LAUNCHER_EXEC"),
             "orterun": ("orterun", {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_base_warn_component_unused": "0",
                                     "OMPI_MCA_oob_tcp_if_include": "eth0"}, "OMPI_MCA_plm_rsh_agent")}


class Hosts(unittest.TestCase):
    def run_on_hosts(self, launcher, options, command, text=""):
        program, env, agent = LAUNCHERS[launcher]
        if not shutil.which(program):
            self.skipTest(f"no {program} here")
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/agent", "w", opener=lambda p, f: os.open(p, f, 0o755)) as f:
                f.write(AGENT.replace("FOLDER", folder))
            with open(folder + "/in", "w") as f:
                f.write(text)
            with open(folder + "/hosts", "w") as f:
                f.write("# all alike\n" + "".join(f"10.77.0.{h + 1} slots=8\n" for h in range(HOSTS)))
            env = {**{k: v for k, v in os.environ.items() if not k.startswith("BANYAN_")}, **env, agent: folder + "/agent"}
            p = subprocess.run([CLUSTER, "--net", f"star:0*{HOSTS}", "--timeout", "120", "--", "bash", "-c", SCRIPT, "bash", folder, RUN, "--launcher",
                                launcher, *[o.replace("FOLDER", folder) for o in options], *command], capture_output=True, text=True, timeout=150,
                               stdin=subprocess.DEVNULL, env=env)
        return p.returncode, p.stdout, p.stderr

    def sums(self, launcher, *options, ranks):
        status, out, err = self.run_on_hosts(launcher, options, [PERF, "allreduce", "-b", "64K", "-e", "64K", "-n", "2", "-w", "1", "--inplace", "0", "--no-roofline"])
        self.assertEqual(status, 0, out + err)
        self.assertIn(f"allreduce, {ranks} ranks", out)
        self.assertIn("Out of bounds values : 0 OK", out)

    def passes_on(self, launcher):
        hosts = "10.77.0.1:2,10.77.0.3:1"
        shell = '[ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" = 0 ] && line=$(cat); echo "$WORD $BANYAN_CHUNK $line"; exit 3'
        status, out, err = self.run_on_hosts(launcher, ["--hosts", hosts, "-np", "3", "-x", "WORD=one", "-x", "BANYAN_CHUNK=64K"], ["sh", "-c", shell], "two")
        self.assertEqual(status, 3, out + err)
        self.assertEqual(sorted(line.rstrip() for line in out.splitlines() if line.startswith("one")), ["one 64K", "one 64K", "one 64K two"], out + err)

    def test_hydra_sums(self):
        """As many as the file's lines say."""
        self.sums("hydra", "--hostfile", "FOLDER/hosts", ranks=64)

    def test_orterun_sums(self):
        self.sums("orterun", "--hosts", "10.77.0.1:2,10.77.0.4:2,10.77.0.8:2", ranks=6)

    def test_hydra_passes_on(self):
        self.passes_on("hydra")

    def test_orterun_passes_on(self):
        self.passes_on("orterun")

    def test_wrong_words(self):
        for options, words in ((["--hosts", "a:x"], '"x" is no number of ranks'), (["--hosts", "a:2", "-n", "3"], "3 ranks are more than the 2"),
                               (["--hostfile", "/nonexistent"], "No such file"), (["--hosts", ","], "no hosts"), (["--hosts", "-oProxyCommand=x"], "is no host"),
                               (["--hosts", "a", "--keep-going"], "docs/hosts.md"), (["-n", "2", "--launcher", "srun"], "give --hosts"),
                               (["--hosts", "a", "--launcher", "rsh"], "none of prterun, hydra, orterun, srun"), (["-n", "1", "-x", "=3"], "NAME")):
            p = subprocess.run([RUN, *options, "true"], capture_output=True, text=True)
            self.assertEqual(p.returncode, 2, p.stderr)
            self.assertIn(words, p.stderr)
        p = subprocess.run([RUN, "--hosts", "a", "true"], capture_output=True, text=True, env={"PATH": "/nonexistent"})
        self.assertEqual(p.returncode, 125, p.stderr)
        self.assertIn("PRRTE", p.stderr)

    def test_files_of_local_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            p = subprocess.run([RUN, "-np", "2", "-x", "WORD=one", "--output-filename", folder + "/r", "sh", "-c", "echo $WORD $BANYAN_RANK; echo no >&2"],
                               capture_output=True, text=True)
            self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "", ""))
            said = {}
            for name in os.listdir(folder):
                with open(os.path.join(folder, name)) as f:
                    said[name] = f.read()
        self.assertEqual(said, {"r.0.err": "no\n", "r.0.out": "one 0\n", "r.1.err": "no\n", "r.1.out": "one 1\n"})


if __name__ == "__main__":
    sys.argv[1:] = []
    if subprocess.run([CLUSTER, "--probe"], capture_output=True).returncode == 77:
        print("needs network namespaces")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + ONLY)
