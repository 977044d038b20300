# SPDX-License-Identifier: BSD-3-Clause
"""What an operator breaks, on hosts that are network namespaces, and the words with which the job, or one run of
banyan_doctor, names cause and remedy: all of them must be said, by whichever rank, before the run is ended. Default
settings, but for deadlines, which are short here.
Usage: test_operator.py NETNS_CLUSTER BANYAN_PERF BANYAN_RUN BANYAN_DOCTOR LIBBANYAN [CASE...]"""
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

CLUSTER, PERF, RUN, DOCTOR, LIBRARY = sys.argv[1:6]
ONLY = sys.argv[6:]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LIMIT = 60  # s; a run is ended as soon as all is said

# Functions for the cases. The rules see what comes in, also what came in several packets and the kernel put together.
SHELL = r"""
HOOK="type filter hook input priority 0"
rule() { nft add rule inet t in "$@"; }
filter() { nft add table inet t && nft "add chain inet t in { $HOOK; }" && rule iif lo accept; }
closed() { filter; rule tcp dport $MASTER_PORT-$((MASTER_PORT + 16)) accept; rule 'tcp flags & (syn|ack) == syn' "$@"; }
on() { [ $RANK = $1 ]; }
small() { echo "mount -t tmpfs -o size=64k none $1"; }
full() { echo "$(small $1) && { dd if=/dev/zero of=$1/x status=none 2>/dev/null || :; }"; }
# In a chroot / is no mount, of which unshare could end the propagation.
mounts() { command=(unshare -m $(mountpoint -q / || echo --propagation unchanged) bash -c "$1 && exec \"\$@\"" bash); }
"""
# The job sums 64 KiB until it is ended.
SUM = [PERF, "allreduce", "-b", "64K", "-e", "64K", "-n", "1000000", "-w", "1", "--inplace", "0", "--no-roofline"]
LAZY = "star:20*3"  # Mbit/s
# A host with an RDMA device of two ports.
DEVICE = """mount -t tmpfs none /sys/class; d=/sys/class/infiniband/mlx5_0/ports; mkdir -p $d/1 $d/2/gids
    echo 1: DOWN >$d/1/state; echo Ethernet >$d/1/link_layer; echo 4: ACTIVE >$d/2/state
    echo InfiniBand >$d/2/link_layer; echo fe80:0000:0000:0000:0002:c903:00e0:8e07 >$d/2/gids/0"""
SECRET = "0123456789abcdefghijklmnopqrstuv"
LOSES = r"packets to rank 1 at 10\.77\.0\.2:\d+ were sent again: the network between these hosts loses them"
STUCK = f"""import sys; sys.path.insert(0, "{ROOT}/python")
import banyan, time
comm = banyan.Comm.from_env()
comm.rank == 2 and time.sleep(60)
comm.barrier()"""
LATE = f"""import sys; sys.path.insert(0, "{ROOT}/python")
import array, banyan, time
with banyan.Comm.from_env() as comm:
    x = array.array("f", 250 * [1])
    for _ in range(50):
        comm.rank == 2 and time.sleep(.06)
        comm.allreduce(x, op="max")
    comm.rank or print("all calls ended")"""
WELL = r"Out of bounds values : 0 OK"
NAMED = r"rank {} \(pid \d+ on \S+\)"
TELLS = r"banyan_doctor under the same launcher tells more"


class Case:
    """prepare: what each host does before its rank starts. said: what must be said; unsaid: what must not."""

    def __init__(self, prepare, *said, net="star:0*3", ranks=1, command=SUM, unsaid="", **env):
        self.prepare, self.said, self.net, self.ranks, self.command = prepare, said, net, ranks, command
        self.unsaid, self.env = unsaid, {"BANYAN_" + k: v for k, v in env.items()}


def doctor(prepare, *said, **more):
    """Hosts have names of their own."""
    names = 'set -- unshare -u sh -c \'hostname host$NETNS_HOST && exec "$@"\' sh "$@"; '
    return Case(names + prepare, *said, command=[DOCTOR, "--rate", ".05"], LIBRARY=LIBRARY, **more)


