#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Hoplite's microbenchmarks and applications with real processes: a host each in a network namespace, ports of 1 Gbit/s.
banyan's object store beside its collectives (static, and schedule arrival) and Ray. By turns, each round. Prints tables
of medians (least .. most), milliseconds; writes all numbers as JSON and a picture.

    perf/hoplite/run.py --build build --ray ~/ray-venv --json hoplite.json --svg hoplite.svg
    perf/hoplite/run.py --build build --parts apps --rounds 1          without Ray
    perf/hoplite/run.py --build build --parts micro --peers            Open MPI and Gloo beside them (Debian's packages)

--ray: a virtual environment with Ray; made by pip when it is not there (some 300 MB). Ray's nodes need 0.5 GB each.
Needs what scripts/netns-cluster needs, root for Ray (each node has a /tmp/ray of its own), and unshare."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "perf"))
import codec_wire  # noqa: E402

MICRO = ["broadcast", "gather", "reduce", "allreduce"]
APPS = {"sgd": "asynchronous SGD", "serving": "ensemble serving", "rl": "reinforcement learning"}
COLOURS = {"objects": "#2a6fbb", "static": "#8aa1b5", "arrival": "#5fa777", "ray": "#d98b3a", "openmpi": "#b5545c", "gloo": "#8d6cab"}
PEERS = ("openmpi", "gloo")
UNITS = {"K": 1 << 10, "M": 1 << 20}


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def net(args, nbytes):
    """Ports of the hosts. They may not let much of a message through at once: a twentieth of it, and no less than the shaper
    can keep up with."""
    burst = min(5, max(1, 1e3 * 8 * nbytes / 20 / (args.gbps * 1e9)))
    return ["--net", f"star:{args.gbps * 1000:g}*{args.hosts}", "--burst", f"{burst:.3g}"]


def measure_peer(args, backend, job, size, steps, spread):
    """The same microbenchmark by another library's collective: perf/peers/peer_loop.h."""
    nbytes, n = bytes_of(size), args.hosts
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "agent"), "w", encoding="utf-8") as f:
            f.write(codec_wire.AGENT)
        os.chmod(f.name, 0o755)
        loop = [job, str(steps), "1", "0" if job == "gather" else "1", str(nbytes * (n if job == "gather" else 1))]
        if backend == "gloo":
            command = ["sh", "-c", f"PEER_ADDRESS=10.77.0.$((RANK + 1)) exec {args.have['gloo']} $RANK {n} {folder} {' '.join(loop)}"]
        else:
            command = codec_wire.mpi("openmpi", args.have["openmpi"], n, f.name, *loop)
        done = subprocess.run([os.path.join(ROOT, "scripts", "netns-cluster"), *net(args, bytes_of(size)), "--timeout",
                               "120", "--", *command], capture_output=True, text=True, check=False,
                              env=dict(os.environ, WIRE_DIR=folder, PEER_SPREAD=str(spread), OMPI_MCA_btl_base_warn_component_unused="0"))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines or lines[0]["wrong"]:
        sys.exit(f"{backend} {job} {size} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}")
    return [us / 1e6 for us in lines[0]["us"]]


def measure(args, backend, job, size, steps, spread):
    """Seconds, of each step; of an application's steps in the mean."""
    if backend in PEERS:
        return measure_peer(args, backend, job, size, steps, spread)
    python = os.path.join(args.ray, "bin", "python") if backend == "ray" else sys.executable
    library = os.path.join(os.path.abspath(args.build), "libbanyan.so")
    env = dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"), BANYAN_LIBRARY=library, PYTHONDONTWRITEBYTECODE="1",
               BANYAN_LINK_GBPS=str(args.gbps))
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if os.geteuid() == 0 else []
    command = own + [os.path.join(ROOT, "scripts", "netns-cluster"), *net(args, bytes_of(size)),
                     "--timeout", "300", "--", python, os.path.join(ROOT, "perf", "hoplite", "node.py"),
                     backend, job, str(bytes_of(size)), str(steps), str(spread)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}")
    return json.loads(lines[-1])


def plan(args):
    """(job, size, spread) of every cell."""
    cells = []
    if "micro" in args.parts:
        cells += [(job, size, spread) for job in args.jobs for size in args.sizes for spread in (0, 1)]
    if "apps" in args.parts:
        cells += [(job, args.model, 0) for job in APPS]
    return cells


def backends_of(args, job):
    names = ["objects", "static"] + (["arrival"] if job in ("reduce", "allreduce") else [])
    names += ["ray"] if args.ray else []
    names += [b for b in PEERS if b in args.have and job in MICRO]
    return [b for b in names if not args.only or b in args.only]


def text_of(values):
    if not values:
        return ""
    ms = sorted(1e3 * v for v in values)
    return f"{statistics.median(ms):.3g} ({ms[0]:.3g} .. {ms[-1]:.3g})"


