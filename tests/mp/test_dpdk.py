# SPDX-License-Identifier: BSD-3-Clause
"""Jobs over DPDK: memif between ranks of this host, net_ring with faults between threads, other ports in a network namespace
(test_netns_dpdk.py has af_packet between namespaces); and what goes wrong says one clear line. Prints TAP.
Usage: test_dpdk.py memif|ring|ports|card RANK BANYAN_RUN BANYAN_PERF DPDK_HOST RANK_CARD"""
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time

KIND, RANK, RUN, PERF, HOST, CARD = sys.argv[1:7]
PORTS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "dpdk_ports.py")
OWN_EAL = ["--no-huge", "--no-shconf", "--single-file-segments", "-m", "1024", "--no-pci", "--no-telemetry", "-l", "0"]
SEED = os.environ.get("BANYAN_TEST_SEED") or str(random.randrange(1, 1 << 31))
count = failed = 0


def job(command, limit=60, **env):
    full = {**os.environ, "BANYAN_TRANSPORT": "dpdk", "BANYAN_OP_TIMEOUT": "20", "BANYAN_TOPO": "", "BANYAN_TEST_ALONE": "1", **env}
    try:
        p = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=full)
        return p.returncode, p.stdout + p.stderr
    except subprocess.TimeoutExpired as e:
        return 124, ((e.stdout or b"") + (e.stderr or b"")).decode(errors="replace") + f"\nafter {limit} s"


def ranks(n, case, arg="", **kw):
    return job([RUN, "-n", str(n), RANK, case, "env", "0", SEED, arg], **kw)


def ports(how, *command, limit=60, **kw):
    """Two ranks, each with a port of that kind, in a network namespace."""
    return job(["unshare", "-n", sys.executable, PORTS, how, RUN, *command], limit=limit, **kw)


def perf(collective, *more):
    return [PERF, collective, "-w", "1", "-n", "3", "--no-roofline", *more]


def report(name, good, text, why=""):
    global count, failed
    count += 1
    print(f"{'ok' if good else 'not ok'} {count} - {name}{why}", flush=True)
    if not good:
        failed += 1
        for line in text.splitlines()[-25:]:
            print("#", line)


def works(name, result):
    report(name, result[0] == 0, f"exit status {result[0]}, seed {SEED}\n" + result[1])


def says(name, what, result, why=""):
    """It must fail by itself, with these words in one line."""
    code, text = result
    if why:
        return report(name, True, "", why)
    line = any(all(w in l for w in what) for l in text.splitlines())
    report(name, code not in (0, 124) and line, f"exit status {code}; no line with {what}\n{text}")


def left():
    """What a dead process could leave behind: abstract sockets, files."""
    with open("/proc/net/unix") as f:
        found = [line.split()[-1] for line in f if "bny" in line]
    for folder in ("/dev/hugepages", "/dev/shm", "/tmp", "/run/dpdk", "/var/run/dpdk"):
        if os.path.isdir(folder):
            found += [f"{folder}/{name}" for name in os.listdir(folder) if re.search("bny|banyan_|rtemap|dpdk|memif", name)]
    return set(found)


def remains(before):
    """What is new and stays: other jobs' come and go."""
    new, end = left() - before, time.monotonic() + 20
    while new and time.monotonic() < end:
        time.sleep(0.1)
        new &= left()
    return sorted(new)


def quiet(name, result):
    """DPDK's own lines do not reach the user."""
    noise = [l for l in result[1].splitlines() if re.search(r"EAL:|memif|rte_|\w+\(\): |ETHDEV|VHOST|TELEMETRY|libbpf|libxdp", l)]
    report(name, result[0] == 0 and not noise, "\n".join(noise) or result[1])


