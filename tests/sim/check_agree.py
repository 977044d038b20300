# SPDX-License-Identifier: BSD-3-Clause
"""Virtual time. Messages of all of 256 ranks together. (a) Two agreements, to which they come one after the other, and three calls:
1 417 000 when each rank that came was told of on each link at once, 712 000 since. (b) A death in the last call, an agreement that
tells of it, and a shrink: 3 566 000 when each rank gave notice that it shrinks, as it had not looked, 1 004 000 since.
Usage: check_agree.py BANYAN_SIM LIBRARY"""
import re
import subprocess
import sys

failures = []
for most, args in ((950_000, ["--think", "20"]), (1_800_000, ["--kill", "5@1", "allreduce", "4K"])):
    ran = subprocess.run([sys.argv[1], "--library", sys.argv[2], "--ranks", "256", "--survive", "--ops", "3"] + args,
                         capture_output=True, text=True, timeout=140)
    found = re.search(r"all ranks: (\d+) messages", ran.stdout)
    if ran.returncode or not found:
        sys.exit(f"{ran.stdout}{ran.stderr}")
    print(ran.stdout)
    if int(found[1]) > most:
        failures.append(f"{' '.join(args)}: {found[1]} messages, at most {most} are few enough")
sys.exit("\n".join(failures) or 0)
