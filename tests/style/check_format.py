# SPDX-License-Identifier: BSD-3-Clause
"""C files are as clang-format 14 leaves them by .clang-format, and no line of theirs is longer than its ColumnLimit (strings
and comments may be, for all that the formatter does). Usage: check_format.py ROOT

Other versions of clang-format lay out some lines otherwise. Without version 14 only the lengths are checked, and the
check is skipped (exit status 77) if they are well."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

from check_text import tracked

VERSION = "14"
SKIPPED = 77


def formatter():
    """Path of clang-format 14, or None."""
    for name in os.environ.get("CLANG_FORMAT", ""), f"clang-format-{VERSION}", "clang-format":
        path = shutil.which(name) if name else None
        if path:
            said = subprocess.run([path, "--version"], stdout=subprocess.PIPE, universal_newlines=True).stdout
            if re.search(rf"version {VERSION}\.", said):
                return path
    return None


def misformatted(root, program, names):
    """One line for each place that the formatter would change."""
    run = subprocess.run([program, "--dry-run", "--style=file", *names], cwd=root, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, universal_newlines=True)
    if run.returncode != 0:
        yield f"{program} failed: {run.stdout.strip()[-500:]}"
    for place in re.findall(r"^(\S+:\d+):\d+: (?:warning|error): code should be clang-formatted", run.stdout, re.M):
        yield f"{place}: not as clang-format {VERSION} leaves it (clang-format -i)"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    limit = int(re.search(r"^ColumnLimit:\s*(\d+)", (root / ".clang-format").read_text(), re.M).group(1))
    names = [n for n in tracked(root) if n.endswith((".c", ".h"))]
    found = []
    for name in names:
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        found += [f"{name}:{number}: {len(line)} columns, the limit is {limit}"
                  for number, line in enumerate(lines, 1) if len(line) > limit]
    program = formatter()
    if program and names:
        found += dict.fromkeys(misformatted(root, program, names))
    if found or not names:
        print("\n".join(found) or "there are no C files")
        return 1
    if not program:
        print(f"there is no clang-format {VERSION} (Debian: clang-format-{VERSION}); only the lines' lengths were checked")
        return SKIPPED
    print(f"{len(names)} files are formatted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
