#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Codecs on a real wire: ranks in network namespaces behind a switch whose ports keep to a rate (scripts/netns-cluster). In
every round each column is run once, so that what else the machine does hits all alike; beside them, in the same round, a
plain TCP stream in both directions between two hosts: the link's payload rate. All settings are defaults: a codec is permitted,
and runs where banyan predicts a gain; the link's rate it measures in the warm-up.

    perf/codec_wire.py BUILD [--rates 1000,10000] [--ranks 2,4] [--sizes 16M,64M] [--rounds 3] [--json FILE]
    perf/codec_wire.py BUILD --rates 100,300,1000,3000 --ranks 8 --per-host 4 --sizes 16M \\
        --columns raw,int8,int4+EF,topk+EF,lossless --svg FILE
    perf/codec_wire.py BUILD --chunks 64K,128K,256K,512K,1M --columns int8 --rates 1000 --ranks 2 --sizes 64M

Columns: payload, gloo, openmpi, mpich (those that are installed), raw, int8, int4+EF, topk+EF,
sign+EF, lossless, raw-bf16, lossless-bf16.
`wire / payload` is the time that the payload rate needs for what the rank that sent most sent, over the time measured: 1
is a link that never waits. Hosts are namespaces of one machine, whose processors all ranks share. Times are the slowest
rank's, medians over iterations, then over rounds; least and largest round."""
import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "peers"))
import run as peers  # noqa: E402  (perf/peers/run.py)

