# SPDX-License-Identifier: BSD-3-Clause
"""The shared library exports exactly tests/style/symbols.txt, and that list is exactly the functions that
the public headers declare with BANYAN_API. Usage: check_symbols.py ROOT LIBRARY | check_symbols.py ROOT --write"""
import pathlib
import re
import subprocess
import sys


def declared(header):
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(encoding="utf-8"), flags=re.S)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    return set(re.findall(r"\bBANYAN_API\b[^;(]*?(\w+)\s*\(", text))


def exported(library):
    out = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", library], check=True,
                         stdout=subprocess.PIPE, universal_newlines=True).stdout
    # The version node itself is an absolute symbol ("BANYAN_0 A"). Sanitizers export their own "__asan_*".
    return {f[0].split("@")[0] for f in map(str.split, out.splitlines())
            if f[1] != "A" and not re.match(r"__(asan|ubsan|tsan|odr_asan|sanitizer)", f[0])}


def differences(left, left_name, right, right_name):
    for name in sorted(left - right):
        yield f"{name}: in {left_name}, not in {right_name}"
    for name in sorted(right - left):
        yield f"{name}: in {right_name}, not in {left_name}"


def main():
    root = pathlib.Path(sys.argv[1])
    listing = root / "tests/style/symbols.txt"
    api = set().union(*map(declared, sorted((root / "include/banyan").glob("*.h"))))
    if sys.argv[2] == "--write":
        listing.write_text("".join(f"{name}\n" for name in sorted(api)))
        return 0
    listed = set(listing.read_text().split())
    wrong = list(differences(api, "include/banyan", listed, "symbols.txt (check_symbols.py ROOT --write)"))
    wrong += differences(listed, "symbols.txt", exported(sys.argv[2]), "the library's exports")
    wrong += [f"{name}: not banyan_*" for name in sorted(listed) if not name.startswith("banyan_")]
    print("\n".join(wrong) or f"{len(listed)} symbols are exported, all of them declared")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
