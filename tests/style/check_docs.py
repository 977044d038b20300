# SPDX-License-Identifier: BSD-3-Clause
"""What documents promise: every entry of a registry array has a row in the README.md named here, links lead to files
and headings, the tests that docs/security.md names exist, docs/README.md names every document of docs/, the C programs in README.md and docs/objects.md are those of examples/, that in
docs/failures.md is part of elastic_train, the list in docs/environment.md is that of base/param.c, the version is the
same in meson.build, banyan.h and CHANGELOG.md, files of this tree that documents and sources name
(folder/.../name.ext) exist, and no line of a document is too long.
Usage: check_docs.py ROOT [--write copies the program and the list]

A registry is `const struct ... *const bny_xs[] = { &bny_x_a, &bny_x_b, NULL };`, or a list of rows `ROW(bny_x_a)`. The user's name
of an entry is the .name of the table that its symbol defines, in any file of the folder. compress/README.md names the codecs
whose tables say .recommended = 1, in a sentence that begins with `Recommended:`."""
import pathlib
import re
import sys
import textwrap

from check_text import tracked

# Forests and direct programs share one table: a user chooses among both.
REGISTRIES = {"transport/transports.c": "transport/README.md",
              "compress/codecs.h": "compress/README.md",
              "topo/build.h": "collectives/README.md",
              "topo/build_graph.h": "topo/README.md",
              "collectives/program/directs.h": "collectives/README.md"}
MAX_COLUMNS = 120
MOST_VARIABLES = 45  # that users may set
DOCUMENTS = ["*.md", "docs/*.md", "perf/*.md", "*/README.md", "*/*/README.md"]
# A path from the root, as text and comments write it: not inside a longer one, a link or a pattern.
NAMED = re.compile(r"(?<![\w./{<*-])((?:base|topo|compress|transport|collectives|objects|training|methods|include|integrations|perf|tools|simulator|tests|"
                   r"scripts|packaging|docs|examples)/[\w/.-]+\.(?:c|h|py|sh|md|txt|svg|abi|ini))\b(?![/*<{])")
ARRAY = re.compile(r"\*const\s+bny_\w+\[\]\s*=\s*\{(.*?)\};", re.S)
ROW = re.compile(r"^ +ROW\((\w+)\)", re.M)
TABLE = re.compile(r"const\s+struct\s+bny_\w+_ops\s+(\w+)\s*=\s*\{(.*?)\n\};", re.S)
NAME = re.compile(r'\.name\s*=\s*"([^"]+)"')


def tables(folder):
    """Symbol -> name of every ops table defined below folder."""
    found = {}
    for path in folder.rglob("*.c"):
        for symbol, body in TABLE.findall(path.read_text(encoding="utf-8")):
            name = NAME.search(body)
            if name:
                found[symbol] = name.group(1)
    return found


def documented(readme):
    """First cells of the table rows of a README, without backquotes and links."""
    names = set()
    for line in readme.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            cell = line.split("|")[1].strip()
            names.update(re.findall(r"[\w.+-]+", re.sub(r"\]\([^)]*\)", "", cell)))
    return names


def check(root, registry, document):
    path = root / registry
    if not path.exists():
        return []
    readme = root / document
    if not readme.exists():
        return [f"{registry}: {readme.relative_to(root)} does not exist; it needs one row an entry"]
    text = path.read_text(encoding="utf-8")
    array = ARRAY.search(text)
    symbols = re.findall(r"&(\w+)", array.group(1)) if array else ROW.findall(text)
    if not symbols:
        return [f"{registry}: neither an array `*const bny_...[] = {{ &entry, ..., NULL }}` nor rows `ROW(entry)` were found"]
    names, rows, wrong = tables(path.parent), documented(readme), []
    for symbol in symbols:
        if symbol not in names:
            wrong.append(f"{registry}: {symbol} has no table with a .name below {path.parent.name}/")
        elif names[symbol] not in rows:
            wrong.append(f"{readme.relative_to(root)}: no row for {names[symbol]}")
    return wrong


