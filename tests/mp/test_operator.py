# SPDX-License-Identifier: BSD-3-Clause
"""What an operator breaks, on hosts that are network namespaces, and the words with which the job names cause and
remedy: all of them must be said, by whichever rank, before the job is ended. Default settings, but for the deadlines of
a stuck program.
Usage: test_operator.py NETNS_CLUSTER BANYAN_PERF [CASE...]"""
import concurrent.futures
import os
import re
import subprocess
import sys
import unittest

CLUSTER, PERF = sys.argv[1:3]
ONLY = sys.argv[3:]
LIMIT = 90  # s; a run is ended as soon as all is said

# Functions for the cases. The rules see what comes in, also what came in several packets and the kernel put together.
SHELL = r"""
HOOK="type filter hook input priority 0"
rule() { nft add rule inet t in "$@"; }
filter() { nft add table inet t && nft "add chain inet t in { $HOOK; }" && rule iif lo accept; }
closed() { filter; rule tcp dport $MASTER_PORT-$((MASTER_PORT + 16)) accept; rule 'tcp flags & (syn|ack) == syn' "$@"; }
on() { [ $RANK = $1 ]; }
"""
# The job sums 64 KiB until it is ended.
SUM = [PERF, "allreduce", "-b", "64K", "-e", "64K", "-n", "1000000", "-w", "1", "--inplace", "0", "--no-roofline"]

