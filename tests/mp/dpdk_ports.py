# SPDX-License-Identifier: BSD-3-Clause
"""Ports of DPDK in a network namespace of their own, for test_dpdk.py: runs a job of two ranks, each with a port, and prints
what the ranks print. Ends with their status.
Usage: unshare -n python3 dpdk_ports.py HOW BANYAN_RUN COMMAND...
    tap         two net_tap on a bridge; the kernel's end of the bridge asks who has rank 0's address
    xdp         net_af_xdp on both ends of a veth;  xdp-busy: both on one end
    af MTU      net_af_packet on both ends of a veth; strangers' frames are sent to rank 1 meanwhile
    collide     net_af_packet, both on one interface and in one fan-out group
    narrow      net_af_packet, MTU 9000, but 1500 on the way
    card N HOW[+routed]  N ranks on a bridge, each with a card that only pretends (pretended_card.c); +short: another router before
                rank 1, and a link of 1400 bytes between the two (IPv6)
    vhost       net_vhost and net_virtio_user over a socket in a folder of ours
With BANYAN_TEST_IP6=1 all addresses are of IPv6."""
import atexit
import fcntl
import os
import random
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
IP6 = os.environ.get("BANYAN_TEST_IP6") == "1"
TWO = ["fd09::1", "fd09::2"] if IP6 else ["10.9.0.1", "10.9.0.2"]
SEED = int(os.environ.get("BANYAN_TEST_SEED", 0)) or random.randrange(1 << 32)
ETH = 62 if IP6 else 42  # bytes before our header


def ip(line):
    subprocess.run(["ip", *line.split()], check=True)


