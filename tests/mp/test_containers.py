# SPDX-License-Identifier: BSD-3-Clause
"""Ranks in containers: namespaces of processes and of users, and hidden /proc, in one network namespace or in two
(scripts/netns-cluster). Memory is shared only where it works, and copied at once only where both ranks may.
Usage: test_containers.py NETNS_CLUSTER RANK
       test_containers.py --as UID COMMAND...   in a user namespace whose user 0 is UID outside"""
import ctypes
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

CLONE_NEWUSER, PR_SET_PDEATHSIG = 0x10000000, 1
libc = ctypes.CDLL(None, use_errno=True)
# A rank's command is $@ behind these.
PROCESSES = 'exec unshare --pid --fork --kill-child "$@"'
USER = 'exec unshare --user --map-root-user "$@"'
NO_PROC = 'exec unshare --mount sh -c \'mount -t tmpfs none /proc && exec "$@"\' - "$@"'


def needs(*namespaces):
    """A test that cannot be where such namespaces are refused (in a chroot, or to users)."""
    probe = subprocess.run(["unshare", *namespaces, "true"], capture_output=True, text=True)
    return unittest.skipIf(probe.returncode, f"unshare {' '.join(namespaces)}: {probe.stderr.strip()}")


def run_as(uid, command):
    """Only who is outside of a new user namespace may write such a map."""
    made, mapped = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if libc.unshare(CLONE_NEWUSER) != 0:
            os._exit(99)
        os.write(made[1], b"1")
        os.read(mapped[0], 1)
        os.setgid(0)
        os.setuid(0)
        os.execvp(command[0], command)
    os.read(made[0], 1)
    for name in "uid_map", "gid_map":
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as f:
            f.write(f"0 {uid} 1")
    os.write(mapped[1], b"1")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255


class Containers(unittest.TestCase):
    def run_ranks(self, script, *case, hosts=1, per_host=3, **env):
        """The script's ranks do what the case says. Single copy serves from a few KiB on, whatever was measured here."""
        return subprocess.run([CLUSTER, "--net", f"star:0*{hosts}", "--timeout", "90", "--ranks-per-host", str(per_host), "--", "sh", "-c",
                               f'set -- "$0" "{case[0]}" $RANK $WORLD_SIZE 7 "{" ".join(case[1:])}"\n{script}', RANK],
                              capture_output=True, text=True, timeout=120,
                              env={**os.environ, "BANYAN_TEST_ALONE": "1", "BANYAN_TUNE": "0", "BANYAN_DEBUG": "debug", **env})

    def ranks(self, script, *case, **how):
        p = self.run_ranks(script, *case, **how)
        said = "\n".join(line for line in p.stderr.splitlines() if " info: plan" not in line)
        self.assertEqual(p.returncode, 0, f"{script}: {p.stdout}{said}")
        return p.stderr

    @needs("--pid", "--fork")
    def test_equal_process_ids_are_not_one_process(self):
        """Each is process 1 of its own namespace."""
        for cma in "1", "0":
            said = self.ranks(PROCESSES, "differential", "calls=60", BANYAN_CMA=cma)
            self.assertIn("rank 1 is reached over shm", said)

    def test_single_copy_in_one_direction_only(self):
        """Rank 2 may read the others' memory, and they not its, as they have fewer capabilities."""
        said = self.ranks('[ $RANK = 2 ] || exec setpriv --bounding-set -all --inh-caps -all "$@"\nexec "$@"', "differential", "calls=60")
        for one, other in (0, 2), (2, 0), (1, 2), (2, 1):
            self.assertIn(f"rank {one}: info: shm: no single copy between this rank and rank {other}", said)
        self.assertIn("rank 0: debug: rank 2 is reached over shm", said)

    @needs("--user", "--map-root-user")
    def test_user_namespaces_of_one_user(self):
        """Memory is shared; nobody may read another one's."""
        said = self.ranks(USER, "differential", "calls=60")
        self.assertIn("rank 0: info: shm: no single copy between this rank and rank 2", said)
        self.assertIn("rank 0: debug: rank 2 is reached over shm", said)

    @needs("--mount")
    def test_no_memory_is_shared_where_nothing_says_that_it_can_be(self):
        """Without /proc nobody knows which host and network namespace it is in."""
        for hosts in 1, 2:
            said = self.ranks(NO_PROC, "differential", "calls=40", hosts=hosts, per_host=2)
            self.assertNotIn("over shm", said)

    def test_namespaces_made_by_hand(self):
        """Of one rank each: without a loopback, and with an interface that is called as veth pairs are."""
        for script in "ip link set lo down; ip addr flush dev lo", "ip link set eth0 down; ip link set eth0 name veth1; ip link set veth1 up":
            said = self.ranks(f'{script}\nexec "$@"', "differential", "calls=40", hosts=2, per_host=1)
            self.assertIn("rank 0: debug: rank 1 is reached over tcp", said)

    def test_only_a_loopback_in_each(self):
        """The error says what to do."""
        p = self.run_ranks('BANYAN_IFNAME=lo exec "$@"', "differential", "calls=1", hosts=2, per_host=2)
        self.assertNotEqual(p.returncode, 0)
        self.assertRegex(p.stderr, "rank 2 cannot be reached by transport .auto.: .*127.0.0.1.*BANYAN_IFNAME")

    def test_the_same_address_in_each(self):
        """That of a bridge to containers, say, does not serve, and the error says so."""
        bridge = "ip link add inner0 type bridge; ip addr add 10.9.0.1/24 dev inner0; ip link set inner0 up"
        for name, serves in ("inner0", False), ("eth0", True):
            p = self.run_ranks(f'{bridge}\nexec "$@"', "differential", "calls=20", hosts=2, per_host=1, BANYAN_IFNAME=name)
            self.assertEqual(p.returncode == 0, serves, p.stderr)
            if not serves:
                self.assertRegex(p.stderr, r"rank 0 cannot connect to rank 1 at 10\.9\.0\.1:\d+: .*both have this address.*BANYAN_IFNAME")

    def test_a_root_at_a_loopback(self):
        p = self.run_ranks('MASTER_ADDR=127.0.0.1 exec "$@"', "differential", "calls=1", hosts=2, per_host=1, BANYAN_INIT_TIMEOUT="3")
        self.assertRegex(p.stderr, r"rank 1: no answer from the root at 127\.0\.0\.1:.*MASTER_ADDR")

    @needs("--user", "--map-root-user")
    def test_user_0_of_two_namespaces_is_two_users(self):
        """The kernel says so to who connects, and neither takes the other's memory."""
        script = f'[ $RANK = 2 ] || exec {sys.executable} {os.path.abspath(__file__)} --as 10000$((RANK / 2)) "$@"\nexec "$@"'
        said = self.ranks(script, "differential", "calls=40", per_host=4)
        self.assertIn("rank 0: debug: rank 1 is reached over shm", said)
        for other in 2, 3:
            self.assertIn(f"rank 0: debug: rank {other} is reached over tcp", said)
        self.assertNotIn("warning", said)


if __name__ == "__main__":
    if sys.argv[1] == "--as":
        sys.exit(run_as(int(sys.argv[2]), sys.argv[3:]))
    CLUSTER, RANK = sys.argv[1:3]
    probe = subprocess.run([CLUSTER, "--probe"], capture_output=True, text=True)
    if probe.returncode:
        print(f"1..0 # SKIP {probe.stderr.strip()}")
        sys.exit(0)
    tap.main(Containers)