def memif():
    works("collectives on 2 ranks", ranks(2, "sweep", "brief=1"))
    works("random calls on 4 ranks", ranks(4, "differential", "calls=60"))
    works("features together on 3 ranks", ranks(3, "product", "20", BANYAN_LINK_GBPS="1"))
    works("ring, multitree, packed x raw, lossless, int8, top-k on 4 ranks", ranks(4, "matrix", BANYAN_TOPO="ring:4"))
    works("every codec on 2 ranks", ranks(2, "every_codec"))
    works("checksums", ranks(2, "sweep", "brief=1", BANYAN_DPDK="check=mac"))
    works("packets of IPv6", ranks(2, "sweep", "brief=1", BANYAN_DPDK_ADDR="fd00::1", BANYAN_DPDK="mtu=1500"))
    works("short packets", ranks(2, "sweep", "brief=1", BANYAN_DPDK="mtu=1500"))
    works("faults on purpose", ranks(2, "matrix", BANYAN_TOPO="ring:2",
                                     BANYAN_DPDK=f"check=crc,loss=.01,dup=.02,reorder=.05,corrupt=.01,seed={SEED}"))
    one = perf("allreduce", "-P", "2", "-b", "8", "-e", "8")
    before = left()
    for arg in "", "", "", "child":
        code, text = ranks(3, "rank_dies", arg, BANYAN_OP_TIMEOUT="20")
        for pid in re.findall(r"child (\d+)", text):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        report("a killed rank is named by all survivors" + (", whose child lives on" if arg else ""), # whoever hears it first
               code == 137 and len(re.findall(r"after .*: rank 2 \(pid \d+ on \S+\) (?:died|is gone)", text)) == 2, f"{code}\n{text}")
    code, text = ranks(3, "rings_outlive_the_dead", "memif")
    report("a dead rank's rings stay mapped until their port is closed",
           code == 137 and len(re.findall(r"\d mappings stay", text)) == 2, f"{code}\n{text}")
    stays = remains(before)
    report("no socket and no file is left", not stays, str(stays))
    works("and the next start works", job(perf("allreduce", "-P", "2", "-b", "1M", "-e", "1M", "-c", "1")))
    mixed = [RUN, "-n", "2", "sh", "-c", '[ $BANYAN_RANK = 0 ] || export BANYAN_DPDK_ADDR=fd00::1; exec "$@"', "sh", RANK, "sweep", "env", "0", SEED, "brief=1"]
    says("an address of the other family", ["cannot be reached by transport", "has an IPv4 address, 10.0.0.1, and that of rank 1 an IPv6 one",
                                            "set BANYAN_DPDK_ADDR on all ranks"], job(mixed))
    for addr, gateway, words in (("fd00::g", "", ["BANYAN_DPDK_ADDR=fd00::g is no IPv4 or IPv6 address"]),
                                 ("ff02::1", "", ["is no IPv4 or IPv6 address of one port"]),
                                 ("fd00::1/129", "", ["nor one with the bits"]),
                                 ("fd00::1/64", "fd00:0:0:1::1", ["is not in the subnet"]),
                                 ("fd00::1/64", "10.9.0.1", ["are not of one family"]),
                                 ("fd00::1", "fd00::2", ["must say what ours is, as fd00::1/64"])):
        says(f"address {addr}, gateway {gateway or 'none'}", words, job(one, BANYAN_DPDK_ADDR=addr, BANYAN_DPDK_GATEWAY=gateway))
    says("no such port", ["BANYAN_DPDK_PORT=wlan", "is no port"], job(one, BANYAN_DPDK_PORT="wlan"))
    says("no such interface", ["no interface nosuch0", "BANYAN_DPDK_PORT"],
         job(one, BANYAN_DPDK_PORT="af_packet:iface=nosuch0"))
    says("no such card", ["0000:fe:1f.7", "vfio"],
         job(one, BANYAN_DPDK_PORT="0000:fe:1f.7", BANYAN_DPDK_ARGS="--no-huge -m 256"))
    says("no such card, with arguments for its driver", ["0000:fe:1f.7: bind it", "vfio"],
         job(one, BANYAN_DPDK_PORT="0000:fe:1f.7,mprq_en=1", BANYAN_DPDK_ARGS="--no-huge -m 256"))
    says("a card without the arguments that its comma tells of", ["BANYAN_DPDK_PORT=0000:fe:1f.7,", "is no port"],
         job(one, BANYAN_DPDK_PORT="0000:fe:1f.7,"))
    says("DPDK refuses an argument", ["DPDK does not start", "BANYAN_DPDK_ARGS"], job(one, BANYAN_DPDK_ARGS="--nonsense"))
    says("too little memory", ["memory", "BANYAN_DPDK_ARGS"],
         job(one, BANYAN_DPDK_ARGS="--no-huge --no-shconf --single-file-segments -m 8"))
    says("hugepages that are not there", ["DPDK does not start: hugepages are missing", "scripts/hugepages reserve"],
         job(one, BANYAN_DPDK_PORT="0000:fe:1f.7"), why=has_hugepages() and " # SKIP this machine has hugepages")
    says("no right to open a packet socket", ["interface lo", "needs CAP_NET_RAW"],
         job(["setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw"] + one, BANYAN_DPDK_PORT="af_packet:iface=lo"))
    for n in (2, 4):
        quiet(f"nothing of DPDK's own is shown on {n} ranks", job(perf("allreduce", "-P", str(n), "-b", "8", "-e", "64K", "-f", "64")))
    host()
    says("a fault that does not exist", ["BANYAN_DPDK:", '"los"'], job(one, BANYAN_DPDK="los=.1"))


