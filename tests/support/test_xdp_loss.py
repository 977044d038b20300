# SPDX-License-Identifier: BSD-3-Clause
"""The loss that scripts/netns-cluster --loss makes is the loss that was asked for: of many datagrams between two namespaces, those that
neither arrive nor are dropped by the receiver's full socket. TCP beside them is not hit where only UDP is meant.
Usage: test_xdp_loss.py NETNS_CLUSTER XDP_LOSS"""
import os
import socket
import struct
import subprocess
import sys
import time
import unittest

SO_MEMINFO, SK_MEMINFO_DROPS, SO_RCVBUFFORCE = 55, 8, 33
BURST = 200  # less than the 256 that a veth keeps for its XDP program when the CPU is late


def address(rank):
    return f"10.78.0.{rank + 1}"


def dropped_by(s):
    """A full socket's drops, not the program's."""
    return struct.unpack("9I", s.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[SK_MEMINFO_DROPS]


def sender(n, size):
    """Keeps in step with the receiver over TCP, each burst of datagrams, so that its socket hardly fills."""
    with socket.create_server((address(0), 5001)) as server:
        server.settimeout(20)
        told = server.accept()[0]
    told.settimeout(30)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((address(1), 5000))
    data = bytes(size)
    for start in range(0, n, BURST):
        for _ in range(min(BURST, n - start)):
            s.send(data)
        told.sendall(b".")
        told.recv(1)


def receiver(n):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    s.bind((address(1), 5000))
    s.setblocking(False)
    until = time.monotonic() + 30
    while True:
        try:
            told = socket.create_connection((address(0), 5001), timeout=30)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
    got, left = 0, n
    while left > 0:
        told.recv(1)  # on the same link, behind the datagrams
        left -= BURST
        try:
            while s.recv(1):
                got += 1
        except BlockingIOError:
            pass
        told.sendall(b".")
    print(f"lost {n - got - dropped_by(s)}")


def lost(loss, mtu, n):
    p = subprocess.run([CLUSTER, "--net", "ring:2:0", "--mtu", str(mtu), "--loss", loss, "--loss-tool", TOOL, "--timeout", "60", "--",
                        sys.executable, os.path.abspath(__file__), "rank", str(n), str(mtu - 100)],
                       capture_output=True, text=True, timeout=90)
    if p.returncode:
        raise RuntimeError(p.stdout + p.stderr)
    return int(p.stdout.split("lost ")[1])


class Loss(unittest.TestCase):
    def test_one_in_a_hundred(self):
        """4.5 standard deviations are a tenth of it."""
        n = 200000
        for mtu in (1500, 9000):
            share = lost("0.01:udp", mtu, n) / n
            self.assertTrue(0.009 <= share <= 0.011, f"MTU {mtu}: asked 0.01, seen {share}")

    def test_none_and_all(self):
        self.assertEqual(lost("0", 9000, 5000), 0)
        self.assertEqual(lost("1:udp", 1500, 5000), 5000)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        receiver(int(sys.argv[2])) if os.environ["RANK"] == "1" else sender(int(sys.argv[2]), int(sys.argv[3]))
        sys.exit(0)
    CLUSTER, TOOL = sys.argv[1:3]
    probe = subprocess.run([CLUSTER, "--net", "ring:2:0", "--loss", "0", "--loss-tool", TOOL, "--", "true"], capture_output=True, text=True)
    if probe.returncode:
        print(probe.stderr.strip())
        sys.exit(77 if probe.returncode == 77 else 1)
    unittest.main(argv=sys.argv[:1])
