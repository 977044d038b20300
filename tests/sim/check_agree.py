# SPDX-License-Identifier: BSD-3-Clause
"""Virtual time. What an agreement of many ranks takes that come to it one after the other: messages between all of them, of two
agreements and three calls. (1 417 000 when each rank that came was told of on each link at once, 712 000 since.)
Usage: check_agree.py BANYAN_SIM LIBRARY"""
import re
import subprocess
import sys

MOST = 950_000

ran = subprocess.run([sys.argv[1], "--library", sys.argv[2], "--ranks", "256", "--survive", "--think", "20", "--ops", "3"],
                     capture_output=True, text=True, timeout=250)
found = re.search(r"all ranks: (\d+) messages", ran.stdout)
if ran.returncode or not found:
    sys.exit(f"{ran.stdout}{ran.stderr}")
print(ran.stdout)
sys.exit(0 if int(found[1]) < MOST else f"{found[1]} messages, at most {MOST} are few enough")