def has_hugepages():
    with open("/proc/meminfo") as f:
        return not re.search(r"HugePages_Free: +0$", f.read(), re.M)


def host():
    """Programs that start DPDK themselves."""
    both = [RUN, "-n", "2", HOST]
    right = job(both + ["none", *OWN_EAL])
    report("a program's own DPDK", right[0] == 0 and right[1].count("right; 0 ports are left") == 2, str(right))
    says("a program's own DPDK and arguments for it", ["started by the program", 'BANYAN_DPDK_ARGS="-m 4096"', "unset it"],
         job(both + ["none", *OWN_EAL], BANYAN_DPDK_ARGS="-m 4096"))
    says("a program's own DPDK with too little memory", ["DPDK has no memory", "-m 512", "the program that started it"],
         job(both + ["none", *OWN_EAL[:4], "8", *OWN_EAL[5:]]))
    says("a program's own DPDK without cards", ["DPDK finds no port 0000:fe:1f.7", "--no-pci"],
         job(both + ["none", *OWN_EAL], BANYAN_DPDK_PORT="0000:fe:1f.7"))


def need_root():
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "ip", "link", "add", "a0", "type", "veth"], capture_output=True).returncode:
        print("1..0 # SKIP network namespaces need root")
        sys.exit(0)


def card_job(n, kind, case, arg="", loss=0, limit=90, net="", **kw):
    """Ranks with a card that only pretends (pretended_card.c): what it reads late must not have changed."""
    return ports("card", str(n), f"{kind},{loss}{net}", CARD, case, "env", "0", SEED, arg, limit=limit, **kw)


def sent(text):
    """Payload bytes sent by all ranks, those copied first, and segments that were attached."""
    counts = [[int(x) for x in m] for m in re.findall(r"(\d+) payload bytes were sent, (\d+) of them copied first", text)]
    return sum(c[0] for c in counts), sum(c[1] for c in counts), sum(int(x) for x in re.findall(r"(\d+) segments attached", text))


