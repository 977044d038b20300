# SPDX-License-Identifier: BSD-3-Clause
"""Which files of a sanitizer's log_path hold a report. Usage: reports.py [--failed] FOLDER

Prints the names of those files, one a line, and on the standard error the first lines of every file. Exits 1 when there
is a report. A sanitizer also writes there what is no report: without llvm-symbolizer clang's complains that it has none,
in every program. Such text is shown and does not count. With --failed the program failed by itself: what it did not free
when its assertion ended it is shown, too, and does not count."""
import pathlib
import re
import sys

HEAD_LINES = 30
LEAK = re.compile(r"^==\d+==\s*ERROR: LeakSanitizer: detected memory leaks", re.M)
REPORT = re.compile(
    r"^==\d+==\s*(?:ERROR|FATAL)\b"           # AddressSanitizer, LeakSanitizer, libFuzzer
    r"|\b(?:WARNING|ERROR|FATAL|SUMMARY): \w+Sanitizer:"
    r"|\b\w*Sanitizer:? ?(?:DEADLYSIGNAL|CHECK failed)"
    r"|: runtime error: ", re.M)              # UndefinedBehaviorSanitizer: file:line:column: runtime error: ...
# A test of the test harness raises SIGSEGV in a rank.
DELIBERATE = " in self_misbehave "


def is_report(text, has_failed):
    return bool(REPORT.search(text)) and DELIBERATE not in text and not (has_failed and LEAK.search(text))


def main():
    found = 0
    has_failed = sys.argv[1] == "--failed"
    for path in sorted(p for p in pathlib.Path(sys.argv[-1]).rglob("*") if p.is_file()):
        text = path.read_text(encoding="utf-8", errors="replace")
        if DELIBERATE in text or not text.strip():
            continue
        counts = is_report(text, has_failed)
        print(f"--- {path.name}{'' if counts else ' (not a report)'}", *text.splitlines()[:HEAD_LINES],
              sep="\n", file=sys.stderr)
        if counts:
            print(path.name)
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
