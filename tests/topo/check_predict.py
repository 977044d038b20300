# SPDX-License-Identifier: BSD-3-Clause
"""From a job of two ranks to a prediction: train_step writes a profile, banyan_topo predict reads it; buckets are as many as the job
had, and the bytes that it sent; rows, advice and trace are whole; what is wrong is said in one line that names it.
Usage: check_predict.py BANYAN_TOPO BANYAN_RUN TRAIN_STEP"""
import json
import os
import subprocess
import sys
import tempfile

topo, launcher, trainer = sys.argv[1:4]
TENSORS = "6x300,20000,3x70000,2x5000"
FIELDS = {"topo", "ranks", "rate_bps", "codec", "bucket_bytes", "asked", "schedule", "step_s", "compute_s", "work_s", "wire_share", "wire_bytes",
          "buckets", "refused", "best"}
failures = []


def expect(ok, what):
    if not ok:
        failures.append(what)


def predict(*args):
    out = subprocess.run([topo, "predict", *args], capture_output=True, text=True, timeout=100)
    return out.returncode, out.stdout, out.stderr


def rows_of(*args):
    code, out, err = predict(*args, "--json")
    expect(code == 0, f"{args}: {code} {err}")
    rows = [json.loads(line) for line in out.splitlines()]
    expect(all(FIELDS <= set(r) for r in rows), f"{args}: fields of {rows[:1]}")
    return rows


def job(path, bucket, rules):
    """The job's own figures; tcp, as predictions are of."""
    env = {**os.environ, "BANYAN_TRANSPORT": "tcp", "BANYAN_LINK_GBPS": "0.1"}
    out = subprocess.run([launcher, "-n", "2", trainer, "--tensors", TENSORS, "--forward", "2000", "--backward", "5000", "--steps", "5",
                          "--bucket", str(bucket), "--rules", rules, "--profile", path], capture_output=True, text=True, timeout=100, env=env)
    expect(out.returncode == 0 and "result " in out.stdout, f"train_step: {out.returncode} {out.stderr}")
    line = next((x for x in out.stdout.splitlines() if x.startswith("result ")), "")
    return dict(x.split("=") for x in line.split()[1:])


def check_job(folder):
    """The profile, and predictions that must agree with what the job did."""
    path = os.path.join(folder, "profile.json")
    for bucket, codec, rules in (20000, "none", "*=none"), (1 << 20, "none", "*=none"), (1 << 20, "int8", "*:<16384=none;*=int8"):
        got = job(path, bucket, rules)
        with open(path, encoding="utf-8") as f:
            profile = json.load(f)
        expect(profile["ranks"] == 2 and len(profile["tensors"]) == 12 and profile["bucket_bytes"] == bucket, f"profile: {profile}")
        expect(profile["compute_s"] >= 0.0069 and profile["tensors"][-1]["ready_s"] >= 0.0069, f"own time: {profile}")
        expect(profile["tensors"][0]["name"] == "layer11.weight", "tensors stand in the order in which they are ready")
        for wanted in codec, "profile":
            row = rows_of(path, "--ranks", "2", "--rate", "100Mbit", "--codec", wanted, "--bucket", str(bucket))[0]
            expect(row["buckets"] == int(got["buckets"]), f"{wanted}, {bucket}: {row['buckets']} buckets, not {got['buckets']}")
            expect(0.95 < row["wire_bytes"] / float(got["wire_bytes"]) < 1.05, f"{wanted}, {bucket}: {row['wire_bytes']} bytes, not {got}")
    return path


