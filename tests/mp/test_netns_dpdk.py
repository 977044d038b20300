# SPDX-License-Identifier: BSD-3-Clause
"""The DPDK transport over real frames: net_af_packet on veths of network namespaces, directly and through a bridge, at MTU 9000 and
1500, with frames lost on the receiving interface, doubled, reordered and damaged; right values and an end within the limit in
all cases. What fails says why, and leaves nothing that blocks the next start.
Usage: test_netns_dpdk.py NETNS_CLUSTER BANYAN_PERF XDP_LOSS RANK"""
import os
import subprocess
import sys
import time
import unittest

CLUSTER, PERF, LOSS, RANK = sys.argv[1:5]
# Until the job is at work, however long its start takes.
BUSY = "for i in $(seq 400); do awk '/eth0:/ { n = $3 } END { exit n < 3000 }' /proc/net/dev && break; sleep .05; done"
COLLECTIVES = ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "alltoall", "gather", "scatter", "barrier", "sendrecv")


def run(net, *command, mtu=9000, loss=None, limit=60, env=None):
    more = ["--loss", loss, "--loss-tool", LOSS] if loss else []
    return subprocess.run([CLUSTER, "--net", net, "--mtu", str(mtu), "--queue", "10", "--timeout", str(limit), *more, "--", *command],
                          capture_output=True, text=True, timeout=limit + 20,
                          env={**os.environ, "BANYAN_DPDK_PORT": "af_packet:iface=eth0", "BANYAN_DEBUG": "warn", **(env or {})})


def perf(collective, first, last, *more, n="3"):
    return [PERF, collective, "-b", first, "-e", last, "-f", "16", "-w", "1", "-n", n, "-c", "2", "--inplace", "both", "--no-roofline",
            "--transport", "dpdk", *more]


class Dpdk(unittest.TestCase):
    def right(self, p):
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertIn("# Out of bounds values : 0 OK", p.stdout)

    def test_two_ranks(self):
        for mtu in (9000, 1500):
            self.right(run("ring:2:0", *perf("allreduce", "4", "4M"), mtu=mtu))
        for what in ("put_lat", "put_bw"):
            p = run("ring:2:0", *perf(what, "64", "16K"))
            self.right(p)
            self.assertNotIn("do not reach", p.stderr)  # they do: a peer that was busy was not to be taken for a short path

    def test_schedules_and_codecs(self):
        """ring, multitree, packed x raw, lossless, int8, top-k."""
        for mtu in (9000, 1500):
            p = run("star:0*4", "sh", "-c", f"exec {RANK} matrix $RANK $WORLD_SIZE 7 ''", mtu=mtu, limit=80,
                    env={"BANYAN_TRANSPORT": "dpdk", "BANYAN_TOPO": "ring:4", "BANYAN_TEST_ALONE": "1"})
            self.assertEqual(p.returncode, 0, p.stdout + p.stderr)

    def test_two_ranks_with_loss(self):
        for mtu, loss in ((9000, "0.01:udp"), (1500, "0.05:udp")):
            self.right(run("ring:2:0", *perf("allreduce", "4", "1M"), mtu=mtu, loss=loss))

    def test_four_ranks_all_collectives_with_loss(self):
        script = " && ".join(" ".join(perf(c, "64", "256K", n="2")) for c in COLLECTIVES)
        p = run("star:0*4", "sh", "-c", script, loss="0.01:udp", limit=120)
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertEqual(p.stdout.count("# Out of bounds values : 0 OK"), len(COLLECTIVES), p.stdout)

    def test_codecs_whose_frames_get_lost(self):
        for codec in ("int8", "topk", "lossless"):
            self.right(run("star:0*4", *perf("allreduce", "256K", "256K", "--codec", codec, "--schedule", "ring"), loss="0.02:udp"))

    def test_doubled_reordered_and_damaged(self):
        for fault in ("dup=0.1,seed=1", "reorder=0.1,seed=2", "loss=0.02,dup=0.05,reorder=0.05,seed=3"):
            self.right(run("ring:2:0", *perf("allreduce", "4", "1M"), env={"BANYAN_DPDK": fault}))
        self.right(run("ring:2:0", *perf("allreduce", "4", "1M"),
                       env={"BANYAN_DPDK": "corrupt=0.02,seed=4,check=crc"}))

    def test_ipv6(self):
        script = 'ip addr add fd09::$((RANK + 1))/64 dev eth0 nodad; export BANYAN_DPDK_ADDR=fd09::$((RANK + 1)); exec "$@"'
        for mtu, fault in ((9000, ""), (1500, "loss=0.02,dup=0.05,reorder=0.05,seed=3"), (9000, "corrupt=0.02,seed=4")):
            p = run("star:0*3", "sh", "-c", script, "sh", *perf("allreduce", "4", "1M"), mtu=mtu,
                    env={"BANYAN_DPDK": f"{fault},queues=2", "BANYAN_DEBUG": "info"})
            self.right(p)
            if "corrupt" in fault:  # by the UDP checksum alone
                self.assertIn("frames dropped: wrong checks", p.stderr)

    def test_many_to_one_through_a_slow_port(self):
        for mtu in (9000, 1500):
            self.right(run("star:200*4", *perf("gather", "1M", "1M"), mtu=mtu))

    def test_a_killed_rank(self):
        """Rank 1 is killed in the middle; the others fail by themselves, and the next job on the same kind of link works."""
        script = f'[ $RANK = 1 ] || exec "$@"; "$@" & {BUSY}; kill -KILL $!; wait $!'
        start = time.monotonic()
        p = run("star:0*3", "sh", "-c", script, "sh", *perf("allreduce", "1M", "1M", "-T", "40", n="1000000"), limit=60)
        self.assertNotIn(p.returncode, (0, 124), p.stdout + p.stderr)
        self.assertLess(time.monotonic() - start, 50)
        self.assertRegex(p.stderr, "rank 1|killed|gone")
        self.right(run("star:0*3", *perf("allreduce", "64K", "64K")))

    def test_a_link_that_goes_down(self):
        script = f'if [ $RANK = 1 ]; then ({BUSY}; ip link set eth0 down) & fi; exec "$@"'
        # The control plane, which the same link carries, would tell a silent host after 4.4 s.
        p = run("ring:2:0", "sh", "-c", script, "sh", *perf("allreduce", "1M", "1M", "-T", "30", n="1000000"), limit=60,
                env={"BANYAN_SILENT_S": "10"})
        self.assertNotIn(p.returncode, (0, 124), p.stdout + p.stderr)
        self.assertRegex(p.stderr, "link of eth0 has been down for 5 s .cable, switch, ip link set INTERFACE up.")

    def test_an_interface_that_is_not_there(self):
        p = run("ring:2:0", *perf("allreduce", "4", "4"), env={"BANYAN_DPDK_PORT": "af_packet:iface=eth7"}, limit=40)
        self.assertNotIn(p.returncode, (0, 124))
        self.assertIn("eth7", p.stderr)


if __name__ == "__main__":
    probe = subprocess.run([CLUSTER, "--net", "ring:2:0", "--loss", "0", "--loss-tool", LOSS, "--", "true"], capture_output=True, text=True)
    if probe.returncode == 77:
        print(probe.stderr.strip())
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)
