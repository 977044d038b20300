# SPDX-License-Identifier: BSD-3-Clause
"""Each shared library exports exactly its list, tests/style/symbols*.txt, and that list is exactly the functions that its
public headers declare with BANYAN_API. libbanyan exports at most 132 functions; the libraries on top of it use no other name of
it than those. Usage: check_symbols.py ROOT LIBRARY... | check_symbols.py ROOT --write"""
import pathlib
import re
import subprocess
import sys

MOST = 132
# The list and the headers of each library, libbanyan first.
LIBRARIES = {"libbanyan": ("symbols.txt", ("banyan.h", "extend.h", "objects.h")),
             "libbanyan-training": ("symbols-training.txt", ("training.h",)),
             "libbanyan-methods": ("symbols-methods.txt", ("methods.h",))}


def declared(header):
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(encoding="utf-8"), flags=re.S)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    return set(re.findall(r"\bBANYAN_API\b[^;(]*?(\w+)\s*\(", text))


def symbols(library, which):
    out = subprocess.run(["nm", "-D", which, "--format=posix", library], check=True,
                         stdout=subprocess.PIPE, universal_newlines=True).stdout
    # The version node itself is an absolute symbol ("BANYAN_1 A"). Sanitizers export their own "__asan_*".
    return {f[0].split("@")[0] for f in map(str.split, out.splitlines())
            if f[1] != "A" and not re.match(r"__(asan|ubsan|tsan|odr_asan|sanitizer)", f[0])}


def differences(left, left_name, right, right_name):
    for name in sorted(left - right):
        yield f"{name}: in {left_name}, not in {right_name}"
    for name in sorted(right - left):
        yield f"{name}: in {right_name}, not in {left_name}"


def violations(library, api, listed, of_banyan):
    name = pathlib.Path(library).name.split(".")[0]
    listing = LIBRARIES[name][0]
    yield from differences(api[name], "include/banyan", listed[name], f"{listing} (check_symbols.py ROOT --write)")
    yield from differences(listed[name], listing, symbols(library, "--defined-only"), f"the exports of {name}")
    yield from (f"{symbol}: not banyan_*" for symbol in sorted(listed[name]) if not symbol.startswith("banyan_"))
    if name == "libbanyan" and len(listed[name]) > MOST:
        yield f"{name}: exports {len(listed[name])} functions; {MOST} are the most"
    if name != "libbanyan":
        used = {symbol for symbol in symbols(library, "--undefined-only") if symbol.startswith(("banyan_", "bny_"))}
        yield from (f"{symbol}: used by {name}, not public in libbanyan" for symbol in sorted(used - of_banyan))


def main():
    root = pathlib.Path(sys.argv[1])
    style = root / "tests/style"
    api = {name: set().union(*(declared(root / "include/banyan" / header) for header in headers))
           for name, (_, headers) in LIBRARIES.items()}
    headers = {header for _, several in LIBRARIES.values() for header in several}
    wrong = [f"include/banyan/{path.name}: of no library" for path in sorted((root / "include/banyan").glob("*.h"))
             if path.name not in headers]
    if sys.argv[2] == "--write":
        for name, (listing, _) in LIBRARIES.items():
            (style / listing).write_text("".join(f"{symbol}\n" for symbol in sorted(api[name])))
        return 0
    listed = {name: set((style / listing).read_text().split()) for name, (listing, _) in LIBRARIES.items()}
    for library in sys.argv[2:]:
        wrong += violations(library, api, listed, listed["libbanyan"])
    print("\n".join(wrong) or f"{sum(map(len, listed.values()))} symbols are exported, all of them declared")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
