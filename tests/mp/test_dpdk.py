# SPDX-License-Identifier: BSD-3-Clause
"""Jobs over DPDK: memif between ranks of this host, af_packet between network namespaces, net_ring with faults between threads; and
what goes wrong says one clear line. Prints TAP. Usage: test_dpdk.py memif|wire|ring RANK BANYAN_RUN BANYAN_PERF NETNS_CLUSTER XDP_LOSS"""
import os
import random
import subprocess
import sys
import time

KIND, RANK, RUN, PERF, CLUSTER, XDP_LOSS = sys.argv[1:7]
# memif: unprivileged, --no-huge. wire: real frames, MTU 9000 and 1500, loss below the packet sockets. ring: faults by a seed.
SEED = os.environ.get("BANYAN_TEST_SEED") or str(random.randrange(1, 1 << 31))
count = failed = 0


def job(command, limit=60, **env):
    full = {**os.environ, "BANYAN_TRANSPORT": "dpdk", "BANYAN_OP_TIMEOUT": "40", "BANYAN_TOPO": "", "BANYAN_TEST_ALONE": "1", **env}
    try:
        p = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=full)
        return p.returncode, p.stdout + p.stderr
    except subprocess.TimeoutExpired as e:
        return 124, ((e.stdout or b"") + (e.stderr or b"")).decode(errors="replace") + f"\nafter {limit} s"


def ranks(n, case, arg="", **kw):
    return job([RUN, "-n", str(n), RANK, case, "env", "0", SEED, arg], **kw)


def hosts(n, mtu, command, loss=None, **kw):
    extra = ["--loss", loss, "--loss-tool", XDP_LOSS] if loss else []
    return job([CLUSTER, "--net", "star:" + ",".join(["0"] * n), "--mtu", str(mtu), "--timeout", "80"] + extra + ["--"] +
               command, limit=100, BANYAN_DPDK_PORT="af_packet:iface=eth0", **kw)


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


def says(name, what, result, limit=30):
    """It must fail by itself, with these words in one line."""
    code, text = result
    line = any(all(w in l for w in what) for l in text.splitlines())
    report(name, code not in (0, 124) and line, f"exit status {code}; no line with {what}\n{text}")


def sockets():
    with open("/proc/net/unix") as f:
        return sum("@bny" in line for line in f)


def memif():
    works("collectives on 2 ranks", ranks(2, "sweep", "brief=1"))
    works("random calls on 4 ranks", ranks(4, "differential", "calls=60"))
    works("ring, multitree, packed x raw, lossless, int8, top-k on 4 ranks", ranks(4, "matrix", BANYAN_TOPO="ring:4"))
    works("every codec on 2 ranks", ranks(2, "every_codec"))
    works("checksums", ranks(2, "sweep", "brief=1", BANYAN_DPDK_CHECK="mac"))
    works("short packets", ranks(2, "sweep", "brief=1", BANYAN_DPDK_MTU="1500"))
    works("faults on purpose", ranks(2, "matrix", BANYAN_TOPO="ring:2", BANYAN_DPDK_CHECK="crc",
                                     BANYAN_DPDK_FAULT=f"loss=.01,dup=.02,reorder=.05,corrupt=.01,seed={SEED}"))
    before = sockets()
    for _ in range(3):
        code, text = ranks(3, "rank_dies", BANYAN_OP_TIMEOUT="20")
        report("a killed rank is named by all survivors", code == 137 and text.count("rank 2 died") == 2, f"{code}\n{text}")
    report("no socket is left", sockets() <= before, f"{sockets()} sockets")
    works("and the next start works", job(perf("allreduce", "-P", "2", "-b", "1M", "-e", "1M", "-c", "1")))
    one = perf("allreduce", "-P", "2", "-b", "8", "-e", "8")
    says("no such port", ["BANYAN_DPDK_PORT=wlan", "is no port"], job(one, BANYAN_DPDK_PORT="wlan"))
    says("no such interface", ["no interface nosuch0", "BANYAN_DPDK_PORT"],
         job(one, BANYAN_DPDK_PORT="af_packet:iface=nosuch0"))
    says("no such card", ["0000:fe:1f.7", "vfio"],
         job(one, BANYAN_DPDK_PORT="0000:fe:1f.7", BANYAN_DPDK_ARGS="--no-huge -m 256"))
    says("DPDK refuses an argument", ["DPDK does not start", "BANYAN_DPDK_ARGS"], job(one, BANYAN_DPDK_ARGS="--nonsense"))
    says("too little memory", ["memory", "BANYAN_DPDK_ARGS"],
         job(one, BANYAN_DPDK_ARGS="--no-huge --no-shconf --single-file-segments -m 8"))
    says("a fault that does not exist", ["BANYAN_DPDK_FAULT"], job(one, BANYAN_DPDK_FAULT="los=.1"))


def wire():
    if subprocess.run([CLUSTER, "--probe"], capture_output=True).returncode == 77 or os.geteuid() != 0:
        print("1..0 # SKIP network namespaces with packet sockets need root")
        sys.exit(0)
    for mtu in (9000, 1500):
        works(f"matrix on 4 hosts, MTU {mtu}", hosts(4, mtu, ["sh", "-c", f"exec {RANK} matrix $RANK $WORLD_SIZE {SEED} ''"], BANYAN_TOPO="ring:4"))
        works(f"allreduce on 2 hosts, MTU {mtu}", hosts(2, mtu, perf("allreduce", "-b", "64", "-e", "4M", "-f", "16", "-c", "1")))
    for loss in ("0.01:udp", "0.05:udp"):
        works(f"loss of {loss}", hosts(2, 1500, perf("allreduce", "-b", "4M", "-e", "4M", "-c", "1"), loss=loss))


def ring():
    for faults in ("", "loss=.02,seed=", "dup=.1,seed=", "reorder=.1,seed=", "loss=.05,dup=.1,reorder=.1,corrupt=.02,seed="):
        env = {"BANYAN_TEST_TRANSPORT": "dpdk", "BANYAN_DPDK_PORT": "ring", "BANYAN_DPDK_CHECK": "crc"}
        if faults:
            env["BANYAN_DPDK_FAULT"] = faults + SEED
        works(f"random calls on 3 threads, {faults or 'no faults'}",
              job([RANK, "--threads", "3", "differential", SEED, "calls=40"], limit=100, **env))


start = time.time()
print(f"# seed {SEED}")
{"memif": memif, "wire": wire, "ring": ring}[KIND]()
print(f"# {time.time() - start:.0f} s")
print(f"1..{count}")
sys.exit(failed > 0)
