# SPDX-License-Identifier: BSD-3-Clause
"""Subjects of commits since the last version tag (without one, since SINCE): `area: verb what`, at most 60 characters, no full stop.
Merges are left out. Usage: check_commits.py ROOT

Skipped (exit status 77) where the history does not reach back that far: a tarball, a shallow clone."""
import pathlib
import re
import subprocess
import sys

SINCE = "412073b7472a252be0a564de344927fb0eda1a0e"  # version 0.1.0
LONGEST = 60
FORM = re.compile(r"[\w./+-]+(?:, [\w./+-]+)*: \S.*[^.\s]")
SKIPPED = 77


def git(root, *args):
    """Output of a git command; None where it fails."""
    try:
        run = subprocess.run(["git", "-c", f"safe.directory={root}", "-C", str(root), *args], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, universal_newlines=True)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def start(root):
    """The commit behind which subjects are checked, or None."""
    top = git(root, "rev-parse", "--show-toplevel")
    if top is None or pathlib.Path(top).resolve() != root:
        return None  # also a tarball that was unpacked inside somebody's repository
    tag = git(root, "describe", "--tags", "--abbrev=0", "--match", "v*")
    for commit in tag, SINCE:
        if commit and git(root, "merge-base", "--is-ancestor", commit, "HEAD") is not None:
            return commit
    return None


def wrong(subject):
    if len(subject) > LONGEST:
        return f"{len(subject)} characters, the limit is {LONGEST}"
    if not FORM.fullmatch(subject):
        return "not of the form `area: verb what`"
    return None


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    base = start(root)
    if base is None:
        print("no history back to the last version tag: not a clone, or a shallow one")
        return SKIPPED
    lines = git(root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD").splitlines()
    found = [f"{line}: {wrong(line.split(' ', 1)[1])}" for line in lines if wrong(line.split(" ", 1)[1])]
    print("\n".join(found) or f"the subjects of {len(lines)} commits since {base} are well")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