def recommended(root):
    """Codecs that README.md recommends without their tables, or the other way round."""
    readme = root / "compress/README.md"
    if not readme.exists():
        return
    marked = {NAME.search(body).group(1) for path in readme.parent.glob("*.c")
              for _, body in TABLE.findall(path.read_text(encoding="utf-8")) if ".recommended = 1" in body}
    said = re.search(r"^Recommended:(.*?)[.;]", readme.read_text(encoding="utf-8"), re.M | re.S)
    named = set(re.findall(r"`([^`]+)`", said.group(1))) if said else set()
    for name in sorted(marked ^ named):
        yield f"compress/README.md: {name} is recommended {'by its table alone' if name in marked else 'here alone'}"


def documents(root):
    return sorted({path for pattern in DOCUMENTS for path in root.glob(pattern)
                   if not re.match("build|out", path.relative_to(root).parts[0])})


def anchors(path):
    """What `#...` may be behind a link to a document: its headings as GitHub writes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.M):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def dead_links(root):
    for path in documents(root):
        name = path.relative_to(root)
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text(encoding="utf-8")):
            target = path.parent / link if link else path
            if "://" in link:
                continue
            if not target.exists():
                yield f"{name}: links to {link}, which does not exist"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                yield f"{name}: links to {link}#{anchor}, which is no heading there"


def unlisted(root):
    start = root / "docs/README.md"
    if start.exists():
        named = set(re.findall(r"\]\(([^)#\s]+)", start.read_text(encoding="utf-8"))) | {"README.md"}
        yield from (f"docs/README.md: does not name {path.name}" for path in sorted(root.glob("docs/*.md"))
                    if path.name not in named)


def promised_tests(root):
    """docs/security.md names tests in the last cells of its table of promises, and behind the word `test`. `x`, `test_x` and
    `folder_x` are files of tests/; behind them `: `y``, or `y...`, a test in it that has, or begins with, that name."""
    document = root / "docs/security.md"
    if not document.exists():
        return
    files = [root / name for name in tracked(root) if re.match(r"tests/.*\.(c|py)$", name)]
    text = document.read_text(encoding="utf-8")
    promises = re.findall(r"^\|.*\|(.*)\|$", text.partition("## Promises and their tests")[2], re.M)[2:]
    if not promises:
        yield "docs/security.md: has no table of promises and their tests"
    for cell in promises:
        if "`" not in cell and "](testing.md#" not in cell:
            yield f"docs/security.md: no test is named in the cell {cell.strip()!r}"
    named = re.compile(r"`(\w+)`(?::\s+`([\w.]+)`)?")
    inside = [match.group(1) for match in re.finditer(r"\btest\s+(`\w+`(?::\s+`[\w.]+`)?)", text)]
    for name, what in (pair for words in promises + inside for pair in named.findall(words)):
        folder, _, rest = name.partition("_")
        found = [path for path in files if path.stem in (name, "test_" + name)
                 or (path.parent.name, path.stem) == (folder, "test_" + rest)]
        if not found:
            yield f"docs/security.md: no file of tests/ is {name}"
        begin, end = what.rstrip("."), r"\w*" if what.endswith("...") else ""
        test = re.compile(rf"(?:\bTest|\bParameterizedTest\w*|\bMP_TABLE)\([^;{{]*?\b{begin}{end}\s*[,)]"
                          rf"|def {begin}{end}\(")
        if found and what and not any(test.search(path.read_text(encoding="utf-8")) for path in found):
            yield f"docs/security.md: {name} has no test {what}"


def named_files(root):
    for name in tracked(root):
        if not name.endswith((".md", ".c", ".h", ".py", ".build", ".sh")) or name.endswith("check_self.py"):
            continue
        for link in sorted(set(NAMED.findall((root / name).read_text(encoding="utf-8")))):
            if not (root / link).exists() and not (root / name).parent.joinpath(link).exists():
                yield f"{name}: names {link}, which does not exist"


BARE = re.compile(r"(?<![\w./<-])[\w-]+\.[ch]\b(?!\()")


def bare_names(root):
    """Files that comments outside tests name without their folder."""
    names = {"mpi_abi.h", "omp.h", *(pathlib.PurePath(name).name for name in tracked(root))}  # two of others
    for name in tracked(root):
        if not name.endswith((".c", ".h")) or name.startswith("tests/"):
            continue
        for comment in re.findall(r"/\*.*?\*/", (root / name).read_text(encoding="utf-8"), re.S):
            yield from (f"{name}: names {file}, which does not exist" for file in BARE.findall(comment) if file not in names)


def program(root, write):
    for document, example in (("README.md", "allreduce.c"), ("docs/objects.md", "parameter_server.c")):
        yield from program_of(root / document, root / "examples" / example, write)


def program_of(readme, source, write):
    if not (readme.exists() and source.exists()):
        return
    text, code = readme.read_text(encoding="utf-8"), source.read_text(encoding="utf-8")
    fixed = re.sub(r"^```c\n.*?^```$", lambda _: f"```c\n{code}```", text, count=1, flags=re.M | re.S)
    if write:
        readme.write_text(fixed, encoding="utf-8")
    elif fixed != text:
        yield f"{readme.name}: the program is not examples/{source.name} (check_docs.py ROOT --write)"
    if "```c\n" not in fixed:
        yield f"{readme.name}: has no C program"


def excerpts(root):
    """C in a document that is part of a tested program."""
    document, source = root / "docs/failures.md", root / "examples/elastic_train/elastic_train.c"
    if not (document.exists() and source.exists()):
        return
    blocks = re.findall(r"^```c\n(.*?)^```$", document.read_text(encoding="utf-8"), re.M | re.S)
    if not blocks or any(block not in source.read_text(encoding="utf-8") for block in blocks):
        yield "docs/failures.md: the loop is not that of examples/elastic_train/elastic_train.c"


def variables(root, write):
    document, source = root / "docs/environment.md", root / "base/param.c"
    if not (document.exists() and source.exists()):
        return
    text = document.read_text(encoding="utf-8")
    code = re.sub(r'"\s*\n\s*"', "", source.read_text(encoding="utf-8"))  # strings that go on in the next line
    rows = re.findall(r'^    \{\s*"(BANYAN_[\w=]+)",\s*"([^"]*)",\s*"([^"]*)",\s*"([^"]*)"', code, re.M)
    rows = [row for row in rows if "set by banyan_run" not in row[3]]
    entries = ""
    for name, values, default, doc in rows:
        _, _, key = name.partition("=")
        indent = "  " if key else ""
        head = f"{indent}- `{key or name}` (`{values}`" + (f", default `{default}`): " if default else "): ")
        entries += textwrap.fill(head + doc, 112, subsequent_indent=indent + "  ", break_on_hyphens=False) + "\n"
    count = sum("=" not in row[0] for row in rows)
    if count > MOST_VARIABLES:
        yield f"base/param.c: {count} variables that users may set; {MOST_VARIABLES} are the most: make it a key of one"
    if f" {count} variables" not in text:
        yield f"docs/environment.md: does not say that there are {count} variables"
    fixed = re.sub(r"^- `BANYAN_.*?\n(?=\n|\Z)", lambda _: entries, text, count=1, flags=re.M | re.S)
    if write:
        document.write_text(fixed, encoding="utf-8")
    elif fixed != text or len(rows) < 30:
        yield "docs/environment.md: the list is not that of base/param.c (check_docs.py ROOT --write)"


def long_lines(root):
    for name in tracked(root):
        if name.endswith(".md"):
            lines = (root / name).read_text(encoding="utf-8").splitlines()
            yield from (f"{name}:{number}: {len(line)} columns, the limit is {MAX_COLUMNS}"
                        for number, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS)


def versions(root):
    build, header = root / "meson.build", root / "include/banyan/banyan.h"
    if not (build.exists() and header.exists()):
        return
    version = re.search(r"^ +version: '([\d.]+)'", build.read_text(encoding="utf-8"), re.M).group(1)
    parts = re.findall(r"^#define BANYAN_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text(encoding="utf-8"), re.M)
    if ".".join(parts) != version:
        yield f"banyan.h: is version {'.'.join(parts)}, meson.build {version}"
    changes = root / "CHANGELOG.md"
    if not changes.exists() or f"\n## [{version}] - " not in changes.read_text(encoding="utf-8"):
        yield f"CHANGELOG.md: has no section [{version}] with a date"


def main():
    root = pathlib.Path(sys.argv[1])
    found = [line for entry in REGISTRIES.items() for line in check(root, *entry)]
    found += [*dead_links(root), *unlisted(root), *versions(root), *promised_tests(root), *named_files(root), *bare_names(root), *long_lines(root), *excerpts(root),
              *recommended(root), *program(root, "--write" in sys.argv), *variables(root, "--write" in sys.argv)]
    print("\n".join(found) or "registries, links, the program and the variables are as the documents say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