CLUSTER = os.path.join(HERE, "..", "scripts", "netns-cluster")
PLOT = os.path.join(HERE, "..", "tools", "banyan_plot")
OURS = {  # name: codec, type
    "raw": ("none", "f32"), "int8": ("may:int8", "f32"), "int4+EF": ("may:int4", "f32"),
    "topk+EF": ("may:topk:delta=0.01", "f32"), "sign+EF": ("may:sign", "f32"),
    "lossless": ("may:lossless", "f32"), "raw-bf16": ("none", "bf16"), "lossless-bf16": ("may:lossless", "bf16"),
}
# Hosts share a name and a file system: each gets a name of its own, and is entered instead of logged in to.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
n=$((${host##*.} - 1))
exec nsenter -t $(cat "$WIRE_DIR/pid$n") -n unshare -u sh -c "hostname host$n; $*"
"""


def address(host):
    return f"10.77.0.{host + 1}"


# ---- in a namespace ------------------------------------------------------------------------------

def stream(nbytes):
    """Ranks 0 and 1 send nbytes to each other at once, three times; rank 0 prints bytes a second of the best."""
    rank, best = int(os.environ["RANK"]), 0
    if rank > 1:
        return
    if rank == 0:
        with socket.create_server((address(0), 5000)) as server:
            server.settimeout(20)
            s = server.accept()[0]
    else:
        for _ in range(200):
            try:
                s = socket.create_connection((address(0), 5000), timeout=1)
                break
            except OSError:
                time.sleep(0.05)
    s.settimeout(60)
    out, box = bytes(1 << 20), bytearray(1 << 20)
    for _ in range(3):
        start, left = time.monotonic(), nbytes
        sender = threading.Thread(target=lambda: [s.sendall(out) for _ in range(nbytes >> 20)])
        sender.start()
        while left:
            left -= s.recv_into(box, min(left, len(box)))
        sender.join()
        best = max(best, nbytes / (time.monotonic() - start))
    if rank == 0:
        print(json.dumps({"payload_Bps": best}))


def launch(command):
    """Rank 0's host runs an mpirun, whose agent enters the others; those wait until it has ended."""
    folder, rank, n = os.environ["WIRE_DIR"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    done = os.path.join(folder, "done")
    with open(os.path.join(folder, f"new{rank}"), "w") as f:
        f.write(str(os.getpid()))
    os.rename(f.name, os.path.join(folder, f"pid{rank}"))
    if rank == 0:
        while not all(os.path.exists(os.path.join(folder, f"pid{r}")) for r in range(n)):
            time.sleep(0.02)
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
        try:
            return subprocess.run(["unshare", "-u", "sh", "-c", 'hostname host0; exec "$@"', "sh", *command]).returncode
        finally:
            with open(done, "w"):
                pass
    while not os.path.exists(done):
        time.sleep(0.05)
    return 0


# ---- the columns -----------------------------------------------------------------------------------

def mpi(kind, exe, n, agent, *loop):
    hosts = ",".join(address(h) for h in range(n))
    if kind == "openmpi":
        start = ["mpirun.openmpi", "--allow-run-as-root", "-H", hosts, "-n", str(n), "--map-by", "node", "--bind-to", "none", "--mca",
                 "plm_rsh_agent", agent, "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "eth0",
                 "--mca", "oob_tcp_if_include", "eth0", "--mca", "mpi_yield_when_idle", "1"]
    else:
        start = ["env", "MPIR_CVAR_NOLOCAL=1", "UCX_TLS=self,tcp", "UCX_NET_DEVICES=eth0", "FI_PROVIDER=tcp", "FI_TCP_IFACE=eth0",
                 "mpirun.mpich", "-launcher", "ssh", "-launcher-exec", agent, "-iface", "eth0", "-hosts", hosts, "-n", str(n), "-ppn",
                 "1"]
    return [sys.executable, __file__, "--launch", *start, exe, *loop]


def command_of(args, have, column, n, nbytes, folder):
    if column == "payload":
        return [sys.executable, __file__, "--stream", str(max(1 << 20, min(nbytes, 64 << 20)))]
    if column == "gloo":
        line = f'PEER_ADDRESS=10.77.0.$((RANK + 1)) exec {have["gloo"]} $RANK {n} {folder} allreduce {args.iters} 1 1 {nbytes}'
        return ["sh", "-c", line]
    if column in ("openmpi", "mpich"):
        return mpi(column, have[column], n, os.path.join(folder, "agent"), "allreduce", str(args.iters), "1", "1",
                   str(nbytes))
    name, _, chunk = column.partition("@")
    codec, dtype = OURS[name]
    return [os.path.join(args.build, "perf", "banyan_perf"), "allreduce", "-b", str(nbytes), "-e", str(nbytes),
            "-w", str(args.warmup), "-n", str(args.iters), "--inplace", "1", "--no-roofline", "--json", "-", "--data", "laplace", "-d", dtype, "--codec", codec,
            *(["--chunk", chunk] if chunk else [])]


def measure(args, have, column, rate, n, nbytes):
    """(seconds, wire bytes or None); for payload (bytes a second, None)."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "agent"), "w") as f:
            f.write(AGENT)
        os.chmod(f.name, 0o755)
        env = {**os.environ, "WIRE_DIR": folder}
        each = args.per_host if column.partition("@")[0] in OURS else 1
        command = [CLUSTER, "--net", f"star:{rate}*{n // args.per_host}", "--ranks-per-host", str(each),
                   "--burst", str(args.burst), "--timeout", str(args.timeout), "--", *command_of(args, have, column, n, nbytes, folder)]
        p = subprocess.run(command, capture_output=True, text=True, env=env, timeout=args.timeout + 30)
    rows = [json.loads(x) for x in p.stdout.splitlines() if x.startswith("{")]
    if p.returncode or not rows:
        raise RuntimeError(f"status {p.returncode}: {(p.stderr.strip() or p.stdout.strip())[-300:]}")
    if column == "payload":
        return rows[0]["payload_Bps"], None
    if rows[-1].get("wrong"):
        raise RuntimeError("wrong values")
    return rows[-1]["time_us"]["median"] / 1e6, rows[-1].get("wire_bytes")


def rounds(args, have, columns, rate, n, nbytes):
    got, wire, failed = {c: [] for c in columns}, {}, set()
    for _ in range(args.rounds):
        for c in columns:
            if c in failed:
                continue
            try:
                value, wire[c] = measure(args, have, c, rate, n, nbytes)
                got[c].append(value)
            except (RuntimeError, subprocess.TimeoutExpired, ValueError, KeyError) as e:
                print(f"codec_wire: {c} is left out at {rate} Mbit/s, {n} ranks: {e}", file=sys.stderr)
                failed.add(c)
    return got, wire


def table(args, rate, n, size, got, wire):
    middle = {c: statistics.median(v) for c, v in got.items() if v}
    payload = middle.pop("payload", None)
    known = {c: middle[c] for c in ("gloo", "openmpi", "mpich") if c in middle}
    best = min(known, key=known.get) if known else None
    rows = []
    print(f"\n### allreduce of {size}, {n} ranks, {rate} Mbit/s" +
          (f"; payload rate {payload * 8e-6:.0f} Mbit/s ({min(got['payload']) * 8e-6:.0f} .. {max(got['payload']) * 8e-6:.0f})" if payload
           else "") + f"\n\n| | ms (least .. largest) | wire MB | wire / payload | raw / this | {best or 'best peer'} / this |"
          "\n|---|---:|---:|---:|---:|---:|")
    for c, t in middle.items():
        raw = middle.get("raw-bf16" if c.endswith("-bf16") else "raw")
        sent = wire.get(c)
        r = {"rate_mbit": rate, "ranks": n, "size": size, "column": c, "seconds": t, "least": min(got[c]), "largest": max(got[c]),
             "wire_bytes": sent, "payload_Bps": payload, "of_payload": sent / payload / t if sent and payload else None,
             "speedup": raw / t if raw else None, "against_peer": known[best] / t if best and not c.endswith("-bf16") else None,
             "best_peer": best}
        rows.append(r)
        show = {k: f"{r[k]:.2f}" if r[k] else "" for k in ("of_payload", "speedup", "against_peer")}
        print(f"| {c} | {t * 1e3:.1f} ({r['least'] * 1e3:.1f} .. {r['largest'] * 1e3:.1f}) | {sent / 1e6 if sent else 0:.2f} | "
              f"{show['of_payload']} | {show['speedup']} | {show['against_peer']} |", flush=True)
    return rows


def plot(rows, hosts, path):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        for r in rows:
            if r["column"] not in ("gloo", "openmpi", "mpich"):
                f.write(json.dumps({"name": r["column"], "gbit": r["rate_mbit"] / 1000, "speedup": r["speedup"]}) + "\n")
        f.flush()
        subprocess.run([sys.executable, PLOT, f.name, "--x", "gbit", "--y", "speedup", "--xlabel", "link rate (Gbit/s)", "--ylabel",
                        "time raw / time with codec", "--title",
                        f"Allreduce of {rows[0]['size']} f32, {hosts}: speed-up against link rate", "-o", path],
                       check=True)


def main():
    if sys.argv[1:2] == ["--stream"]:
        return stream(int(sys.argv[2]))
    if sys.argv[1:2] == ["--launch"]:
        return launch(sys.argv[2:])
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build")
    ap.add_argument("--rates", default="1000,10000", help="Mbit/s")
    ap.add_argument("--ranks", default="2,4")
    ap.add_argument("--per-host", type=int, default=1, help="ranks a host; then without peers")
    ap.add_argument("--sizes", default="16M,64M")
    ap.add_argument("--columns", default="payload,gloo,openmpi,mpich," + ",".join(OURS))
    ap.add_argument("--chunks", help="also each of our columns with these chunks")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--iters", type=int, default=3)
    ap.add_argument("--warmup", type=int, default=9, help="calls before: the link's rate is known after the eighth")
    ap.add_argument("--burst", type=float, default=5, help="milliseconds of its rate that a link may send at once")
    ap.add_argument("--timeout", type=float, default=90)
    ap.add_argument("--json", help="write an object a line there")
    ap.add_argument("--svg", help="speed-up against link rate, of the first ranks and size")
    args = ap.parse_args()
    probe = subprocess.run([CLUSTER, "--probe"], capture_output=True, text=True)
    if probe.returncode:
        sys.exit(probe.stderr.strip())
    columns = args.columns.split(",")
    columns += [f"{c}@{k}" for c in columns if c in OURS for k in (args.chunks or "").split(",") if k]
    have = peers.build(os.path.join(args.build, "peers")) if {"gloo", "openmpi", "mpich"} & set(columns) else {}
    have = {k: os.path.abspath(v) for k, v in have.items()}
    args.build = os.path.abspath(args.build)
    columns = [c for c in columns if c in have and args.per_host == 1 or c not in ("gloo", "openmpi", "mpich")]
    if not shutil.which("nsenter"):
        columns = [c for c in columns if c not in ("openmpi", "mpich")]
    print(peers.header().replace("perf/peers/run.py", "perf/codec_wire.py", 1).split(" Medians")[0])
    rows = []
    for rate in (int(r) for r in args.rates.split(",")):
        for n in (int(r) for r in args.ranks.split(",")):
            for size in args.sizes.split(","):
                rows += table(args, rate, n, size, *rounds(args, have, columns, rate, n, peers.parse_size(size)))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    if args.svg:
        n = rows[0]["ranks"]
        hosts = f"{n // args.per_host} hosts of {args.per_host} ranks" if args.per_host > 1 else f"{n} ranks over TCP"
        plot([r for r in rows if r["ranks"] == n and r["size"] == rows[0]["size"]], hosts, args.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
