# SPDX-License-Identifier: BSD-3-Clause
"""Runs what a document shows, in order, in the current folder: blocks of sh by bash, which ends at the first command that fails;
blocks of another language become the file that their first line names. Usage: doc_commands.py FILE [ARGUMENT of bash...]"""
import pathlib
import re
import subprocess
import sys

text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
script, files = [], 0
for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
    if language == "sh":
        script.append(block)
    else:
        name = re.match(r"\W*([\w.]+\.\w+)", block)
        if not name:
            sys.exit(f"{sys.argv[1]}: the first line of a block of {language} names no file")
        pathlib.Path(name.group(1)).write_text(block, encoding="utf-8")
        files += 1
if not script:
    sys.exit(f"{sys.argv[1]} has no commands")
done = subprocess.run(["bash", "-eux", *sys.argv[2:]], input="\n".join(script), text=True, timeout=300)
print(f"{sys.argv[1]}: {len(script)} blocks of commands, {files} files: exit status {done.returncode}")
sys.exit(done.returncode)
