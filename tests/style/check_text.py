# SPDX-License-Identifier: BSD-3-Clause
"""Bytes of the files under version control: no tabs or trailing blanks in C, an SPDX line near the top of every
source file, no path of somebody's build machine, no file over 200 kB, and in the library nothing that reads or writes
as the program's locale says, and no descriptor that may become standard output. Usage: check_text.py ROOT [PATH...]"""
import pathlib
import re
import subprocess
import sys

MAX_BYTES = 200_000
LARGE = {"examples/train_digits/digits.csv"}  # data that ships as its source has it
SPDX_SUFFIXES = {".c", ".h", ".S", ".py", ".sh", ".in"}
SPDX_FOLDERS = {"scripts", ".ci"}
# Absolute paths that exist on one machine only. /tmp, /usr, /opt and the like are everybody's.
MACHINE_PATH = re.compile(r"(?<![\w.$}/])/(?:work|home/\w+|root|Users|srv|workspace|builds?)/[\w.]")
# A program that took its user's locale may call the library, whose text other machines and ranks read. Our own programs stay in
# locale C: they take no other. DPDK's and oneDNN's modules have no base/.
LIBRARY = re.compile(r"(base|topo|compress|transport|collectives|training|methods|integrations)/(?!.*/module/|lgc/module/).*\.[ch]$")
OWN_LOCALE = re.compile(r"(tools|simulator|perf|examples)/.*\.[ch]$")
BY_LOCALE = re.compile(r"\b(strto(?:d|f|ld)|ato[f]|strn?casecmp|strcasestr|v\w*printf|cJSON_(?:Parse|Print)\w*)\s*\(")
FORMATTED = re.compile(r"\b((?:f|s|sn|d|as)?printf|f?scanf|sscanf)\s*\(")
NUMBER = re.compile(r"%[-+ #0'*\d.$]*[lL]?[aefgAEFG]")
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|/\*.*?\*/|//[^\n]*|[()]', re.S)


def strings_of_call(text, start):
    """The string literals between the parenthesis at start and the one that closes it, joined."""
    depth, found = 0, []
    for token in TOKEN.finditer(text, start):
        word = token.group()
        depth += (word == "(") - (word == ")")
        if word[0] == '"':
            found.append(word[1:-1])
        if depth == 0:
            break
    return "".join(found)


def by_locale(name, text):
    """(line, what) of calls that heed the locale."""
    calls = []
    if LIBRARY.match(name) and not name.startswith("base/text."):
        calls = list(BY_LOCALE.finditer(text))
        calls += [m for m in FORMATTED.finditer(text) if NUMBER.search(strings_of_call(text, m.end() - 1))]
    elif OWN_LOCALE.match(name):
        calls = re.finditer(r"\b(setlocale)\s*\(", text)
    for m in calls:
        yield text.count("\n", 0, m.start()) + 1, m.group(1)


# What makes a descriptor, in the library: behind bny_fd_high or bny_fd_own (base/fd.h), or it may become the program's standard output. Modules, which
# do not see base/, and drivers' tables, whose members are called open, make none of their own.
MAKES_FD = re.compile(r"(?<![\w>.])(?:(?:socket|accept4?|open|openat|memfd_create|eventfd|epoll_create1?|timerfd_create|dup)\("
                      r"|fcntl\([^,]*, F_DUPFD_CLOEXEC,|syscall\(SYS_(?:pidfd_open|userfaultfd),)")
FD_FOLDERS = {"topo", "transport", "collectives", "objects", "compress", "training", "methods"}


def bare_descriptors(name, text):
    if pathlib.PurePath(name).parts[0] not in FD_FOLDERS or "/module/" in name or not name.endswith(".c"):
        return
    code = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    for m in MAKES_FD.finditer(code):
        if not re.search(r"bny_fd_(?:high|own)\(\s*(?:\(int\)\s*)?$", code[:m.start()]):
            yield f"{name}:{code.count(chr(10), 0, m.start()) + 1}: a descriptor without bny_fd_high or bny_fd_own (base/fd.h)"


def tracked(root):
    """Files of the index. Of a tarball all files but those of build folders; also where it was unpacked inside a
    repository, which then has none of them in its index."""
    names = []
    try:
        out = subprocess.run(["git", "-c", f"safe.directory={root}", "-C", str(root), "ls-files", "-z"],
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        names = [n for n in out.decode().split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        pass
    if not names:
        built = {p.parent for p in root.rglob("meson-private")}
        names = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and built.isdisjoint(p.parents)]
        names = [n for n in names if not re.match(r"(build[^/]*|out|\.git)/|.*\.pyc$", n)]
    return [n for n in names if (root / n).is_file()]


def needs_spdx(name):
    path = pathlib.PurePath(name)
    return (path.suffix in SPDX_SUFFIXES or path.name == "meson.build"
            and path.parent.name == "" or path.parts[0] in SPDX_FOLDERS and path.suffix == "")


def check(root, name):
    data = (root / name).read_bytes()
    if len(data) > MAX_BYTES and name not in LARGE:
        yield f"{name}: {len(data)} bytes, the limit is {MAX_BYTES}"
    if b"\0" in data:
        return
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    if needs_spdx(name) and not any("SPDX-License-Identifier: " in line for line in lines[:3]):
        yield f"{name}: no SPDX-License-Identifier in the first three lines"
    in_c = name.endswith((".c", ".h"))
    yield from bare_descriptors(name, text)
    for number, line in enumerate(lines, 1):
        if in_c and "\t" in line:
            yield f"{name}:{number}: a tab"
        if in_c and line != line.rstrip():
            yield f"{name}:{number}: blanks at the end of the line"
        if not name.endswith("check_text.py") and MACHINE_PATH.search(line):
            yield f"{name}:{number}: a path of one machine: {line.strip()[:80]}"
    for number, what in by_locale(name, text):
        yield f"{name}:{number}: {what} heeds the program's locale: " + (
            "call what base/text.h has" if what != "setlocale" else "programs here stay in locale C")
    if in_c and data and not data.endswith(b"\n"):
        yield f"{name}: the last line has no end"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    names = sys.argv[2:] or tracked(root)
    found = [line for name in names for line in check(root, name)]
    print("\n".join(found) or f"{len(names)} files are clean")
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
