# SPDX-License-Identifier: BSD-3-Clause
"""Sums the logs of several `meson test` runs. Usage: results.py EXPECTED_SKIPS (LABEL=TESTLOG.json | broken=STAGE)...

A program that reports its cases (TAP) counts by case, any other program as one. EXPECTED_SKIPS has lines
`LABEL/PROGRAM/CASE  reason`, shell wildcards in the first word, # for comments; a skip that no line matches counts as
failed, as does a run without tests. Prints failures and skips, and as the last line
'N passed, N failed, N skipped'. Exits 1 when anything failed."""
import fnmatch
import json
import pathlib
import re
import sys

TAIL_LINES = 30
PLAN = re.compile(r"^1\.\.\d+", re.M)
CASE = re.compile(r"^(not )?ok\b\s*(?:\d+\s*)?-?\s*([^#\n]*?)\s*(?:\(\s*[\d.]+\s*s\))?\s*"
                  r"(#\s*skip\S*\s*(.*))?$", re.M | re.I)


def cases(entry):
    """(case, verdict, reason) of a program that prints TAP; nothing for others."""
    out = entry.get("stdout") or ""
    if not PLAN.search(out):
        return
    for bad, name, skip, reason in CASE.findall(out):
        yield name, "failed" if bad else "skipped" if skip else "passed", reason


def outcomes(label, path):
    """(label/program/case, verdict, reason) of everything in one log."""
    log = pathlib.Path(path)
    entries = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    if not entries:
        yield f"{label}/*", "failed", "no test ran"
    for entry in map(json.loads, entries):
        program, result = f"{label}/{entry['name'].split(' / ')[-1]}", entry["result"]
        inner = list(cases(entry))
        for name, verdict, reason in inner:
            yield f"{program}/{name}", verdict, reason
        if result not in ("OK", "EXPECTEDFAIL", "SKIP") and \
                not any(verdict == "failed" for _, verdict, _ in inner):
            yield program, "failed", f"{result}, exit status {entry['returncode']}"
        elif not inner:
            yield program, "skipped" if result == "SKIP" else "passed", ""


def outputs(label, path):
    """What failed programs printed, the last lines of each."""
    log = pathlib.Path(path)
    for entry in map(json.loads, log.read_text(encoding="utf-8").splitlines() if log.exists() else []):
        if entry["result"] not in ("OK", "EXPECTEDFAIL", "SKIP"):
            text = (entry.get("stdout") or "") + (entry.get("stderr") or "")
            lines = text.splitlines()
            # What failed first, with what it said, may lie far above the end.
            early = [line for i, line in enumerate(lines[:-TAIL_LINES]) if any(w.startswith("not ok") for w in lines[max(0, i - 12):i + 1])]
            print(f"--- {label}/{entry['name'].split(' / ')[-1]}", *early[:TAIL_LINES], *lines[-TAIL_LINES:],
                  sep="\n")


def expected_skips(path):
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.split()[0]


def main():
    patterns = list(expected_skips(sys.argv[1]))
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    runs = [argument.split("=", 1) for argument in sys.argv[2:]]
    for label, path in runs:
        outputs(label, path)
    for label, path in runs:
        found = [(f"stage {path}", "failed", "")] if label == "broken" else outcomes(label, path)
        for name, verdict, reason in found:
            if verdict == "skipped" and not any(fnmatch.fnmatchcase(name, p) for p in patterns):
                verdict, reason = "failed", f"skipped, but not in {sys.argv[1]}: {reason}"
            counts[verdict] += 1
            if verdict != "passed":
                print(f"{verdict}: {name}{': ' if reason else ''}{reason}")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
