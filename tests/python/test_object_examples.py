# SPDX-License-Identifier: BSD-3-Clause
"""examples/ensemble.py and examples/reinforcement.py do what they are for with all their ranks, with a slow one, and with
one that is killed. Usage: test_object_examples.py BANYAN_RUN EXAMPLES"""
import os
import re
import subprocess
import sys

RUNS = [("ensemble.py", ["--k", "3"], 4, 0), ("ensemble.py", ["--k", "2", "--slow", "1", "--die", "3"], 5, 1),
        ("reinforcement.py", ["--k", "3"], 4, 0), ("reinforcement.py", ["--k", "2", "--slow", "1", "--die", "3"], 5, 1)]
# What a run says, and what must hold of the number in it and of who was in time.
SAYS = {"ensemble.py": (r"^([\d.]+)% right; .*: \[(.*)\]$", lambda x: x > 90),
        "reinforcement.py": (r", ([\d.]+) at last; .*: \[(.*)\]$", lambda x: x > 0.8)}


def verdict(program, args, run, status):
    pattern, is_good = SAYS[program]
    found = re.search(pattern, run.stdout, re.M)
    if run.returncode != status or not found or not is_good(float(found.group(1))):
        return f"exit status {run.returncode}, not {status}, or not good enough"
    turns = [int(x) for x in found.group(2).split(",")]
    if "--slow" in args and turns[0] >= max(turns):
        return f"rank 1 is slow, and was waited for: {turns}"
    return None


def main():
    runner, examples = sys.argv[1:]
    cases = [(run, transport) for run in RUNS for transport in ("shm", "tcp")]
    print(f"1..{len(cases)}")
    for i, ((program, args, ranks, status), transport) in enumerate(cases, 1):
        env = dict(os.environ, BANYAN_TRANSPORT=transport, BANYAN_IFNAME="lo")
        run = subprocess.run([runner, "--keep-going", "-n", str(ranks), sys.executable, os.path.join(examples, program), *args],
                             env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        why = verdict(program, args, run, status)
        print(f"{'not ok' if why else 'ok'} {i} - {program} {' '.join(args)}, {transport}")
        if why:
            print(f"# {why}\n# " + "\n# ".join((run.stdout + run.stderr).splitlines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