def table(args, rows):
    print(f"{args.hosts} hosts, {args.gbps:g} Gbit/s a port; milliseconds, from the last arrival to the last end; applications: "
          "a round.\n")
    print("| job | bytes | arrivals | objects | static | arrival | Ray | Ray / objects | Open MPI | Gloo |\n"
          "|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        t = row["seconds"]
        ratio = (f"{statistics.median(t['ray']) / statistics.median(t['objects']):.2f}" if t.get("ray") and t.get("objects") else "")
        arrivals = "" if row["job"] in APPS else "over 1 s" if row["spread"] else "all ready"
        cells = [text_of(t.get(b)) for b in ("objects", "static", "arrival", "ray")] + [ratio] + [text_of(t.get(b)) for b in PEERS]
        print(f"| {APPS.get(row['job'], row['job'])} | {row['size']} | {arrivals} | " + " | ".join(cells) + " |")


def picture(rows):
    """A group of bars for each row, all of the biggest size; its widest bar has the full width."""
    left, width, high, y, out = 190, 420, 13, 30, []
    biggest = max((r["size"] for r in rows), key=bytes_of)
    for row in (r for r in rows if r["size"] == biggest):
        medians = {b: statistics.median(v) * 1e3 for b, v in row["seconds"].items() if v}
        name = APPS.get(row["job"], row["job"]) + (", over 1 s" if row["spread"] else "")
        out.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{name}</text>')
        for backend, ms in medians.items():
            w = width * ms / max(medians.values())
            out.append(f'<rect x="{left}" y="{y}" width="{w:.1f}" height="{high - 2}" fill="{COLOURS[backend]}"/>'
                       f'<text x="{left + w + 4:.1f}" y="{y + 10}" font-size="10">{ms:.3g} ms</text>')
            y += high
        y += 8
    keys = "".join(f'<rect x="{left + 110 * i}" y="8" width="10" height="10" fill="{c}"/>'
                   f'<text x="{left + 110 * i + 14}" y="17">{b}</text>' for i, (b, c) in enumerate(COLOURS.items()))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" height="{y + 4}" font-family="sans-serif" '
            f'font-size="12"><rect width="100%" height="100%" fill="white"/>{keys}{"".join(out)}</svg>\n')


def make_ray(venv):
    if not os.path.exists(os.path.join(venv, "bin", "python")):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([os.path.join(venv, "bin", "pip"), "install", "-q", "ray", "numpy"], check=True)
    code = "import ray; print(ray.__version__)"
    return subprocess.run([os.path.join(venv, "bin", "python"), "-c", code], capture_output=True, text=True,
                          check=True).stdout.strip()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(ROOT, "build"))
    p.add_argument("--ray")
    p.add_argument("--parts", default="micro,apps", type=lambda t: t.split(","))
    p.add_argument("--hosts", type=int, default=8)
    p.add_argument("--gbps", type=float, default=1)
    p.add_argument("--sizes", default="1K,1M,32M", type=lambda t: t.split(","))
    p.add_argument("--model", default="32M", help="bytes of the applications' models and queries")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=8, help="of an application in a round; microbenchmarks: 3")
    p.add_argument("--jobs", default=MICRO, type=lambda t: t.split(","), help="of the microbenchmarks")
    p.add_argument("--peers", action="store_true", help="Open MPI and Gloo, too, where they are installed")
    p.add_argument("--only", type=lambda t: t.split(","), help="these columns alone: static,arrival,openmpi,gloo")
    p.add_argument("--json")
    p.add_argument("--svg")
    args = p.parse_args()
    if subprocess.run([os.path.join(ROOT, "scripts", "netns-cluster"), "--probe"], check=False).returncode:
        return 77
    args.have = {}
    if args.peers:
        args.have = codec_wire.peers.build(os.path.join(args.build, "peers"), {})
    if args.ray:
        args.ray = os.path.abspath(args.ray)
        print(f"Ray {make_ray(args.ray)}")
    rows = [{"job": j, "size": s, "spread": d, "seconds": {b: [] for b in backends_of(args, j)}} for j, s, d in plan(args)]
    for _ in range(args.rounds):
        for row in rows:
            for backend, values in row["seconds"].items():
                values += measure(args, backend, row["job"], row["size"], args.steps if row["job"] in APPS else 3,
                                  row["spread"])
            if args.json:  # what is there, should the run be ended
                with open(args.json, "w", encoding="utf-8") as f:
                    json.dump({"hosts": args.hosts, "gbps": args.gbps, "rows": rows}, f, indent=1)
    table(args, rows)
    if args.svg:
        with open(args.svg, "w", encoding="utf-8") as f:
            f.write(picture(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
