# SPDX-License-Identifier: BSD-3-Clause
"""The checks of this folder can fail: each is run on a small tree with one planted violation."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
SPDX = "/* SPDX-License-Identifier: BSD-3-Clause */\n"
REGISTRY = SPDX + """
const struct bny_codec_ops *const bny_codecs[] = { &bny_codec_none, &bny_codec_f16, NULL };
"""
LIST = SPDX + """
#define BNY_CODECS(ROW) \\
    ROW(bny_codec_none) \\
    ROW(bny_codec_f16)
"""
TABLES = SPDX + """
const struct bny_codec_ops bny_codec_none = {
    .name = "none",
};
const struct bny_codec_ops bny_codec_f16 = {
    .name = "f16",
};
"""


class Planted(unittest.TestCase):
    def run_check(self, check, files, *args, environment=None):
        """Exit status and output of a check on a tree of {path: text}."""
        with tempfile.TemporaryDirectory() as tree:
            for name, text in files.items():
                path = pathlib.Path(tree, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            run = subprocess.run([sys.executable, HERE / check, tree, *args], env=environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 universal_newlines=True)
            return run.returncode, run.stdout

    def expect(self, check, files, text, status=1, args=()):
        code, out = self.run_check(check, files, *args)
        self.assertEqual(code, status, out)
        self.assertIn(text, out)

    def test_include_against_the_direction(self):
        clean = {"base/err.h": SPDX, "transport/wire.h": SPDX,
                 "transport/a.c": SPDX + '#include "base/err.h"\n#include <stdio.h>\n'}
        self.expect("check_includes.py", clean, "kept", status=0)
        for include in '"transport/wire.h"', "<transport/wire.h>", '"collectives/program/program.h"', '"a.h"':
            self.expect("check_includes.py", {**clean, "compress/a.c": f"#include {include}\n"},
                        "compress/a.c: includes")
        self.expect("check_includes.py", {**clean, "examples/a.c": '#include "base/err.h"\n'},
                    "examples/a.c: includes")

    def test_include_between_folders(self):
        clean = {f"collectives/{folder}/{folder}.h": SPDX for folder in ("plan", "op", "engine", "api")}
        clean["collectives/engine/a.c"] = '#include "collectives/op/op.h"\n'
        self.expect("check_includes.py", clean, "kept", status=0)
        for user, used in ("op", "engine"), ("engine", "direct"), ("direct", "engine"), ("plan", "op"), \
                ("progress", "api"), ("engine", "progress"), ("progress", "engine"):
            files = {**clean, f"collectives/{used}/{used}.h": SPDX,
                     f"collectives/{user}/b.c": f'#include "collectives/{used}/{used}.h"\n'}
            self.expect("check_includes.py", files, f"of collectives/, {user}/ may see")
        for file in "collectives/new/a.c", "collectives/a.c":
            self.expect("check_includes.py", {**clean, file: '#include "collectives/op/op.h"\n'},
                        f"{file} is in no folder")

    def test_two_files_of_one_name(self):
        files = {"base/join.c": SPDX, "topo/join.c": SPDX, "tests/join.c": SPDX}
        self.expect("check_includes.py", files, "topo/join.c: base/join.c has this name already")
        del files["topo/join.c"]
        self.expect("check_includes.py", files, "kept", status=0)

    @unittest.skipUnless(shutil.which("nm") and shutil.which("ar"), "needs nm and ar")
    def test_calls_between_folders(self):
        call = "int bny_{0}(void); int bny_{1}(void); int bny_{0}(void) {{ return bny_{1}(); }}\n".format
        table = "int bny_b(void); int (*const bny_a)(void) = bny_b;\n"
        leaf = "int bny_b(void); int bny_b(void) { return 0; }\n"
        for user, used, text, status in (("op", "match", call("a", "b"), 0), ("match", "op", call("a", "b"), 1),
                                         ("engine", "direct", call("a", "b"), 1), ("api", "op", table, 0),
                                         ("op", "api", table, 1)):
            files = {f"collectives/{user}/a.c": text, f"collectives/{used}/b.c": leaf}
            with tempfile.TemporaryDirectory() as out:
                objects = []
                for name, source in files.items():
                    objects.append(f"{out}/{name.replace('/', '_')}.o")
                    subprocess.run(["cc", "-c", "-x", "c", "-", "-o", objects[-1]], input=source, check=True,
                                   universal_newlines=True)
                for kind in "rc", "rcT":  # with members, and thin: with their paths
                    library = f"{out}/{kind}.a"
                    subprocess.run(["ar", kind, library, *objects], check=True)
                    wrong = f"collectives/{user}/a.c: uses bny_b of collectives/{used}/b.c"
                    self.expect("check_calls.py", files, wrong if status else "calls go down", status, [library])
                more = {**files, "collectives/op/c.c": SPDX}
                self.expect("check_calls.py", more, "the library has no collectives_op_c.c.o", 1, [library])

    def test_registry_entry_without_a_row(self):
        for folder, name, entries in ("transport", "transports.c", REGISTRY), ("compress", "codecs.h", LIST):
            files, readme = {f"{folder}/{name}": entries, f"{folder}/codecs.c": TABLES}, f"{folder}/README.md"
            self.expect("check_docs.py", files, "README.md does not exist")
            rows = "| name | file |\n|---|---|\n| `none` | - |\n"
            self.expect("check_docs.py", {**files, readme: rows}, "no row for f16")
            rows += "| [`f16`](codecs.c) | - |\n"
            self.expect("check_docs.py", {**files, readme: rows}, "as the documents say", status=0)
            files[f"{folder}/codecs.c"] = SPDX
            self.expect("check_docs.py", {**files, readme: rows}, "no table with a .name")
            self.expect("check_docs.py", {**files, f"{folder}/{name}": SPDX, readme: rows}, "were found")

    def test_recommended_codecs(self):
        files = {"compress/codecs.h": LIST, "compress/codecs.c": TABLES.replace('"f16",', '"f16",\n    .recommended = 1,')}
        rows = "Recommended: `{}`.\n\n| name | file |\n|---|---|\n| `none` | - |\n| `f16` | - |\n"
        self.expect("check_docs.py", {**files, "compress/README.md": rows.format("f16")}, "as the documents say", status=0)
        self.expect("check_docs.py", {**files, "compress/README.md": rows.format("none`, `f16")}, "none is recommended here alone")
        self.expect("check_docs.py", {**files, "compress/README.md": rows.replace("Recomm", "R")}, "f16 is recommended by its table alone")

    def test_documents(self):
        files = {"README.md": "[a](a.c#x)\n```c\nint a;\n```\n", "examples/allreduce.c": "int a;\n",
                 "a.c": SPDX}
        self.expect("check_docs.py", files, "as the documents say", status=0)
        self.expect("check_docs.py", {**files, "README.md": "[b](b.c)\n"}, "links to b.c")
        self.expect("check_docs.py", {**files, "docs/a.md": "[b](../b.c)\n"}, "docs/a.md: links to ../b.c")
        self.expect("check_docs.py", {**files, "docs/a.md": "# Here, there\n[a](#here)\n"}, "no heading there")
        self.expect("check_docs.py", {**files, "docs/a.md": "# Here, there\n[a](#here-there) [a](a.md#here-there)\n"},
                    "as the documents say", status=0)
        self.expect("check_docs.py", {**files, "docs/README.md": "[a](../a.c)\n", "docs/a.md": "a\n"},
                    "docs/README.md: does not name a.md")
        self.expect("check_docs.py", {**files, "README.md": "text\n"}, "has no C program")
        self.expect("check_docs.py", {**files, "examples/allreduce.c": "int b;\n"}, "is not examples")

        loop = {**files, "docs/failures.md": "```c\nint b;\n```\n", "examples/elastic_train/elastic_train.c": "int b;\n"}
        self.expect("check_docs.py", loop, "as the documents say", status=0)
        self.expect("check_docs.py", {**loop, "docs/failures.md": "```c\nint c;\n```\n"}, "the loop is not")
        self.expect("check_docs.py", {**loop, "docs/failures.md": "text\n"}, "the loop is not")

    def test_promised_tests(self):
        files = {"tests/a/test_x.c": SPDX + "Test(x, nobody_joins)\n{\n}\n", "tests/mp/test_y.py": "class Y:\n    def test_all(self):\n        pass\n"}
        def expect(text, *message):
            table = "## Promises and their tests\n\n| who | test |\n|---|---|\n" + text + "\n"
            self.expect("check_docs.py", {**files, "docs/security.md": table}, *(message or ("as the documents say", 0)))

        for text in ("`test_x`", "`x`", "`a_x`", "`test_x`: `nobody_joins`", "`test_x`: `nobody_...`", "`mp_y`: `test_all`"):
            expect(f"| rank | {text} |")
        for text, message in (("`test_z`", "no file of tests/ is test_z"), ("`mp_x`", "no file of tests/ is mp_x"),
                              ("`x_a`", "no file of tests/ is x_a"), ("somewhere", "no test is named"),
                              ("`test_x`: `nobody`", "test_x has no test nobody"),
                              ("`test_x`: `joins...`", "test_x has no test joins...")):
            expect(f"| rank | {text} |", message)
        expect("| rank | `x` |\n\nNothing (test `gone`).", "no file of tests/ is gone")
        expect("", "has no table of promises")

    def test_bare_names_in_comments(self):
        for text, status in (("/* other.h, and <stdio.h>: c.next.h() */\n", 0), ("/* gone.c: nothing */\n", 1)):
            files = {"base/a.c": SPDX + text, "base/other.h": SPDX}
            self.expect("check_docs.py", files, "names gone.c" if status else "as the documents say", status)

    def test_named_files(self):
        files = {"base/a.c": SPDX + "/* base/b.h, docs/<name>.md, base/*.c, x/base/c.c */\n", "base/b.h": SPDX,
                 "docs/a.md": "`base/a.c`, `perf/b/*.c`\n"}
        self.expect("check_docs.py", files, "as the documents say", status=0)
        self.expect("check_docs.py", {**files, "docs/a.md": "`base/c.c`.\n"}, "docs/a.md: names base/c.c")
        self.expect("check_docs.py", {**files, "base/b.h": SPDX + "/* see docs/b.md */\n"}, "base/b.h: names docs/b.md")

    def test_long_lines(self):
        for columns, text, status in (120, "as the documents say", 0), (121, "docs/a.md:2: 121 columns", 1):
            self.expect("check_docs.py", {"docs/a.md": "# a\n" + "x" * columns + "\n"}, text, status)

    def test_variables(self):
        def tree(n):
            rows = "".join(f'    {{ "BANYAN_{i}", "0|1", "{i % 2}", "a switch", 0, 1 }},\n' for i in range(n))
            listed = "".join(f"- `BANYAN_{i}` (`0|1`, default `{i % 2}`): a switch\n" for i in range(n))
            rows += '    { "BANYAN_0=key", "bytes", "1", "a size", 0, 9 },\n    { "BANYAN_R", "rank", "", "set by banyan_run", 0, 0 },\n'
            return {"base/param.c": SPDX + rows, "docs/environment.md":
                    f"# {n} variables\n\n{listed}  - `key` (`bytes`, default `1`): a size\n\nMore.\n"}
        files = tree(30)
        self.expect("check_docs.py", files, "as the documents say", status=0)
        for old, new, text in (("switch", "word", "the list is not that of base/param.c"), ("30 variables", "31 variables", "30 variables")):
            wrong = {**files, "docs/environment.md": files["docs/environment.md"].replace(old, new, 1)}
            self.expect("check_docs.py", wrong, text)
        self.expect("check_docs.py", tree(46), "46 variables that users may set; 45 are the most")

    def test_versions(self):
        header = "".join(f"#define BANYAN_VERSION_{part} {n}\n" for part, n in (("MAJOR", 0), ("MINOR", 2), ("PATCH", 0)))
        files = {"meson.build": "project('a', 'c',\n  version: '0.2.0')\n", "include/banyan/banyan.h": header,
                 "CHANGELOG.md": "# Changelog\n\n## [0.2.0] - 2026-01-01\n"}
        self.expect("check_docs.py", files, "as the documents say", status=0)
        self.expect("check_docs.py", {**files, "CHANGELOG.md": "## [Unreleased]\n"}, "no section [0.2.0]")
        self.expect("check_docs.py", {**files, "include/banyan/banyan.h": header.replace("MINOR 2", "MINOR 1")},
                    "is version 0.1.0, meson.build 0.2.0")

    def test_text(self):
        self.expect("check_text.py", {"base/a.c": SPDX + "int a;\n"}, "clean", status=0)
        machine = "/" + "work/main/base"
        for text, message in ((SPDX + "\tint a;\n", "a tab"), (SPDX + "int a; \n", "blanks"),
                              ("int a;\n", "no SPDX"), (SPDX + "int a;", "no end"),
                              (SPDX + f"/* {machine} */\n", "path of one machine"),
                              (SPDX + "/* x */\n" * 30000, "the limit is")):
            self.expect("check_text.py", {"base/a.c": text}, message)
        for code in 'strtod(s, 0)', 'atof(s)', 'sscanf(s, "%d %lf", &i, &x)', 'fprintf(f, "%s" /* " */\n"%.3g", s, x)', \
                'snprintf(b, n, "%+5.1Le", x)', 'vsnprintf(b, n, fmt, ap)', 'strcasecmp(a, b)':
            for path, status in (("topo/a.c", 1), ("base/text.c", 0), ("tools/a.c", 0), ("transport/dpdk/module/a.c", 0)):
                text = SPDX + f"int a(void) {{ return {code}; }}\n"
                self.expect("check_text.py", {path: text}, "heeds the program's locale" if status else "clean", status=status)
        for code in 'sscanf(s, "%d", &i) || "%f"', 'bny_fail(1, "%g", x)', 'snprintf(b, n, "%zu%c", f(")"), c) || "%g"':
            self.expect("check_text.py", {"topo/a.c": SPDX + f"int a = {code};\n"}, "clean", status=0)
        self.expect("check_text.py", {"tools/a.c": SPDX + 'int a = setlocale(0, "");\n'}, "stay in locale C")
        bare = SPDX + "int a(void)\n{\n    return eventfd(0, 0);\n}\n"
        self.expect("check_text.py", {"transport/a.c": bare}, "transport/a.c:4: a descriptor without")
        self.expect("check_text.py", {"transport/a.c": bare.replace("eventfd(0, 0)", "bny_fd_own(eventfd(0, 0))")}, "clean", status=0)

    @unittest.skipUnless(shutil.which("git"), "needs git")
    def test_tarball(self):
        good, bad = {"base/a.c": SPDX + "int a;\n"}, SPDX + "\tint a;\n"
        for folder in "build", "of-any-name", "tests/of-any-name":
            files = {**good, f"{folder}/meson-private/build.dat": "", f"{folder}/made.c": bad}
            self.expect("check_text.py", files, "clean", status=0)
        self.expect("check_text.py", {**good, "of-any-name/made.c": bad}, "a tab")
        with tempfile.TemporaryDirectory() as repository:
            subprocess.run(["git", "init", "-q", repository], check=True)
            inside = pathlib.Path(repository, "unpacked")
            inside.mkdir()
            (inside / "a.c").write_text(bad)
            run = subprocess.run([sys.executable, HERE / "check_text.py", inside], stdout=subprocess.PIPE,
                                 universal_newlines=True)
            self.assertEqual(run.returncode, 1)
            self.assertIn("a tab", run.stdout)

    def test_format_of_long_lines(self):
        style = "BasedOnStyle: LLVM\nColumnLimit: 20\n"
        files = {".clang-format": style, "base/a.c": "/* 4567890123456789_ */\n"}
        self.expect("check_format.py", files, "base/a.c:1: 23 columns")
        bare = {k: v for k, v in os.environ.items() if k != "CLANG_FORMAT"}
        bare["PATH"] = "/nonexistent"  # no formatter, no git
        code, out = self.run_check("check_format.py", files, environment=bare)
        self.assertEqual(code, 1, out)
        code, out = self.run_check("check_format.py", {**files, "base/a.c": "int a;\n"}, environment=bare)
        self.assertEqual(code, 77, out)
        self.assertIn("there is no clang-format 14", out)

    @unittest.skipUnless(shutil.which("clang-format-14"), "needs clang-format-14")
    def test_format(self):
        files = {".clang-format": "BasedOnStyle: LLVM\nColumnLimit: 96\n"}
        self.expect("check_format.py", {**files, "base/a.c": "int a;\n"}, "1 files are formatted", status=0)
        self.expect("check_format.py", {**files, "base/a.c": "int a;\nint  b;\n"}, "base/a.c:2: not as")
        self.expect("check_format.py", {**files, ".clang-format": "NoSuchKey: 1\nColumnLimit: 96\n",
                                        "base/a.c": "int a;\n"}, "failed")

    def test_symbols(self):
        header = "#define BANYAN_API\nBANYAN_API int banyan_a(void);\n" \
                 "BANYAN_API const char *banyan_b(int x);\n"
        source = "int banyan_a(void); int banyan_a(void) { return 0; }\n" \
                 "int banyan_b(int x); int banyan_b(int x) { return x; }\n"
        files = {"include/banyan/banyan.h": header, "include/banyan/extend.h": "", "include/banyan/objects.h": "",
                 "include/banyan/training.h": "BANYAN_API int banyan_t(void);\n", "include/banyan/methods.h": "",
                 "tests/style/symbols.txt": "banyan_a\nbanyan_b\n", "tests/style/symbols-training.txt": "banyan_t\n",
                 "tests/style/symbols-methods.txt": ""}
        many = [f"banyan_f{i}" for i in range(133)]
        with tempfile.TemporaryDirectory() as out:
            def check(more, wrong, text, name="libbanyan", status=1):
                subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{out}/{name}.so.0"],
                               input=text, check=True, universal_newlines=True)
                self.expect("check_symbols.py", {**files, **more}, wrong, status, [f"{out}/{name}.so.0"])
            check({}, "3 symbols", source, status=0)
            check({"tests/style/symbols.txt": "banyan_a\n"}, "banyan_b: in include/banyan", source)
            check({}, "bny_c: in the exports of libbanyan", source + "int bny_c;\n")
            check({}, "banyan_b: in symbols.txt", source.splitlines()[0])
            check({"include/banyan/new.h": ""}, "new.h: of no library", source)
            check({"tests/style/symbols.txt": "\n".join(many)}, "exports 133 functions", "".join(f"int {f};\n" for f in many))
            calls = "int {0}(void); int banyan_t(void); int banyan_t(void) {{ return {0}(); }}\n".format
            check({}, "3 symbols", calls("banyan_a"), "libbanyan-training", 0)
            check({}, "bny_a: used by libbanyan-training", calls("bny_a"), "libbanyan-training")
            check({}, "banyan_m: used by libbanyan-training", calls("banyan_m"), "libbanyan-training")


@unittest.skipUnless(shutil.which("git"), "needs git")
class Commits(unittest.TestCase):
    """check_commits.py, in a repository of its own."""

    def git(self, *args):
        subprocess.run(["git", "-C", self.tree, "-c", "user.name=a", "-c", "user.email=a@example.org",
                        "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false", *args], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def commit(self, subject):
        self.git("commit", "--allow-empty", "-m", subject)

    def expect(self, status, text):
        run = subprocess.run([sys.executable, HERE / "check_commits.py", self.tree], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, universal_newlines=True)
        self.assertEqual(run.returncode, status, run.stdout)
        self.assertIn(text, run.stdout)

    def test_subjects(self):
        with tempfile.TemporaryDirectory() as self.tree:
            self.expect(77, "no history")
            self.git("init", "-q")
            self.commit("what came before the tag is not looked at")
            self.expect(77, "no history")
            self.git("tag", "v0.1.0")
            self.commit("tests, perf/builds.py: do one thing")
            self.expect(0, "1 commits since v0.1.0")
            for subject in "wip", "fixup! tests: do a thing", "tests: do a thing.", "tests do a thing":
                self.commit(subject)
                self.expect(1, subject + ": not of the form")
                self.git("reset", "--soft", "HEAD~1")
            self.commit("tests: " + 54 * "x")
            self.expect(1, "61 characters")
            self.git("reset", "--soft", "HEAD~1")
            self.commit("tests: " + 53 * "x")
            self.expect(0, "2 commits since v0.1.0")


TAP = """TAP version 13
1..4
# Criterion v2.4.1
ok - a::skipped_one  # SKIP no avx512
ok - a::good  (0.00s)
not ok - a::crash unexpected signal after t.c:5
not ok - a::bad  (0.01s)
  ---
  assertions: 1