def card():
    need_root()
    for kind, loss in (("prompt", 0), ("lazy", 20)):
        name = f"a card that is {kind}, {loss} of 1000 frames lost"
        works(f"{name}: collectives", card_job(2, kind, "sweep", "brief=1", loss))
        works(f"{name}: random calls", card_job(3, kind, "differential", "calls=40", loss))
        works(f"{name}: features together", card_job(3, kind, "product", "10", loss, BANYAN_LINK_GBPS="1"))
        works(f"{name}: memory of all kinds", card_job(2, kind, "mem_mixed", "", loss))
    for kind in "prompt", "lazy":
        code, text = card_job(3, kind, "zero_copy", BANYAN_DEBUG="info")
        total, copied, attached = sent(text)
        report(f"a card that is {kind} copies nothing from memory of banyan_mem_alloc", code == 0 and "zero-copy send" in text and attached > 0,
               f"{code}, {total} sent, {copied} copied, {attached} attached\n{text}")
        print(f"# {total} payload bytes sent by 3 ranks, {copied} of them copied, {attached} segments attached")
    for kind, why in (("flat", "the driver sends one segment a frame"), ("physical", "addresses of DMA are physical")):
        code, text = card_job(2, kind, "sweep", "brief=1", BANYAN_DEBUG="info")
        total, copied, attached = sent(text)
        report(f"a card that is {kind} gets copies", code == 0 and f"frames are copied: {why}" in text and total > 0 and copied >= total
               and attached == 0, f"{code}, {total} sent, {copied} copied\n{text}")
    works("a VLAN", card_job(2, "prompt", "sweep", "brief=1", BANYAN_TEST_VLAN="7", BANYAN_DPDK="vlan=7"))
    works("a VLAN, checks, losses",
          card_job(3, "lazy", "differential", "calls=20", 10, BANYAN_TEST_VLAN="7", BANYAN_DPDK="vlan=7,check=mac"))
    says("another VLAN than the network's", ["allreduce", "deadline"],
         card_job(2, "prompt", "mem_mixed", BANYAN_TEST_VLAN="7", BANYAN_DPDK="vlan=8", BANYAN_OP_TIMEOUT="3"))
    works("ranks in subnets of their own, behind a router", card_job(3, "prompt", "sweep", "brief=1", net="+routed"))
    works("the same with losses", card_job(3, "lazy", "differential", "calls=20", 10, net="+routed", BANYAN_DPDK="check=crc"))
    works("IPv6", card_job(3, "prompt", "sweep", "brief=1", BANYAN_TEST_IP6="1"))
    works("IPv6, a VLAN, checks, losses",
          card_job(3, "lazy", "differential", "calls=20", 10, BANYAN_TEST_IP6="1", BANYAN_TEST_VLAN="7", BANYAN_DPDK="vlan=7,check=mac"))
    works("IPv6, ranks in subnets of their own, behind routers with global and local addresses",
          card_job(3, "lazy", "differential", "calls=20", 10, net="+routed", BANYAN_TEST_IP6="1"))
    code, text = card_job(2, "prompt", "sweep", "brief=1", net="+routed+short", BANYAN_TEST_IP6="1", BANYAN_DEBUG="debug")
    report("IPv6, routers that tell of a link of 1400 bytes", code == 0 and
           all(f"a router passes frames of 1414 bytes to rank {r}, not of 9124" in text and
               re.search(rf"to rank {r}: .*frames of up to 1414 bytes", text) for r in (0, 1)),
           f"{code}\n{text}")
    for kind in "prompt", "lazy":
        code, text = card_job(2, kind, "sweep", "brief=1", BANYAN_TEST_EVENT="3")  # RTE_ETH_EVENT_INTR_RESET
        report(f"a card that is {kind} and wants to be reset", code == 0 and len(re.findall("[1-9]\\d* resets", text)) == 2, f"{code}\n{text}")
    says("a card that is removed", ["rank", "port 0000:03:00.0 failed: it was removed"],
         card_job(2, "prompt", "sweep", "brief=1", BANYAN_TEST_EVENT="6"))  # RTE_ETH_EVENT_INTR_RMV
    code, text = card_job(3, "lazy", "rank_dies", "")
    report("a killed rank is named by all survivors", code == 137 and len(re.findall(r"after .*: rank 2 \(pid \d+ on \S+\) (?:died|is gone)", text)) == 2
           and "pretended card: a byte" not in text, f"{code}\n{text}")