CASES = {
    # -- init
    "root's ports dropped": Case("on 0 && { filter; rule 'tcp flags & (syn|ack) == syn' drop; }",
        r"rank 1: no answer from the root at 10\.77\.0\.1:\d+ .* within \S+ s .*firewall.*BANYAN_PORT_RANGE.*" + TELLS,
        r"ranks 1-2 of 3 did not reach the root .*" + TELLS, INIT_TIMEOUT="2"),
    "root's ports rejected": Case("on 0 && { filter; rule 'tcp flags & (syn|ack) == syn' reject with tcp reset; }",
        r"rank 1: no answer from the root at .* \(Connection refused\); is rank 0 running", INIT_TIMEOUT="2"),
    "only the root's ports open": Case("closed drop",
        r"rank [01] has no answer from " + NAMED.format("[12]") + r" at 10\.77\.\S+ .*firewall.*BANYAN_PORT_RANGE",
        r"(deadline of init;|did not connect to the other ranks within) .* firewall in the way of BANYAN_PORT_RANGE\?",
        INIT_TIMEOUT="6"),
    "other ports rejected": Case("closed reject with tcp reset",
        r"cannot join the job: rank 0 cannot connect to rank 1 at .*Connection refused.*firewall.*" + TELLS),
    "a rank missing": Case("on 2 && exec sleep 100",
        r"rank 2 of 3 did not reach the root .* within \d+\.\d s; check that they run", INIT_TIMEOUT="1"),
    "stopped in init": Case("on 2 && { kill -STOP $BASHPID; }",
        r"rank 2 of 3 did not reach the root .* within \d+\.\d s", INIT_TIMEOUT="1"),
    "MTU from the start": Case("filter; rule meta length gt 1400 drop",
        r"rank [12]: its peer info does not get through to the root .* one MTU.*" + TELLS,
        r"ranks 1-2 of 3 reached the root .* one MTU"),
    "another secret": Case("on 2 && export BANYAN_SECRET=" + SECRET,
        r"rank 2 \(10\.77\.0\.3:\d+\) has another secret than rank 0 .*set BANYAN_SECRET"),
    "a network without a path first": Case("a=$(ip -o -4 addr show eth0 | awk '{print $4}'); ip addr del $a dev eth0; "
        "ip addr add 10.9.$NETNS_HOST.1/24 dev eth0; ip addr add $a dev eth0; set -- \"$@\" -n 5", WELL),
    "a wrong interface at one rank": Case("on 1 && export BANYAN_IFNAME=ens3",
        r"no interface that is up and has an address fits BANYAN_IFNAME=ens3; this host has .*eth0"),
    "a wrong interface at all ranks": Case("ip link add storage type veth peer name other; ip link set other up; "
        "ip addr add 10.9.$NETNS_HOST.1/24 dev storage; ip link set storage up; export BANYAN_IFNAME=storage",
        r"rank \d has no answer from " + NAMED.format(r"\d") + r" at 10\.9\.\S+ .*right interface \(BANYAN_IFNAME\)",
        INIT_TIMEOUT="7"),
    "a name that does not resolve": Case("export MASTER_ADDR=nosuchhost.invalid",
        r'rank 0\'s host "nosuchhost\.invalid" does not resolve'),
    "settings that differ": Case("on 1 && export BANYAN_CHUNK=1M",
        r"settings differ: set BANYAN_CHUNK or config.chunk_bytes alike on all ranks"),
    "a misspelt variable": Case("export BANYAN_CODEK=int8",
        r"unknown variable BANYAN_CODEK \(did you mean BANYAN_CODEC\?\)"),
    "few descriptors": Case("on 2 && ulimit -n 14", r"oo many open files.*ulimit -n"),
    "a rank twice": Case("on 2 && export RANK=1", r"two processes joined as rank 1: .*give each process its own rank"),
    "no rank": Case("on 2 && unset RANK", r"RANK"),
    "two jobs at one port": Case('"$@" &',
        r"two jobs have the same MASTER_ADDR and MASTER_PORT.*MASTER_PORT of its own"),
    "two jobs at one port with a secret each": Case('set -- "$@" -n 5; '
        '(export BANYAN_SECRET=' + SECRET + '; "$@" 2>&1 | sed "s/^/other: /") &', "^other: .*" + WELL, "^# " + WELL),
    # -- while it runs; mostly over a slow network, as then it takes little of the CPUs
    "MTU later": Case("on 1 && { (sleep 2; filter; rule meta length gt 1400 drop) & }",
        r"rank 1 at 10\.77\.0\.2:\d+ has acknowledged nothing .* one MTU.*" + TELLS, net=LAZY),
    "two ranks cut off from each other": Case("on 1 && { (sleep 2; filter; rule ip saddr 10.77.0.3 drop) & }",
        NAMED.format(1) + " heard nothing of " + NAMED.format(2) + r" for 4\.4 s .*the network between them", net=LAZY),
    "a link that goes down": Case("on 2 && { (sleep 2; ip link set eth0 down) & }",
        NAMED.format(r"\d") + " heard nothing of " + NAMED.format(2) + r" for 2\.5 s .*that host, or the network",
        net=LAZY, SILENT_S="2.5"),
    "20 % loss at a host": Case("on 1 && { filter; rule numgen random mod 100 lt 20 drop; }", LOSES),
    "20 % loss where no connection is replaced": Case("on 1 && { filter; rule numgen random mod 100 lt 20 drop; }",
        LOSES, TCP="replace=0"),
    "a slow host": Case("", r"allreduce of 16384 f32 took \S+ s, \d+ times what was predicted .* Data to " +
        NAMED.format(r"\d") + r" was on its way for \d+ % .*, at \S+ Mbit/s: that link is slow.*" + TELLS,
        net="star:0*2,20"),
    "a late rank": Case("", "all calls ended", command=[sys.executable, "-c", LATE], unsaid="that link is slow", LIBRARY=LIBRARY),
    "stuck in the program": Case("", "nobody is dead: " + NAMED.format(2) + " has not called it.*py-spy",
        command=[sys.executable, "-c", STUCK], OP_TIMEOUT="1", LIBRARY=LIBRARY),
    "a stopped rank": Case("on 2 && { (sleep 2; pkill -STOP -P $$ -x banyan_perf) & }",
        NAMED.format(2) + " does not answer: its process is stopped", net=LAZY, OP_TIMEOUT="1"),
    "a crash": Case("on 2 && { (sleep 2; pkill -SEGV -P $$ -x banyan_perf) & }",
        NAMED.format(2) + r" died: its process ended without leaving the job", net=LAZY),
    "closed standard streams": Case('set -- "$@" -n 5; on 2 && exec <&- >&- 2>&-', WELL),
    "small shared memory": Case('set -- "$@" -n 5; mounts "$(small /dev/shm)"', WELL, net="star:0", ranks=2),
    "a full disk for results": Case('set -- "$@" --json /mnt/results -n 5; mounts "$(full /mnt)"',
        r"banyan_perf: .*results could not be written: No space left on device"),
    "a full disk for records": Case('export BANYAN_DUMP=/mnt; (sleep 2; pkill -USR2 -P $$ -x banyan_perf) & '
        'mounts "$(full /mnt)"', r"BANYAN_DUMP: /mnt/\S+: No space left on device", net=LAZY),
    # -- what banyan_doctor finds; several faults a run
    "doctor: loss, MTU, version, setting, interface, disk, a slow host": doctor('export BANYAN_DUMP=/mnt; '
        'on 0 && export BANYAN_CHUNK=1M; '
        'on 1 && { filter; rule numgen random mod 100 lt 20 drop; mounts "$(full /mnt)"; }; on 2 && { filter; '
        "rule meta length gt 1400 drop; export BANYAN_LIBRARY=$BANYAN_LIBRARY.other BANYAN_IFNAME=ens3; }",
        r"FAIL loss +host host1: \d+ % of 200 packets are lost, to it; ip -s link",
        r"FAIL MTU +host host2: packets of more than 1400 bytes are lost .* is 1500, to it; .*ip link set IF mtu 1400",
        r"FAIL version +host host2: banyan \S+ wire version \d+, others banyan \S+ wire version \d+; install the same",
        r"FAIL settings +host host0: BANYAN_CHUNK=1M, others BANYAN_CHUNK=unset; set BANYAN_CHUNK alike",
        r"FAIL interface +host host2: no interface that is up fits BANYAN_IFNAME=ens3; this host has eth0,lo",
        r"FAIL BANYAN_DUMP +host host1: /mnt has 0 B left",
        r"FAIL rate +host host3: \S+ Mbit/s to and from it, \S+ .bit/s between the others; ethtool",
        net="star:0*3,20,0"),
    "doctor: closed ports, a way that is cut, a rank twice, a secret": doctor("on 1 && { filter; "
        "rule ip saddr 10.77.0.3 drop; }; on 3 && closed drop; on 5 && export RANK=4; "
        "on 6 && export BANYAN_SECRET=" + SECRET,
        r"FAIL ports +host host1: it cannot reach host2 at 10\.77\.0\.3:\d+: no answer",
        r"FAIL ports +host host2: it cannot reach host1 at 10\.77\.0\.2:\d+: no answer",
        r"FAIL ports +host host3: no other host reaches it at 10\.77\.0\.4:\d+: no answer; .*BANYAN_PORT_RANGE",
        r"FAIL ranks +all hosts: two processes are rank 4: host[45], process \d+, and host[45], process",
        r"FAIL secret +all hosts: rank 6 \(host6, 10\.77\.0\.7\) has another secret than rank 0; set BANYAN_SECRET",
        net="star:0*7"),
    "doctor: root's ports dropped, a port of RDMA down": doctor('set -- "$@" --wait 1; on 0 && { '
        "filter; rule 'tcp flags & (syn|ack) == syn' drop; mounts '" + DEVICE + "'; }",
        r"warn RDMA +host host0: mlx5_0:1 \(Ethernet\) is DOWN; ",
        r"ok +RDMA +host host0: mlx5_0:2 \(InfiniBand\) is ACTIVE, with GID 0 of type InfiniBand",
        r"FAIL rank 0 +host host2: rank 2 gets no banyan_doctor at 10\.77\.0\.1, ports 29401-29416: no answer; ",
        r"FAIL ranks +host host0: ranks 1, 2 of 3 did not come to rank 0"),
}