WHERE = r"rank {} \(pid \d+ on \S+\)"
CASES = {
    # name: what each host does before its rank starts, and what must be said
    "root's ports dropped": ("on 0 && { filter; rule 'tcp flags & (syn|ack) == syn' drop; }",
        [r"rank 1: no answer from the root at 10\.77\.0\.1:\d+ .* within \d+\.\d s .*firewall.*BANYAN_PORT_RANGE",
         r"ranks 1-2 of 3 did not reach the root"]),
    "only the root's ports open": ("closed drop",
        [r"rank [01] has no answer from " + WHERE.format("[12]") + r" at 10\.77\.\S+ .*firewall.*BANYAN_PORT_RANGE",
         r"cannot join the job: rank 0 cannot connect to rank 1 at .*: no answer in time.*firewall"]),
    "other ports rejected": ("closed reject with tcp reset",
        [r"cannot join the job: rank 0 cannot connect to rank 1 at .*Connection refused.*firewall"]),
    "a rank missing": ("on 2 && exec sleep 100",
        [r"rank 2 of 3 did not reach the root .* within \d+\.\d s; check that they run"]),
    "MTU from the start": ("filter; rule meta length gt 1400 drop",
        [r"rank [12]: its peer info does not get through to the root .* one MTU",
         r"ranks 1-2 of 3 reached the root .* one MTU"]),
    "MTU later": ("on 1 && { filter; rule meta length gt 1400 drop; }",
        [r"rank 1 at 10\.77\.0\.2:\d+ has acknowledged nothing .* one MTU"]),
    "two ranks cut off from each other": ("on 1 && { (sleep 3; filter; rule ip saddr 10.77.0.3 drop) & }",
        [WHERE.format(1) + " heard nothing of " + WHERE.format(2) + r" for 4\.4 s .*the network between them"]),
    "20 % loss at a host": ("on 1 && { filter; rule numgen random mod 100 lt 20 drop; }",
        [r"packets to rank 1 at 10\.77\.0\.2:\d+ were sent again: the network between these hosts loses them"]),
    "20 % loss where no connection is replaced": ("export BANYAN_TCP=replace=0; "
                                                  "on 1 && { filter; rule numgen random mod 100 lt 20 drop; }",
        [r"packets to rank 1 at 10\.77\.0\.2:\d+ were sent again: the network between these hosts loses them"]),
    "a network without a path first": ("a=$(ip -o -4 addr show eth0 | awk '{print $4}'); ip addr del $a dev eth0; "
                                       "ip addr add 10.9.$NETNS_HOST.1/24 dev eth0; ip addr add $a dev eth0; "
                                       "set -- \"$@\" -n 5",
        [r"Out of bounds values : 0 OK"]),
    "root's ports rejected": ("on 0 && { filter; rule 'tcp flags & (syn|ack) == syn' reject with tcp reset; }",
        [r"rank 1: no answer from the root at .* \(Connection refused\); is rank 0 running"]),
    "another secret": ("export BANYAN_SECRET=$(on 2 && echo 0123456789abcdefg || echo 0123456789abcdef0)",
        [r"rank 2 \(10\.77\.0\.3:\d+\) has another secret than rank 0 .*set BANYAN_SECRET"]),
    "a wrong interface at one rank": ("on 1 && export BANYAN_IFNAME=ens3",
        [r"no interface that is up and has an address fits BANYAN_IFNAME=ens3; this host has .*eth0"]),
    "a name that does not resolve": ("export MASTER_ADDR=nosuchhost.invalid",
        [r'rank 0\'s host "nosuchhost\.invalid" does not resolve']),
    "settings that differ": ("on 1 && export BANYAN_CHUNK=1M",
        [r"settings differ: set BANYAN_CHUNK or config.chunk_bytes alike on all ranks"]),
    "a misspelt variable": ("export BANYAN_CODEK=int8",
        [r"unknown variable BANYAN_CODEK \(did you mean BANYAN_CODEC\?\)"]),
    "stopped in init": ("on 2 && { kill -STOP $BASHPID; }",
        [r"rank 2 of 3 did not reach the root .* within \d+\.\d s"]),
    "a link that goes down": ("on 2 && { (sleep 3; ip link set eth0 down) & }",
        [WHERE.format(r"\d") + " heard nothing of " + WHERE.format(2) + r" for 4\.4 s .*that host, or the network"]),
    "few descriptors": ("ulimit -n 16", [r"oo many open files.*ulimit -n"]),
    "a rank twice": ("on 2 && export RANK=1", [r"two processes joined as rank 1: .*give each process its own rank"]),
    "no rank": ("on 2 && unset RANK", [r"RANK"]),
    "a crash": ("on 2 && { (sleep 3; pkill -SEGV -P $$ -x banyan_perf) & }",
        [WHERE.format(2) + r" died: its process ended without leaving the job"]),
    "closed standard streams": ("on 2 && exec <&- >&- 2>&-; set -- \"$@\" -n 5", [r"Out of bounds values : 0 OK"]),
    "a stopped rank": ("on 2 && { (sleep 3; pkill -STOP -P $$ -x banyan_perf) & }",
        [r"has not ended after 10 s; " + WHERE.format(2) + " does not answer: its process is stopped"]),
}


def run(case):
    """All that was said until everything expected was said, or time was up."""
    prepare, expected = CASES[case]
    script = SHELL + prepare + '\n"$@" & wait $!\n'
    command = [CLUSTER, "--net", "star:0*3", "--timeout", str(LIMIT), "--", "bash", "-c", script, "bash", *SUM]
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANYAN_") or k == "BANYAN_TUNE"}
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    said, missing = "", list(expected)
    for line in p.stdout:
        said += line
        missing = [e for e in missing if not re.search(e, line)]
        if not missing:
            p.terminate()
            break
    p.stdout.close()
    p.wait()
    return missing, said


class Operator(unittest.TestCase):
    """They wait most of the time: many run beside each other."""

    def test_all(self):
        names = [name for name in CASES if not ONLY or name in ONLY]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for name, (missing, said) in zip(names, pool.map(run, names)):
                with self.subTest(name):
                    self.assertFalse(missing, said)


if __name__ == "__main__":
    sys.argv[1:] = []
    probe = subprocess.run([CLUSTER, "--probe"], capture_output=True, text=True)
    nft = subprocess.run(["unshare", "-n", "nft", "add", "table", "inet", "t"], capture_output=True)
    if probe.returncode == 77 or nft.returncode != 0:
        print(f"needs network namespaces and nft: {probe.stderr}")
        sys.exit(77)
    unittest.main()
