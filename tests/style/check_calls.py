# SPDX-License-Identifier: BSD-3-Clause
"""The folders of collectives/ call each other in one direction only (folder_order.py): no object file
uses a function or a variable that a folder above its own defines. Reads the symbols of a static
library with nm. Usage: check_calls.py ROOT LIBRARY [NM]"""
import pathlib
import re
import subprocess
import sys

import folder_order


def object_names(root):
    """How the build calls the object of each source of collectives/, and its folder."""
    for path in sorted((root / "collectives").rglob("*.c")):
        name = path.relative_to(root).as_posix()
        yield name.replace("/", "_") + ".o", (name, folder_order.folder_of(name))


def symbols(library, nm):
    """(member, letter, name) of all symbols that cross files."""
    run = subprocess.run([nm, "-P", "-A", "-g", library], stdout=subprocess.PIPE, check=True,
                         universal_newlines=True)
    for line in run.stdout.splitlines():
        match = re.match(r"^.*\[(?:.*/)?(.+\.o)\]: (\S+) (\S)( |$)", line)
        if match:
            yield match.group(1), match.group(3), match.group(2)


def violations(root, library, nm):
    sources = dict(object_names(root))
    defined, used, seen = {}, [], set()
    for member, letter, name in symbols(library, nm):
        if member not in sources:
            continue
        seen.add(member)
        if letter in "Uw":
            used.append((sources[member], name))
        else:
            defined[name] = sources[member]
    if not seen:
        raise FileNotFoundError("no symbols of collectives/ in the library, or link-time optimisation")
    for member in sorted(set(sources) - seen):
        yield f"{sources[member][0]}: the library has no {member}"
    for (file, folder), name in sorted(used):
        if name in defined and not folder_order.may_use(folder, defined[name][1]):
            yield f"{file}: uses {name} of {defined[name][0]}, which is not below {folder}/"


def main():
    root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
    nm = sys.argv[3] if len(sys.argv) > 3 else "nm"
    try:
        found = list(violations(root, library, nm))
    except FileNotFoundError as why:
        print(f"{why} (nm is of binutils)")
        return 77
    print("\n".join(found) or "calls go down")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
