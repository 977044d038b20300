# SPDX-License-Identifier: BSD-3-Clause
"""Ports of DPDK in a network namespace of their own, for test_dpdk.py: runs a job of two ranks, each with a port, and prints
what the ranks print. Ends with their status.
Usage: unshare -n python3 dpdk_ports.py HOW BANYAN_RUN COMMAND...
    tap         two net_tap on a bridge; the kernel's end of the bridge asks for rank 0's address by ARP
    xdp         net_af_xdp on both ends of a veth;  xdp-busy: both on one end
    af MTU      net_af_packet on both ends of a veth; strangers' frames are sent to rank 1 meanwhile
    collide     net_af_packet, both on one interface and in one fan-out group
    narrow      net_af_packet, MTU 9000, but 1500 on the way
    card N HOW[+routed]  N ranks on a bridge, each with a card that only pretends (pretended_card.c)
    vhost       net_vhost and net_virtio_user over a socket in a folder of ours"""
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

HOW, RUN, COMMAND = sys.argv[1], sys.argv[2], sys.argv[3:]
ETH_P_ALL = 3


def ip(line):
    subprocess.run(["ip", *line.split()], check=True)


def veth(a, b, mtu=1500):
    # Numbers far apart: net_af_packet's fan-out group is the process's number xor the interface's, and must differ.
    ip(f"link add {a} index {1000 + os.getpid() % 1000} mtu {mtu} type veth peer name {b} index {30000 + os.getpid() % 1000}")
    ip(f"link set {b} mtu {mtu}")
    for i in (a, b):
        ip(f"link set {i} up")


def ranks(ports, addresses):
    lines = [f"if [ $BANYAN_RANK = {r} ]; then export BANYAN_DPDK_PORT={p} BANYAN_DPDK_ADDR={a}; fi" for r, (p, a) in
             enumerate(zip(ports, addresses))]
    return subprocess.Popen([RUN, "-n", "2", "sh", "-c", "; ".join(lines) + '; exec "$@"', "sh", *COMMAND])


def packet_socket(interface):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    s.bind((interface, ETH_P_ALL))
    s.settimeout(0.2)
    return s


def query(interface, what):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            return fcntl.ioctl(s, what, struct.pack("16s24x", interface.encode()))
        except OSError:
            return bytes(40)


def is_up(interface):
    return query(interface, 0x8913)[16] & 1  # SIOCGIFFLAGS; 0x8927: SIOCGIFHWADDR


class Sniffer(threading.Thread):
    def __init__(self, interface, take):
        super().__init__(daemon=True)
        self.socket, self.take, self.over = packet_socket(interface), take, False
        self.start()

    def run(self):
        while not self.over:
            try:
                self.take(self.socket.recv(65536))
            except OSError:
                continue


def tap():
    ip("link add br0 type bridge")
    ip("link set br0 up")
    ip("addr add 10.9.0.100/24 dev br0")
    arp = set()

    def take(frame):
        if frame[12:14] == b"\x08\x06":
            arp.add((frame[21], ".".join(map(str, frame[28:32])), ".".join(map(str, frame[38:42]))))

    Sniffer("br0", take)
    job = ranks(["net_tap0,iface=dt0", "net_tap1,iface=dt1"], ["10.9.0.1", "10.9.0.2"])
    waiting, asked = ["dt0", "dt1"], ""
    while job.poll() is None:
        for t in ("dt0", "dt1"):
            # Not the DPDK port's own, or the bridge would keep its frames; DPDK sets that once more after the interface is up.
            if is_up(t) and query(t, 0x8927)[18:24] != bytes([2, 0, 0, 0, 1, int(t[2])]) and job.poll() is None:
                subprocess.run(["ip", "link", "set", t, "address", f"02:00:00:00:01:0{t[2]}"])
                if t in waiting:
                    subprocess.run(["ip", "link", "set", t, "master", "br0", "up"])
                    waiting.remove(t)
        if not waiting and not re.search("REACHABLE", asked):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.sendto(b"?", ("10.9.0.1", 9))
            asked = subprocess.run(["ip", "neigh", "show", "10.9.0.1"], capture_output=True, text=True).stdout
        time.sleep(0.02)
    if ("lladdr" in asked) != (job.returncode == 0):
        print("the kernel's question was not answered:", asked)
        return 1
    asked_by = {(a, b) for op, a, b in arp if op == 1}
    if not {("10.9.0.1", "10.9.0.2"), ("10.9.0.2", "10.9.0.1")} & asked_by:
        print("no rank asked for another:", arp)
        return 1
    return job.returncode


def xdp():
    veth("a0", "a1")
    second = "a0" if HOW == "xdp-busy" else "a1"
    return ranks(["net_af_xdp0,iface=a0", f"net_af_xdp1,iface={second}"], ["10.9.0.1", "10.9.0.2"]).wait()