def check_tables(path, folder):
    trace = os.path.join(folder, "trace.json")
    rows = rows_of(path, "--ranks", "2,4", "--rate", "100Mbit,10Gbit", "--bucket", "64K,1M", "--codec", "none;int8", "--schedule", "auto,ring")
    expect(len(rows) == 2 * 2 * 2 * 2 * 2, f"{len(rows)} rows")
    best = [r for r in rows if r["best"]]
    expect(len(best) == 4 and all("bound_by" in r for r in best), f"best: {best}")
    for b in best:
        same = [r for r in rows if (r["ranks"], r["rate_bps"]) == (b["ranks"], b["rate_bps"])]
        expect(b["step_s"] <= min(r["step_s"] for r in same) * 1.001, f"not the best: {b}")
    slow, fast = (next(r for r in best if r["rate_bps"] == x and r["ranks"] == 4) for x in (1e8, 1e10))
    expect(slow["bound_by"] == "wire" and slow["codec"] == "int8" and fast["step_s"] < slow["step_s"], f"{slow} {fast}")
    expect(any(r["schedule"] == "ring" for r in rows), "a schedule that was asked for")
    # A bucket of tokens saves what links leave idle, and no more: steps are never shorter than their bytes at the rate.
    for burst, rate, exact in (5, "100Mbit", 1e8), (100, "100Mbit", 1e8), (1000, "100Mbit", 1e8), (1000, "1Gbit", 1e9):
        net = ["--ranks", "4", "--rate", rate, "--codec", "none", "--bucket", "1M"]
        row, without = rows_of(path, *net, "--burst", str(burst))[0], rows_of(path, *net)[0]
        expect(row["wire_share"] <= 1.001 and row["step_s"] >= .999 * row["wire_bytes"] * 8 / exact, f"burst {burst}: {row}")
        expect(row["step_s"] <= 1.001 * without["step_s"], f"burst {burst}: {row}, without {without}")
    code, out, err = predict(path, "--ranks", "4", "--rate", "100Mbit", "--trace", trace)
    expect(code == 0 and "best: " in out and "why: bound by " in out, f"table: {out} {err}")
    with open(trace, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    expect(names == {"compute", "operation", "encode", "wire", "decode-add"}, f"tracks: {names}")
    slices = [e for e in events if e["ph"] == "X"]
    expect({e["pid"] for e in slices} == {0, 1, 2, 3} and all(e["dur"] >= 0 for e in slices), "slices of all ranks")
    ends = {}
    for e in slices:
        expect(e["ts"] >= ends.get((e["pid"], e["tid"]), 0) - 0.01, f"slices overlap: {e}")
        ends[e["pid"], e["tid"]] = e["ts"] + e["dur"]
    expect(rows_of(path, "--topo", "torus:3x3", "--rate", "1Gbit", "--codec", "none", "--bucket", "1M")[0]["ranks"] == 9, "a torus")


def check_errors(path, folder):
    broken = os.path.join(folder, "broken.json")
    with open(path, encoding="utf-8") as f:
        profile = json.load(f)
    profile["tensors"][1]["count"] = -5
    with open(broken, "w", encoding="utf-8") as f:
        json.dump(profile, f)
    net = ["--ranks", "4", "--rate", "1Gbit"]
    for args, status, word in [([], 2, "PROFILE"), ([path], 2, "--ranks"), ([path, "--ranks", "4"], 2, "--rate"), ([broken, *net], 1, "tensors[1]: count"),
                               (["/nowhere", *net], 1, "/nowhere"), ([path, "--ranks", "0", "--rate", "1Gbit"], 2, "ranks"),
                               ([path, "--ranks", "4", "--rate", "fast"], 2, "fast"), ([path, *net, "--codec", "int9"], 1, "int9"),
                               ([path, *net, "--codec", ";"], 2, "codec"), ([path, *net, "--bucket", "0"], 2, "bucket"),
                               ([path, *net, "--schedule", "nope"], 2, "nope"), ([path, *net, "--progress", "slow"], 2, "slow"),
                               ([path, *net, "--latency", "x"], 2, "latency"), ([path, *net, "--burst", "-1"], 2, "burst"),
                               ([path, *net, "--cores", "0"], 2, "cores"), ([path, *net, "--from", "x"], 2, "from"),
                               ([path, *net, "--schedule", "arrival"], 1, "arrival"),
                               ([path, *net, "--topo", "torus:3x3"], 1, "9 ranks"), ([path, *net, "--lockstep"], 2, "lockstep"),
                               ([path, *net, "--trace", "/nowhere/x"], 1, "/nowhere/x")]:
        code, out, err = predict(*args)
        expect(code == status and word in err and err.count("\n") == 1 and not out, f"{args}: {code} {out!r} {err!r}")


with tempfile.TemporaryDirectory() as place:
    written = check_job(place)
    if not failures:
        check_tables(written, place)
        check_errors(written, place)
print("\n".join(failures) or "predictions hold")
sys.exit(1 if failures else 0)
