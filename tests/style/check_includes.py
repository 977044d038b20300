# SPDX-License-Identifier: BSD-3-Clause
"""Who may include whom: base <- topo, compress, transport <- collectives <- objects; training <- methods, which see base
and public headers alone; integrations, perf, tools, simulator, examples. Examples see only the public header. The
folders of collectives/ have an order of their own (folder_order.py). Each C file has a name of its own. Usage: check_includes.py ROOT"""
import pathlib
import re
import sys

import folder_order

MAY_SEE = {
    "include": set(),
    "base": {"base"},
    "topo": {"base", "topo"},
    "compress": {"base", "compress"},
    "transport": {"base", "transport"},
    "collectives": {"base", "topo", "compress", "transport", "collectives"},
    "objects": {"base", "topo", "compress", "transport", "collectives", "objects"},
    "training": {"base", "training"},  # above it only the public headers
    "methods": {"base", "training", "methods"},
    "examples": {"examples"},
}
# The folders of transport/: which others each may see.
TRANSPORTS = {"bootstrap": set(), "datagram": set(), "dpdk": {"datagram"}, "loop": set(), "shm": set(), "tcp": {"bootstrap"},
              "ud": {"datagram", "verbs"}, "verbs": {"bootstrap"}}
# perf, tools, simulator, tests and integrations may include anything.
FOLDERS = {"base", "topo", "compress", "transport", "collectives", "objects", "training", "methods", "integrations",
           "perf", "tools", "simulator", "examples", "tests"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def between_folders(path, name):
    """What is wrong with a file of collectives/ that includes one of collectives/, or None."""
    user, used = folder_order.folder_of(path), folder_order.folder_of(name)
    if not path.startswith("collectives/") or not name.startswith("collectives/"):
        return None
    for folder, file in (user, path), (used, name):
        if folder not in folder_order.MAY_USE:
            return f"{file} is in no folder that tests/style/folder_order.py knows"
    if not folder_order.may_use(user, used):
        allowed = ", ".join(r for r in folder_order.MAY_USE if folder_order.may_use(user, r) and r != user)
        return f"of collectives/, {user}/ may see {allowed or 'itself alone'}"
    return None


def between_transports(path, name):
    """What is wrong with a file of transport/ that includes one of transport/, or None."""
    user, used = (part.split("/")[1] if part.count("/") > 1 and part.startswith("transport/") else None
                  for part in (path, name))
    if not user or not used or user == used:
        return None
    if user not in TRANSPORTS:
        return f"tests/style/check_includes.py does not know transport/{user}/"
    if used not in TRANSPORTS[user]:
        return f"transport/{user}/ may see {', '.join(sorted(TRANSPORTS[user])) or 'no other transport'}"
    return None


def violations(root):
    for folder, allowed in MAY_SEE.items():
        for path in sorted((root / folder).rglob("*.[ch]")):
            text = path.read_text(encoding="utf-8")
            for quote, name in INCLUDE.findall(text):
                where = f"{path.relative_to(root)}: includes {name}"
                top = name.split("/")[0]
                if quote == "<" and top not in FOLDERS:
                    continue
                if top == "banyan":
                    continue
                if "/" not in name:
                    if folder != "examples":
                        yield f"{where}: write the path from the repository's root"
                elif top not in allowed:
                    yield f"{where}: {folder}/ may see {', '.join(sorted(allowed)) or 'nothing'}"
                elif not (root / name).exists():
                    yield f"{where}: there is no such file"
                else:
                    where_from = path.relative_to(root).as_posix()
                    wrong = between_folders(where_from, name) or between_transports(where_from, name)
                    if wrong:
                        yield f"{where}: {wrong}"


def namesakes(root):
    """C files outside tests that share a name: a stack trace or a search does not tell them apart."""
    seen = {}
    for folder in sorted(FOLDERS - {"tests", "perf", "examples"}):
        for path in sorted((root / folder).rglob("*.[ch]")):
            other = seen.setdefault(path.name, path)
            if other != path:
                yield f"{path.relative_to(root)}: {other.relative_to(root)} has this name already"


def main():
    root = pathlib.Path(sys.argv[1])
    found = [*violations(root), *namesakes(root)]
    print("\n".join(found) or "include directions are kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
