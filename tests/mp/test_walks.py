# SPDX-License-Identifier: BSD-3-Clause
"""The walks of CONTRIBUTING.md are those that calls take. Each has lists of files and functions, and says how many source
files of the library the call meets at most. A job of two ranks, built with -Dtrace=true, prints which functions a call
enters; those of each list have to be among them, in their files and in this order. Some of TRIES jobs has to show that: a
message that comes early is taken by another function, and a rank that waits long sleeps.
Usage: test_walks.py CONTRIBUTING.md WALK BANYAN_RUN [--show]     WALK: tests/mp/walk.c"""
import os
import pathlib
import re
import subprocess
import sys

TRIES = 30
# heading of a walk: arguments of walk.c, transport
WALKS = {"A short sum in shared memory": (["4"], "shm"),
         "A long sum over TCP": (["4194304"], "tcp"),
         "A long sum over TCP, coded": (["4194304", "int8:force=1"], "tcp")}
# What is used everywhere is no part of a walk: locks, clocks, numbers, lists.
COMMON = re.compile(r"(base|include)/")


def entered(walk, run, arguments, transport):
    """(function, file) in the order of the first entry."""
    env = {**os.environ, "BANYAN_TRANSPORT": transport, "BANYAN_VERBS": "tcp=1"}
    job = subprocess.run([run, "-n", "2", walk, *arguments], env=env, stdout=subprocess.PIPE, check=True, text=True,
                         timeout=120)
    addresses = job.stdout.split()
    names = subprocess.run(["addr2line", "-f", "-e", walk, *addresses], stdout=subprocess.PIPE, check=True, text=True)
    lines = names.stdout.split("\n")
    if all(place.startswith("??") for place in lines[1::2]):
        sys.exit("no debug information: configure with -Dtrace=true -Ddebug=true")
    root = pathlib.Path(sys.argv[1]).resolve().parent
    build = pathlib.Path(walk).resolve().parent
    for name, place in zip(lines[0::2], lines[1::2]):
        path = pathlib.Path(os.path.normpath(build / place.rsplit(":", 1)[0]))
        for base in (root, *build.parents):  # compilers write paths from the build folder
            candidate = pathlib.Path(os.path.normpath(base / place.rsplit(":", 1)[0]))
            if candidate.is_file() and root in candidate.parents:
                path = candidate
                break
        yield name, path.relative_to(root).as_posix() if root in path.parents else str(path)


def written(text, heading):
    """The number of files, and the lists of (function, file) of a walk in the document."""
    part = re.split(r"^### ", text.split(f"### {heading}\n", 1)[1], maxsplit=1, flags=re.M)[0].split("\n## ")[0]
    lists = []
    for first, item in re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^$|\Z)", part, flags=re.M | re.S):
        file, rest = re.match(r"\[[^]]*\]\(([^)]*)\):?(.*)", item, flags=re.S).groups()
        if first == "1":
            lists.append([])
        lists[-1] += [(name, file) for name in re.findall(r"`(\w+)`", re.split(r"Beside\s+it:", rest)[0])]
    return int(re.search(r"at most (\d+) source files", part.replace("\n", " ")).group(1)), lists


def wrong(heading, text, trace):
    """What is not as the document says."""
    most, lists = written(text, heading)
    files = sorted({file for _, file in trace if file.endswith(".c") and not COMMON.match(file)})
    place = {step: i for i, step in reversed(list(enumerate(trace)))}
    for steps in lists:
        last = -1
        for step in steps:
            if step not in place:
                yield f"{step[0]} of {step[1]} is not entered"
            elif place[step] < last:
                yield f"{step[0]} of {step[1]} is entered before what stands before it"
            else:
                last = place[step]
    if not lists or not all(lists):
        yield "no function is named"
    if len(files) > most:
        yield f"it meets {len(files)} source files, not {most} at most: {', '.join(files)}"


def main():
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    failed = 0
    print(f"1..{len(WALKS)}")
    for i, (heading, (arguments, transport)) in enumerate(WALKS.items(), 1):
        for _ in range(TRIES):
            trace = list(entered(sys.argv[2], sys.argv[3], arguments, transport))
            found = list(wrong(heading, text, trace))
            if not found:
                break
        if "--show" in sys.argv:
            print("\n".join(f"# {file} {name}" for name, file in trace))
        print(f"{'not ok' if found else 'ok'} {i} - {heading}")
        for line in found:
            print(f"# {line}")
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
