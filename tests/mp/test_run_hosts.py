# SPDX-License-Identifier: BSD-3-Clause
"""banyan_run --hosts and --hostfile: ranks on eight hosts, which are network namespaces, by the launchers of others
that are installed here; what they pass on: variables, standard input to rank 0, exit status. test_launcher_words.py has
all options.
Usage: test_run_hosts.py NETNS_CLUSTER BANYAN_RUN BANYAN_PERF BANYAN_DOCTOR [TEST...]"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

CLUSTER, RUN, PERF, DOCTOR, *ONLY = sys.argv[1:]
HOSTS = 8
# Host 0 starts the job once all namespaces are there; the agent, in ssh's place, enters the host that is its first
# argument but options.
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
OPENMPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_oob_tcp_if_include": "eth0",
           "OMPI_MCA_btl_base_warn_component_unused": "0"}
# program, environment, the variable that names the agent
LAUNCHERS = {"hydra": ("mpiexec.hydra", {"HYDRA_LAUNCHER": "ssh"}, "HYDRA_LAUNCHER_EXEC"),
             "orterun": ("orterun", OPENMPI, "OMPI_MCA_plm_rsh_agent")}
SUM = [PERF, "allreduce", "-b", "64K", "-e", "64K", "-n", "2", "-w", "1", "--inplace", "0", "--no-roofline"]


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
            own = {k: v for k, v in os.environ.items() if not k.startswith("BANYAN_")}
            net = [CLUSTER, "--net", f"star:0*{HOSTS}", "--timeout", "120", "--", "bash", "-c", SCRIPT, "bash", folder]
            job = [RUN, "--launcher", launcher, *[o.replace("FOLDER", folder) for o in options], *command]
            p = subprocess.run(net + job, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL,
                               env={**own, **env, agent: folder + "/agent"})
        return p.returncode, p.stdout, p.stderr

    def sums(self, launcher, *options, ranks):
        status, out, err = self.run_on_hosts(launcher, options, SUM)
        self.assertEqual(status, 0, out + err)
        self.assertIn(f"allreduce, {ranks} ranks", out)
        self.assertIn("Out of bounds values : 0 OK", out)

    def passes_on(self, launcher):
        options = ["--hosts", "10.77.0.1:2,10.77.0.3:1", "-np", "3", "-x", "WORD=one", "-x", "BANYAN_CHUNK=64K", "-x",
                   "PLACE=FOLDER"]
        # A launcher ends the other ranks when one fails: rank 0 does so when they have ended.
        shell = """rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; say() { echo "$WORD $BANYAN_CHUNK $line"; }
            [ $rank = 0 ] || { say; touch $PLACE/$rank; exit; }
            line=$(cat); until [ -e $PLACE/1 -a -e $PLACE/2 ]; do sleep 0.05; done; say; exit 3"""
        status, out, err = self.run_on_hosts(launcher, options, ["sh", "-c", shell], "two")
        self.assertEqual(status, 3, out + err)
        said = sorted(line.rstrip() for line in out.splitlines() if line.startswith("one"))
        self.assertEqual(said, ["one 64K", "one 64K", "one 64K two"], out + err)

    def test_hydra_sums(self):
        """As many as the file's lines say."""
        self.sums("hydra", "--hostfile", "FOLDER/hosts", ranks=8 * HOSTS)

    def test_orterun_sums(self):
        self.sums("orterun", "--hosts", "10.77.0.1:2,10.77.0.4:2,10.77.0.8:2", ranks=6)

    def examine(self, launcher, words, *options):
        status, out, err = self.run_on_hosts(launcher, options, [DOCTOR])
        self.assertEqual(status, 0, out + err)
        self.assertRegex(out, "ok +ranks +all hosts: " + words)
        self.assertRegex(out, "ok +ports +all hosts: each host reaches each other one")

    def test_hydra_doctor(self):
        self.examine("hydra", "4 by MPICH's PMI, on 4 hosts", "--hosts", "10.77.0.1,10.77.0.3,10.77.0.5,10.77.0.8")

    def test_orterun_doctor(self):
        self.examine("orterun", "4 by PMIx, on 2 hosts", "--hosts", "10.77.0.1:2,10.77.0.4:2")

    def test_hydra_passes_on(self):
        self.passes_on("hydra")

    def test_orterun_passes_on(self):
        self.passes_on("orterun")


if __name__ == "__main__":
    sys.argv[1:] = []
    if subprocess.run([CLUSTER, "--probe"], capture_output=True).returncode == 77:
        print("needs network namespaces")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + ONLY)
