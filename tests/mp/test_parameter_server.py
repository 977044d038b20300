# SPDX-License-Identifier: BSD-3-Clause
"""The program of docs/objects.md finds its optimum, with all its workers and when one is killed.
Usage: test_parameter_server.py BANYAN_RUN PROGRAM"""
import os
import re
import subprocess
import sys

RUNS = [("all live", ["-n", "4"], [], 0), ("worker 3 dies", ["--keep-going", "-n", "5"], ["3"], 1)]


def main():
    runner, program = sys.argv[1:]
    cases = [(f"{name}, {transport}", transport, options, args, status)
             for name, options, args, status in RUNS for transport in ("shm", "tcp")]
    print(f"1..{len(cases)}")
    for i, (name, transport, options, args, status) in enumerate(cases, 1):
        env = dict(os.environ, BANYAN_TRANSPORT=transport, BANYAN_IFNAME="lo")
        run = subprocess.run([runner, *options, program, *args], env=env, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, universal_newlines=True, timeout=120)
        far = re.search(r"squared distance from the optimum: (\S+)", run.stdout)
        well = run.returncode == status and far and float(far.group(1)) < 1
        print(f"{'ok' if well else 'not ok'} {i} - {name}")
        if not well:
            print(f"# exit status {run.returncode}, not {status}\n# " +
                  "\n# ".join((run.stdout + run.stderr).splitlines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