"""


class Results(unittest.TestCase):
    """scripts/lib/results.py, which counts for scripts/test."""

    def run_results(self, entries, expected="", again=None):
        with tempfile.TemporaryDirectory() as folder:
            log, second, skips = (pathlib.Path(folder, name) for name in ("log.json", "second.json", "skips.txt"))
            log.write_text("".join(json.dumps(e) + "\n" for e in entries))
            skips.write_text("# comment\n" + expected)
            logs = str(log)
            if again is not None:
                second.write_text("".join(json.dumps(e) + "\n" for e in again))
                logs += f",{second}"
            run = subprocess.run([sys.executable, HERE / "../../scripts/lib/results.py", skips,
                                  f"gcc={logs}"], stdout=subprocess.PIPE, universal_newlines=True)
            return run.returncode, run.stdout.splitlines()

    def entry(self, result, stdout="", code=0, name="prog"):
        return {"name": f"banyan:unit / {name}", "stdout": stdout, "result": result, "returncode": code}

    def test_cases_of_a_program_are_counted(self):
        code, lines = self.run_results([self.entry("FAIL", TAP, 1), self.entry("OK")],
                                       "gcc/prog/a::skip*  no such unit here\n")
        self.assertEqual((code, lines[-1]), (1, "2 passed, 2 failed, 1 skipped"))

    def test_unexpected_skip_is_a_failure(self):
        code, lines = self.run_results([self.entry("OK", TAP.split("not ok")[0])])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertIn("skipped, but not in", lines[0])

    def test_program_that_ends_badly_after_good_cases_is_a_failure(self):
        for result in "ERROR", "TIMEOUT", "INTERRUPT":
            code, lines = self.run_results([self.entry(result, TAP.split("not ok")[0], 1)],
                                           "gcc/*\n")
            self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))

    def test_nothing_ran(self):
        code, lines = self.run_results([])
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))

    def test_a_second_run_that_passes_is_called_flaky(self):
        code, lines = self.run_results([self.entry("FAIL", TAP, 1), self.entry("OK", name="other")], again=[self.entry("OK")])
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 0 skipped"))
        self.assertRegex(lines[-2], r"^flaky: gcc/prog \(logs: .*log.json, .*second.json\)$")
        self.assertIn("not ok - a::bad  (0.01s)", lines)

    def test_a_second_run_does_not_take_back_a_report(self):
        code, lines = self.run_results([self.entry("ERROR", code=99)], again=[self.entry("OK")])
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))

    def test_a_second_run_that_fails_counts(self):
        code, lines = self.run_results([self.entry("FAIL", TAP, 1)], "gcc/*\n", again=[self.entry("FAIL", TAP, 1)])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 2 failed, 1 skipped"))
        self.assertFalse([line for line in lines if line.startswith("flaky")])

    def test_many_flaky_programs_are_a_failure(self):
        for n, said in (3, (0, "3 passed, 0 failed, 0 skipped")), (4, (1, "4 passed, 1 failed, 0 skipped")):
            names = [f"prog{i}" for i in range(n)]
            code, lines = self.run_results([self.entry("TIMEOUT", code=1, name=name) for name in names],
                                           again=[self.entry("OK", name=name) for name in names])
            self.assertEqual((code, lines[-1]), said)

    def test_failed_programs_are_listed(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as log:
            log.write("".join(json.dumps(self.entry(*e)) + "\n" for e in (("OK",), ("FAIL", TAP, 1, "bad"), ("TIMEOUT", "", 1, "late"))))
            log.flush()
            run = subprocess.run([sys.executable, HERE / "../../scripts/lib/results.py", "--failed", log.name],
                                 stdout=subprocess.PIPE, universal_newlines=True)
        self.assertEqual(run.stdout, "bad\nlate\n")

    def test_all_is_well(self):
        code, lines = self.run_results([self.entry("OK"), self.entry("SKIP", code=77)], "gcc/*\n")
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))


# What sanitizers write into their log_path, as gcc 12 and clang 14 do.
TRUE_REPORTS = {
    "address": "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010 at pc 0x1\n",
    "address-crash": "AddressSanitizer:DEADLYSIGNAL\n==7==ERROR: AddressSanitizer: SEGV on unknown address\n",
    "address-check": "==7==AddressSanitizer: CHECK failed: asan_allocator.cpp:190 \"((old)) == ((0x1))\"\n",
    "leak": "\n=====\n==7==ERROR: LeakSanitizer: detected memory leaks\n",
    "leak-sum": "SUMMARY: AddressSanitizer: 8 byte(s) leaked in 1 allocation(s).\n",
    "undefined": "base/a.c:3:5: runtime error: signed integer overflow: 2147483647 + 1\n",
    "thread": "==================\nWARNING: ThreadSanitizer: data race (pid=7)\n",
    "thread-fatal": "FATAL: ThreadSanitizer: unexpected memory mapping 0x1-0x2\n",
    "fuzzer": "==7== ERROR: libFuzzer: deadly signal\n",
    "address-without-symbols": "==7==WARNING: invalid path to external symbolizer!\n"
                               "==7==ERROR: AddressSanitizer: stack-buffer-overflow on address 0x1\n",
}
OTHER_TEXT = {
    "symbolizer": "==7==WARNING: invalid path to external symbolizer!\n"
                  "==7==WARNING: Failed to use and restart external symbolizer!\n",
    "empty": "",
    "on-purpose": "==7==ERROR: AddressSanitizer: SEGV\n    #1 0x1 in self_misbehave tests/mp/cases_self.c:9\n",
}


class Reports(unittest.TestCase):
    """scripts/lib/reports.py, which tells for scripts/test what of a sanitizer's output is a report."""

    def run_reports(self, files, *options):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                pathlib.Path(folder, name).write_text(text)
            run = subprocess.run([sys.executable, HERE / "../../scripts/lib/reports.py", *options, folder],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
            return run.returncode, run.stdout.split(), run.stderr

    def test_each_kind_of_report_counts(self):
        for name, text in TRUE_REPORTS.items():
            self.assertEqual(self.run_reports({name: text, **OTHER_TEXT})[:2], (1, [name]))

    def test_other_text_does_not_count_and_is_shown(self):
        code, names, shown = self.run_reports(OTHER_TEXT)
        self.assertEqual((code, names), (0, []))
        self.assertIn("--- symbolizer (not a report)", shown)
        self.assertNotIn("empty", shown)
        self.assertEqual(self.run_reports({}), (0, [], ""))

    def test_a_failed_program_may_leak_and_nothing_else(self):
        for name, text in TRUE_REPORTS.items():
            self.assertEqual(self.run_reports({name: text}, "--failed")[0], 0 if name == "leak" else 1)


class Reported(unittest.TestCase):
    """scripts/lib/reported.sh, meson's wrapper of each test program."""

    def run_program(self, program):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([HERE / "../../scripts/lib/reported.sh", "sh", "-c", program], stderr=subprocess.PIPE,
                                 env={**os.environ, "BANYAN_TEST_REPORTS": folder}, universal_newlines=True)
            self.assertEqual(os.listdir(folder), [])
            return run.returncode, run.stderr

    def test_a_report_fails_its_program(self):
        leave = "printf %s '{}' >\"${{ASAN_OPTIONS##*log_path=}}.7\"; exit {}".format
        self.assertEqual(self.run_program("exit 0"), (0, ""))
        self.assertEqual(self.run_program("exit 3"), (3, ""))
        self.assertEqual(self.run_program(leave(OTHER_TEXT["symbolizer"], 0))[0], 0)
        for text, code, expected in (TRUE_REPORTS["leak"], 0, 99), (TRUE_REPORTS["leak"], 1, 1), \
                (TRUE_REPORTS["address"], 0, 99), (TRUE_REPORTS["address"], 1, 99):
            status, said = self.run_program(leave(text, code))
            self.assertEqual(status, expected)
            self.assertIn(text.strip().splitlines()[-1], said)


if __name__ == "__main__":
    unittest.main()
