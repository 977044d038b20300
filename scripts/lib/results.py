# SPDX-License-Identifier: BSD-3-Clause
"""Sums the logs of several `meson test` runs.
Usage: results.py EXPECTED_SKIPS (LABEL=TESTLOG.json[,SECOND.json] | broken=STAGE)...
       results.py --failed TESTLOG.json      prints the names of the programs that failed, one a line

A program that reports its cases (TAP) counts by case, any other program as one. SECOND is the log of the programs that failed
in TESTLOG, run once more, each alone: one that passes there counts as passed, and is called flaky, unless a sanitizer reported
something in its first run (reported.sh). EXPECTED_SKIPS has lines
`LABEL/PROGRAM/CASE  reason`, shell wildcards in the first word, # for comments; a skip that no line matches counts as
failed, as does a run without tests. Prints failures, skips and flaky programs, and as the last line
'N passed, N failed, N skipped'. Exits 1 when anything failed, or more than three programs were flaky."""
import fnmatch
import json
import pathlib
import re
import sys

TAIL_LINES = 30
REPORTED = 99  # the exit status that reported.sh gives to a program with a sanitizer's report
FLAKY_MOST = 3
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


def entries(path):
    log = pathlib.Path(path)
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def name_of(entry):
    return entry["name"].split(" / ")[-1]


def has_failed(entry):
    return entry["result"] not in ("OK", "EXPECTEDFAIL", "SKIP")


def after_second_runs(paths):
    """(entry, flaky) of each program: the one that passed, where it ran twice."""
    first, *second = map(entries, paths)
    passed = {name_of(entry): entry for log in second for entry in log if not has_failed(entry)}
    for entry in first:
        again = passed.get(name_of(entry)) if has_failed(entry) and entry["returncode"] != REPORTED else None
        yield again or entry, again is not None


def outcomes(label, programs):
    """(label/program/case, verdict, reason) of everything in one run."""
    if not programs:
        yield f"{label}/*", "failed", "no test ran"
    for entry in programs:
        program = f"{label}/{name_of(entry)}"
        inner = list(cases(entry))
        for name, verdict, reason in inner:
            yield f"{program}/{name}", verdict, reason
        if has_failed(entry) and not any(verdict == "failed" for _, verdict, _ in inner):
            yield program, "failed", f"{entry['result']}, exit status {entry['returncode']}"
        elif not inner:
            yield program, "skipped" if entry["result"] == "SKIP" else "passed", ""


def outputs(label, path):
    """What failed programs printed, the last lines of each."""
    for entry in entries(path):
        if has_failed(entry):
            text = (entry.get("stdout") or "") + (entry.get("stderr") or "")
            lines = text.splitlines()
            # Each case that failed with what it said; the end, where no case says so.
            bad = [line for i, line in enumerate(lines) if any(w.startswith("not ok") for w in lines[max(0, i - 12):i + 1])
                   and not line.startswith("ok ")]
            print(f"--- {label}/{name_of(entry)}", *(bad[:TAIL_LINES] or lines[-TAIL_LINES:]), sep="\n")


def expected_skips(path):
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.split()[0]


def main():
    if sys.argv[1] == "--failed":
        print("".join(f"{name_of(entry)}\n" for entry in entries(sys.argv[2]) if has_failed(entry)), end="")
        return 0
    patterns = list(expected_skips(sys.argv[1]))
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    flaky = []
    runs = [(label, path.split(",")) for label, path in (argument.split("=", 1) for argument in sys.argv[2:])]
    failures = []
    for label, paths in runs:
        programs = list(after_second_runs(paths)) if label != "broken" else []
        flaky += [f"{label}/{name_of(entry)} (logs: {', '.join(paths)})" for entry, is_flaky in programs if is_flaky]
        found = [(f"stage {paths[0]}", "failed", "")] if label == "broken" else outcomes(label, [entry for entry, _ in programs])
        for name, verdict, reason in found:
            if verdict == "skipped" and not any(fnmatch.fnmatchcase(name, p) for p in patterns):
                verdict, reason = "failed", f"skipped, but not in {sys.argv[1]}: {reason}"
            counts[verdict] += 1
            if verdict != "passed":
                line = f"{verdict}: {name}{': ' if reason else ''}{reason}"
                failures.append(line) if verdict == "failed" else print(line)
    for label, paths in runs:
        for path in paths if label != "broken" else []:
            outputs(label, path)
    print(*failures, sep="\n", end="\n" if failures else "")
    print(*(f"flaky: {name}" for name in flaky), sep="\n", end="\n" if flaky else "")
    if len(flaky) > FLAKY_MOST:
        print(f"failed: {len(flaky)} programs were flaky, more than {FLAKY_MOST}")
        counts["failed"] += 1
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
