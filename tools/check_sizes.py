# SPDX-License-Identifier: BSD-3-Clause
"""Report of long files and functions, to look at; never a gate. Usage: check_sizes.py [ROOT]

Functions are found by the house style: the body opens and closes with a brace in column one."""
import pathlib
import re
import statistics
import sys

FILE_LINES, HEADER_LINES, FUNCTION_LINES = 600, 300, 70
FOLDERS = ["base", "topo", "compress", "transport", "collectives", "include", "perf", "tools", "simulator",
           "examples", "tests"]


def functions(lines):
    """(first line, name, length) of each function of a C file."""
    start = name = None
    for number, line in enumerate(lines, 1):
        head = re.match(r"[A-Za-z_].*?(\w+)\(", line)
        if head and not line.rstrip().endswith(";"):
            name = head.group(1)
        if line.startswith("{") and name:  # without a name: a struct
            start = number
        elif line.startswith("}") and start:
            yield start, name, number - start + 1
            start = name = None


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files, bodies = [], []
    for path in sorted(p for folder in FOLDERS for p in (root / folder).rglob("*.[ch]")):
        lines = path.read_text(encoding="utf-8").splitlines()
        files.append((len(lines), path.relative_to(root)))
        bodies += [(length, name, f"{path.relative_to(root)}:{line}")
                   for line, name, length in functions(lines)]
    for length, path in sorted(files, reverse=True):
        limit = HEADER_LINES if path.suffix == ".h" else FILE_LINES
        if length > limit:
            print(f"{length:5} lines  {path} (over {limit})")
    for length, name, where in sorted(bodies, reverse=True):
        if length > FUNCTION_LINES:
            print(f"{length:5} lines  {name} at {where} (over {FUNCTION_LINES})")
    for what, sizes in ("files", [f[0] for f in files]), ("functions", [b[0] for b in bodies]):
        if sizes:
            print(f"{len(sizes)} {what}: median {statistics.median(sizes):.0f} lines, "
                  f"longest {max(sizes)}")


if __name__ == "__main__":
    main()