def strange(frame, n):
    """What a stranger makes of a frame that he saw: 14 Ethernet, 20 IPv4, 8 UDP, then our header (transport/dpdk/packet.h)."""
    f = bytearray(frame)
    kind = n % 6
    if kind == 0:  # again
        return bytes(f)
    if kind == 1:  # another tag
        f[46] ^= 0x5a
    elif kind == 2:  # cut
        return bytes(f[:44 + n % 30])
    elif kind == 3:  # an offset that cannot be
        f[42 + 32:42 + 36] = struct.pack("<I", 0xfffffff1)
    elif kind == 4:  # a sequence number far away, and what it acknowledges
        f[42 + 8:42 + 12] = struct.pack("<I", 0x7ffffff0 + n)
        f[42 + 12:42 + 16] = struct.pack("<I", 0x7fffff00 + n)
    else:  # of any type, with a header of any length
        f[44], f[42 + 18] = n % 256, n // 256 % 256
    return bytes(f)


def af():
    veth("a0", "a1", int(COMMAND.pop(0)))
    ip("addr add 10.9.0.1/24 dev a0")
    ip("addr add 10.9.0.2/24 dev a1")
    out, sent = packet_socket("a0"), [0]

    def take(frame):
        if frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[42:44] != b"\x42\x4e" or len(frame) < 90 or sent[0] > 3000:
            return
        if frame[26:30] != bytes([10, 9, 0, 1]):
            return
        sent[0] += 1
        try:
            out.send(strange(frame, sent[0]))
        except OSError:
            pass

    Sniffer("a1", take)
    job = ranks(["af_packet:iface=a0", "af_packet:iface=a1"], ["10.9.0.1", "10.9.0.2"])
    rc = job.wait()
    print(f"{sent[0]} frames of a stranger")
    return rc or sent[0] < 300


def narrow():
    for i in (0, 1):
        veth_index = 1000 * (i + 1) + os.getpid() % 1000
        ip(f"link add a{i} index {veth_index + 17000 * i} mtu 9000 type veth peer name b{i} mtu 1500")
    ip("link add br0 mtu 1500 type bridge")
    for i in (0, 1):
        ip(f"link set b{i} master br0 up")
        ip(f"addr add 10.9.0.{i + 1}/24 dev a{i}")
        ip(f"link set a{i} up")
    ip("link set br0 up")
    return ranks(["af_packet:iface=a0", "af_packet:iface=a1"], ["10.9.0.1", "10.9.0.2"]).wait()


def collide():
    veth("a0", "a1")
    for r in (1, 2):
        ip(f"addr add 10.9.0.{r}/24 dev a0")
    COMMAND[:0] = ["unshare", "--pid", "--fork", "--kill-child"]  # both are process 1 there, and 1 xor the interface's number
    return ranks(["af_packet:iface=a0", "af_packet:iface=a0"], ["10.9.0.1", "10.9.0.2"]).wait()


def card():
    n, how = int(COMMAND.pop(0)), COMMAND.pop(0)
    how, *net = how.split("+")  # routed: a router, and a subnet for each rank
    lines = []
    ip("link add br0 mtu 9110 type bridge")
    for r in range(n):
        # Indices far apart, as in veth().
        ip(f"link add a{r} index {4096 * (r + 1) + 1} mtu 9110 type veth peer name b{r} index {4096 * (r + 8) + 1}")
        ip(f"link set b{r} mtu 9110")
        if net == ["routed"]:
            ip(f"addr add 10.9.{r}.254/24 dev b{r}")
            ip(f"link set b{r} up")
        else:
            ip(f"link set b{r} master br0 up")
        ip(f"link set a{r} up")
        address = f"10.9.{r}.1/24 BANYAN_DPDK_GATEWAY=10.9.{r}.254" if net == ["routed"] else f"10.9.0.{r + 1}"
        lines.append(f"if [ $BANYAN_RANK = {r} ]; then export BANYAN_TEST_CARD=a{r},{how} BANYAN_DPDK_ADDR={address}; fi")
    ip("link set br0 up")
    if net == ["routed"]:
        with open("/proc/sys/net/ipv4/ip_forward", "w") as f:
            f.write("1")
    return subprocess.call([RUN, "-n", str(n), "sh", "-c", "; ".join(lines) + '; exec "$@"', "sh", *COMMAND],
                           env={"BANYAN_DPDK_PORT": "0000:03:00.0", "BANYAN_DPDK_MTU": "9110", **os.environ})


def vhost():
    with tempfile.TemporaryDirectory() as d:
        # The client comes when the server's socket is there.
        COMMAND[:0] = ["sh", "-c", f'i=0; while [ $BANYAN_RANK = 1 ] && [ ! -S {d}/v ] && [ $i -lt 200 ]; do sleep .05; '
                                   'i=$((i + 1)); done; exec "$@"', "sh"]
        return ranks([f"net_vhost0,iface={d}/v", f"net_virtio_user0,path={d}/v,mac=02:00:00:00:00:02"],
                     ["10.9.0.1", "10.9.0.2"]).wait()


ip("link set lo up")
sys.exit({"tap": tap, "xdp": xdp, "xdp-busy": xdp, "af": af, "collide": collide, "narrow": narrow, "vhost": vhost, "card": card}[HOW]())