def add(address, interface):
    """Of the kernel, which is not to look whether another has it."""
    ip(f"addr add {address}/{64 if ':' in address else 24} dev {interface}" + (" nodad" if ":" in address else ""))


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
    add("fd09::100" if IP6 else "10.9.0.100", "br0")
    arp = set()

    def take(frame):
        if frame[12:14] == b"\x08\x06":
            arp.add((frame[21], ".".join(map(str, frame[28:32])), ".".join(map(str, frame[38:42]))))
        if frame[12:14] == b"\x86\xdd" and frame[20] == 58 and frame[54] in (135, 136):
            arp.add((frame[54] - 134, socket.inet_ntop(socket.AF_INET6, frame[22:38]), socket.inet_ntop(socket.AF_INET6, frame[62:78])))

    Sniffer("br0", take)
    job = ranks(["net_tap0,iface=dt0", "net_tap1,iface=dt1"], TWO)
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
            with socket.socket(socket.AF_INET6 if IP6 else socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.sendto(b"?", (TWO[0], 9))
            asked = subprocess.run(["ip", "neigh", "show", TWO[0]], capture_output=True, text=True).stdout
        time.sleep(0.02)
    if ("lladdr" in asked) != (job.returncode == 0):
        print("the kernel's question was not answered:", asked)
        return 1
    asked_by = {(a, b) for op, a, b in arp if op == 1}
    if not {tuple(TWO), tuple(TWO[::-1])} & asked_by:
        print("no rank asked for another:", arp)
        return 1
    return job.returncode


def xdp():
    veth("a0", "a1")
    second = "a0" if HOW == "xdp-busy" else "a1"
    return ranks(["net_af_xdp0,iface=a0", f"net_af_xdp1,iface={second}"], TWO).wait()


def strange(frame, n):
    """What a stranger makes of a frame that he saw: 14 Ethernet, 20 IPv4 or 40 IPv6, 8 UDP, then our header (transport/datagram/packet.h).
    Of IPv6 the UDP checksum is made right again, which covers all of it, or it alone is wrong."""
    f = bytearray(frame)
    kind = random.randrange(7 if IP6 else 6)
    if kind == 0:  # again
        return bytes(f)
    if kind == 6:
        f[61] ^= 0xa5
        return bytes(f)
    if kind == 1:  # another tag
        f[ETH + 4] ^= 0x5a
    elif kind == 2:  # cut
        return bytes(f[:ETH + 2 + n % 30])
    elif kind == 3:  # an offset that cannot be
        f[ETH + 32:ETH + 36] = struct.pack("<I", 0xfffffff1)
    elif kind == 4:  # a sequence number far away, and what it acknowledges
        f[ETH + 8:ETH + 12] = struct.pack("<I", 0x7ffffff0 + n)
        f[ETH + 12:ETH + 16] = struct.pack("<I", 0x7fffff00 + n)
    else:  # of any type, with a header of any length
        f[ETH + 2], f[ETH + 18] = n % 256, n // 256 % 256
    if IP6:
        f[60:62] = b"\0\0"
        udp = bytes(f[22:54]) + struct.pack(">HHHH", 0, f[58] << 8 | f[59], 0, 17) + bytes(f[54:54 + (f[58] << 8 | f[59])])
        total = sum(struct.unpack(f">{(len(udp) + 1) // 2}H", udp + b"\0" * (len(udp) % 2)))
        while total >> 16:
            total = (total & 0xffff) + (total >> 16)
        f[60:62] = struct.pack(">H", 0xffff - total or 0xffff)
    return bytes(f)


def af():
    veth("a0", "a1", int(COMMAND.pop(0)))
    add(TWO[0], "a0")
    add(TWO[1], "a1")
    random.seed(SEED)
    out, sent, ours = packet_socket("a0"), [0], set()

    def take(frame):
        kind, proto, source = (b"\x86\xdd", 20, slice(22, 38)) if IP6 else (b"\x08\x00", 23, slice(26, 30))
        if frame[12:14] != kind or frame[proto] != 17 or frame[ETH:ETH + 2] != b"\x42\x4e" or len(frame) < ETH + 48 or sent[0] > 3000:
            return
        if frame[source] != socket.inet_pton(socket.AF_INET6 if IP6 else socket.AF_INET, TWO[0]):
            return
        if frame in ours:  # the stranger's are seen, too
            return
        sent[0] += 1
        f = strange(frame, sent[0])
        ours.add(f)
        try:
            out.send(f)
        except OSError:
            pass

    Sniffer("a1", take)
    job = ranks(["af_packet:iface=a0", "af_packet:iface=a1"], ["", ""] if os.environ.get("BANYAN_TEST_BY_IFACE") else TWO)
    rc = job.wait()
    print(f"{sent[0]} frames of a stranger, seed {SEED}")
    return rc or sent[0] < 300


def narrow():
    for i in (0, 1):
        veth_index = 1000 * (i + 1) + os.getpid() % 1000
        ip(f"link add a{i} index {veth_index + 17000 * i} mtu 9000 type veth peer name b{i} mtu 1500")
    ip("link add br0 mtu 1500 type bridge")
    for i in (0, 1):
        ip(f"link set b{i} master br0 up")
        add(TWO[i], f"a{i}")
        ip(f"link set a{i} up")
    ip("link set br0 up")
    return ranks(["af_packet:iface=a0", "af_packet:iface=a1"], TWO).wait()


def collide():
    veth("a0", "a1")
    for r in (1, 2):
        ip(f"addr add 10.9.0.{r}/24 dev a0")
    COMMAND[:0] = ["unshare", "--pid", "--fork", "--kill-child"]  # both are process 1 there, and 1 xor the interface's number
    return ranks(["af_packet:iface=a0", "af_packet:iface=a0"], ["10.9.0.1", "10.9.0.2"]).wait()


def switch(name, value):
    with open(f"/proc/sys/{name}", "w") as f:
        f.write(str(value))


def second_router():
    """In a namespace of its own, which ends with us."""
    there = subprocess.Popen(["unshare", "--net", "--kill-child", "--fork", "sh", "-c", "echo; exec sleep 600 >/dev/null 2>&1"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    atexit.register(there.kill)
    there.stdout.readline()
    inside = f"nsenter --net=/proc/{there.pid}/ns/net"
    ip(f"link set b1 netns {there.pid}")
    ip(f"link add m0 mtu 1400 type veth peer name m1 mtu 1400 netns {there.pid}")
    add("fd09:0:0:ff::1", "m0")
    ip("link set m0 up")
    for line in ("ip link set m1 up", "ip link set b1 up", "ip addr add fd09:0:0:ff::2/64 dev m1 nodad", "ip addr add fd09:0:0:1::fe/64 dev b1 nodad",
                 "ip addr add fe80::fe/64 dev b1 nodad", "ip route add default via fd09:0:0:ff::1",
                 "sh -c 'echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'"):
        subprocess.run(f"{inside} {line}", shell=True, check=True)
    ip("route add fd09:0:0:1::/64 via fd09:0:0:ff::2")


def card():
    n, how = int(COMMAND.pop(0)), COMMAND.pop(0)
    how, *net = how.split("+")  # routed: a router, and a subnet for each rank
    lines = []
    ip("link add br0 mtu 9110 type bridge")
    for r in range(n):
        # Indices far apart, as in veth().
        ip(f"link add a{r} index {4096 * (r + 1) + 1} mtu 9110 type veth peer name b{r} index {4096 * (r + 8) + 1}")
        ip(f"link set b{r} mtu 9110")
        if IP6:  # the kernel is no router behind the cards
            switch(f"net/ipv6/conf/a{r}/disable_ipv6", 1)
        if "routed" in net:
            add(f"fd09:0:0:{r}::fe" if IP6 else f"10.9.{r}.254", f"b{r}")
            if IP6:
                add("fe80::fe", f"b{r}")
            ip(f"link set b{r} up")
        else:
            ip(f"link set b{r} master br0 up")
        ip(f"link set a{r} up")
        if IP6:  # routers of IPv6 often have an address of the link alone
            gateway = "fe80::fe" if r % 2 else f"fd09:0:0:{r}::fe"
            address = f"fd09:0:0:{r}::1/64 BANYAN_DPDK_GATEWAY={gateway}" if "routed" in net else f"fd09::{r + 1}"
        else:
            address = f"10.9.{r}.1/24 BANYAN_DPDK_GATEWAY=10.9.{r}.254" if "routed" in net else f"10.9.0.{r + 1}"
        lines.append(f"if [ $BANYAN_RANK = {r} ]; then export BANYAN_TEST_CARD=a{r},{how} BANYAN_DPDK_ADDR={address}; fi")
    ip("link set br0 up")
    if "short" in net:
        second_router()
    if "routed" in net:
        switch("net/ipv6/conf/all/forwarding" if IP6 else "net/ipv4/ip_forward", 1)
    return subprocess.call([RUN, "-n", str(n), "sh", "-c", "; ".join(lines) + '; exec "$@"', "sh", *COMMAND],
                           env={"BANYAN_DPDK_PORT": "0000:03:00.0", **os.environ,
                                "BANYAN_DPDK": "mtu=9110," + os.environ.get("BANYAN_DPDK", "")})


def vhost():
    with tempfile.TemporaryDirectory() as d:
        # The client comes when the server's socket is there.
        COMMAND[:0] = ["sh", "-c", f'i=0; while [ $BANYAN_RANK = 1 ] && [ ! -S {d}/v ] && [ $i -lt 200 ]; do sleep .05; '
                                   'i=$((i + 1)); done; exec "$@"', "sh"]
        return ranks([f"net_vhost0,iface={d}/v", f"net_virtio_user0,path={d}/v,mac=02:00:00:00:00:02"], TWO).wait()


ip("link set lo up")
sys.exit({"tap": tap, "xdp": xdp, "xdp-busy": xdp, "af": af, "collide": collide, "narrow": narrow, "vhost": vhost, "card": card}[HOW]())