def port_jobs():
    need_root()
    job_ = perf("allreduce", "-b", "4", "-e", "1M", "-f", "64", "-c", "1")
    quiet("net_tap: ARP asked, and answered to the kernel", ports("tap", *job_, BANYAN_DEBUG="warn"))
    code, text = ports("tap", *job_, BANYAN_DPDK="queues=2", BANYAN_DEBUG="info")
    report("net_tap with 2 queues", code == 0 and "2 queues" in text and "no rte_flow rule" in text, text)
    quiet("net_af_xdp", ports("xdp", *job_))
    says("an interface that another process has", ["iface=a0", "refuses to be set up", "another program may use it"], ports("xdp-busy", *job_))
    says("encryption is asked for", ["BANYAN_INTEGRITY=encrypt", "does not encrypt", "BANYAN_TRANSPORT=tcp"],
         ports("xdp", *job_, BANYAN_INTEGRITY="encrypt"))
    code, text = ports("xdp", *job_, BANYAN_INTEGRITY="encrypt", BANYAN_TRANSPORT="auto", BANYAN_DEBUG="info")
    report("auto goes without dpdk where encryption is asked for", code == 0 and "transport dpdk is left out" in text
           and "1 rank over shm (in memory)" in text, text)
    says("more queues than there are", ["net_af_xdp0", "has 1 queue each way", "set it to 1 at most"],
         ports("xdp", *job_, BANYAN_DPDK="queues=4"))
    quiet("net_vhost and net_virtio_user", ports("vhost", *job_))
    for mtu, queues, check in (("9000", "1", "none"), ("1500", "3", "mac")):
        code, text = ports("af", mtu, *job_, BANYAN_DPDK=f"queues={queues},check={check}", BANYAN_DEBUG="info")
        drops = set(re.findall(r"frames dropped: ([\w ]+)", text))
        want = {"cut", "wrong tags", "impossible headers", "out of place" if check == "none" else "wrong checks"}
        report(f"strangers' frames, MTU {mtu}, {queues} queues, check {check}", code == 0 and want <= drops, f"{code} {drops}\n{text}")
    six = {"BANYAN_TEST_IP6": "1"}
    quiet("net_tap: neighbour discovery asked, and answered to the kernel", ports("tap", *job_, BANYAN_DEBUG="warn", **six))
    quiet("net_af_xdp, IPv6", ports("xdp", *job_, **six))
    quiet("net_vhost and net_virtio_user, IPv6", ports("vhost", *job_, **six))
    for mtu, queues, check, iface in (("9000", "1", "none", "1"), ("1500", "3", "mac", "")):
        code, text = ports("af", mtu, *job_, BANYAN_DPDK=f"queues={queues},check={check}", BANYAN_DEBUG="info", BANYAN_TEST_BY_IFACE=iface, **six)
        drops = set(re.findall(r"frames dropped: ([\w ]+)", text))
        want = {"cut", "wrong tags", "impossible headers", "wrong checks"} | ({"out of place"} if check == "none" else set())
        report(f"strangers' frames, IPv6, MTU {mtu}, {queues} queues, check {check}", code == 0 and want <= drops, f"{code} {drops}\n{text}")
    code, text = ports("narrow", *job_, BANYAN_DEBUG="debug", **six)
    report("IPv6: 9000 bytes here, 1500 on the way, and no router to tell", code == 0 and "frames of 9014 bytes do not reach rank" in text
           and "of 1514 bytes" not in text, text)
    says("a fan-out group that another port has", ["interface a0", "fan-out group", "start again"], ports("collide", *job_))
    code, text = ports("narrow", *job_)
    report("9000 bytes here, 1500 on the way", code == 0 and "frames of 9014 bytes do not reach rank" in text
           and "BANYAN_DPDK=mtu" in text, text)
    for flow, line in (("take", "an rte_flow rule takes our frames"), ("refuse", "no rte_flow rule: refused for a test")):
        code, text = ports("tap", HOST, flow, *OWN_EAL, BANYAN_DPDK="queues=2", BANYAN_DEBUG="info")
        report(f"a driver that would {flow} a rule", code == 0 and line in text and text.count("right; ") == 2, text)
    code, text = ports("tap", HOST, "take", *OWN_EAL, BANYAN_DPDK="queues=2", BANYAN_DEBUG="info", **six)
    report("a driver that would take a rule for IPv6", code == 0 and "an rte_flow rule takes our frames" in text and text.count("right; ") == 2, text)


def ring():
    for faults in ("", "loss=.02,seed=", "dup=.1,seed=", "reorder=.1,seed=", "loss=.05,dup=.1,reorder=.1,corrupt=.02,seed="):
        env = {"BANYAN_TEST_TRANSPORT": "dpdk", "BANYAN_DPDK_PORT": "ring", "BANYAN_DPDK": "check=crc"}
        if faults:
            env["BANYAN_DPDK"] += "," + faults + SEED
        works(f"random calls on 3 threads, {faults or 'no faults'}",
              job([RANK, "--threads", "3", "differential", SEED, "calls=40"], limit=100, **env))


start = time.time()
print(f"# seed {SEED}")
{"memif": memif, "ring": ring, "ports": port_jobs, "card": card}[KIND]()
print(f"# {time.time() - start:.0f} s")
print(f"1..{count}")
sys.exit(failed > 0)