def run(case):
    """What is missing when everything expected was said, or time was up; and all that was said."""
    script = SHELL + case.prepare + '\n"${command[@]}" "$@" & wait $!; status=$?; wait; exit $status\n'
    command = [CLUSTER, "--net", case.net, "--ranks-per-host", str(case.ranks), "--timeout", str(LIMIT), "--", "bash",
        "-c",
               script, "bash", *case.command]
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANYAN_") or k == "BANYAN_TUNE"}
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**env, **case.env})
    said, missing = "", list(case.said)
    for line in p.stdout:
        said += line
        missing = [e for e in missing if not re.search(e, line)]
        if not missing:
            p.terminate()
            break
    p.stdout.close()
    p.wait()
    if case.unsaid and re.search(case.unsaid, said):
        missing.append("not " + case.unsaid)
    return missing, said


class MemoryGroup:
    """A control group of version 1 or 2 with a limit of memory, for processes that are started within; or OSError."""

    def __init__(self, limit):
        with open("/proc/self/cgroup") as f:
            groups = [line.rstrip("\n").split(":", 2) for line in f]
        old = [path for _, names, path in groups if "memory" in names.split(",")]
        new = [path for number, _, path in groups if number == "0"]
        root = "/sys/fs/cgroup/memory" + old[0] if old else "/sys/fs/cgroup" + new[0]
        self.path = f"{root}/banyan-test-{os.getpid()}"
        os.mkdir(self.path)
        try:
            with open(self.path + ("/memory.limit_in_bytes" if old else "/memory.max"), "w") as f:
                f.write(str(limit))
        except OSError:
            os.rmdir(self.path)
            raise

    def enter(self):
        with open(self.path + "/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))


class Operator(unittest.TestCase):
    """They wait most of the time: many run beside each other."""

    def test_all(self):
        names = [name for name in CASES if not ONLY or name in ONLY]
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            for name, (missing, said) in zip(names, pool.map(lambda n: run(CASES[n]), names)):
                with self.subTest(name):
                    self.assertFalse(missing, said)

    def test_memory_group(self):
        try:
            group = MemoryGroup(64 << 20)
        except OSError as e:
            self.skipTest(f"no memory cgroup can be made here: {e}")
        try:
            p = subprocess.run([DOCTOR], preexec_fn=group.enter, capture_output=True, text=True, timeout=LIMIT)
            self.assertRegex(p.stdout, r"warn memory +host .* MiB free below the memory cgroup's limit of 64.0 MiB")
            eats = "import os, time; os.environ['BANYAN_RANK'] == '1' and bytearray(b'x' * (1 << 28)) or time.sleep(60)"
            p = subprocess.run([RUN, "-n", "2", "--grace", "0", sys.executable, "-c", eats], preexec_fn=group.enter,
                               capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(p.returncode, 128 + signal.SIGKILL, p.stderr)
            self.assertRegex(p.stderr,
        r"rank 1 \(pid \d+\) was killed by signal 9 .*the kernel has killed for lack of memory "
                             r".*give it more, or run fewer ranks")
        finally:
            os.rmdir(group.path)


if __name__ == "__main__":
    sys.argv[1:] = []
    probe = subprocess.run([CLUSTER, "--probe"], capture_output=True, text=True)
    nft = subprocess.run(["unshare", "-n", "nft", "add", "table", "inet", "t"], capture_output=True)
    if probe.returncode == 77 or nft.returncode != 0:
        print(f"needs network namespaces and nft: {probe.stderr}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:  # a library of another wire version
        copy = os.path.join(folder, "libbanyan.so.1")
        with open(LIBRARY, "rb") as f:
            text = f.read()
        with open(copy + ".other", "wb") as f:
            f.write(re.sub(rb"(, wire version )\d", rb"\g<1>9", text))
        os.symlink(os.path.realpath(LIBRARY), copy)
        for case in CASES.values():
            if case.command[0] == DOCTOR:
                case.env["BANYAN_LIBRARY"] = copy
        unittest.main()
