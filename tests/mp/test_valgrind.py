# SPDX-License-Identifier: BSD-3-Clause
"""Three ranks under valgrind receive into fresh memory, where peers write directly (process_vm_writev): nothing that they
wrote may count as uninitialised, neither for the program nor where it is sent on.
Usage: test_valgrind.py BANYAN_RUN PROGRAM HEADERS (1: the library was built with valgrind's)"""
import os
import shutil
import subprocess
import sys

SKIPPED = 77
# A short way, and one on which ranks send on what came before the operation ends.
SCHEDULES = ["auto", "double_binary_tree"]


def main():
    run, program, headers = sys.argv[1:]
    if not shutil.which("valgrind") or headers != "1":
        print("valgrind, or its headers when this was built, are missing (Debian: valgrind)")
        return SKIPPED
    for schedule in SCHEDULES:
        job = subprocess.run([run, "-n", "3", "valgrind", "-q", "--error-exitcode=9", program], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, universal_newlines=True,
                             env={**os.environ, "BANYAN_SCHEDULE": schedule, "BANYAN_TRANSPORT": "shm"})
        if job.returncode != 0:
            print(f"schedule {schedule}: exit status {job.returncode}", *job.stdout.splitlines()[-60:], sep="\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
