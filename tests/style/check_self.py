# SPDX-License-Identifier: BSD-3-Clause
"""The checks of this folder can fail: each is run on a small tree with one planted violation."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
SPDX = "/* SPDX-License-Identifier: BSD-3-Clause */\n"
REGISTRY = SPDX + """
const struct bny_codec_ops *const bny_codecs[] = { &bny_codec_none, &bny_codec_f16, NULL };
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
    def run_check(self, check, files, *args):
        """Exit status and output of a check on a tree of {path: text}."""
        with tempfile.TemporaryDirectory() as tree:
            for name, text in files.items():
                path = pathlib.Path(tree, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            run = subprocess.run([sys.executable, HERE / check, tree, *args],
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
        for include in '"transport/wire.h"', "<transport/wire.h>", '"collectives/program.h"', '"a.h"':
            self.expect("check_includes.py", {**clean, "compress/a.c": f"#include {include}\n"},
                        "compress/a.c: includes")
        self.expect("check_includes.py", {**clean, "examples/a.c": '#include "base/err.h"\n'},
                    "examples/a.c: includes")

    def test_registry_entry_without_a_row(self):
        files = {"compress/registry.c": REGISTRY, "compress/codecs.c": TABLES}
        self.expect("check_docs.py", files, "README.md does not exist")
        rows = "| name | file |\n|---|---|\n| `none` | - |\n"
        self.expect("check_docs.py", {**files, "compress/README.md": rows}, "no row for f16")
        rows += "| [`f16`](codec_f16.c) | - |\n"
        self.expect("check_docs.py", {**files, "compress/README.md": rows}, "documented", status=0)
        files["compress/codecs.c"] = SPDX
        self.expect("check_docs.py", {**files, "compress/README.md": rows}, "no table with a .name")

    def test_text(self):
        self.expect("check_text.py", {"base/a.c": SPDX + "int a;\n"}, "clean", status=0)
        machine = "/" + "work/main/base"
        for text, message in ((SPDX + "\tint a;\n", "a tab"), (SPDX + "int a; \n", "blanks"),
                              ("int a;\n", "no SPDX"), (SPDX + "int a;", "no end"),
                              (SPDX + f"/* {machine} */\n", "path of one machine"),
                              (SPDX + "/* x */\n" * 30000, "the limit is")):
            self.expect("check_text.py", {"base/a.c": text}, message)

    def test_symbols(self):
        header = "#define BANYAN_API\nBANYAN_API int banyan_a(void);\n" \
                 "BANYAN_API const char *banyan_b(int x);\n"
        source = "int banyan_a(void); int banyan_a(void) { return 0; }\n" \
                 "int banyan_b(int x); int banyan_b(int x) { return x; }\n"
        files = {"include/banyan/banyan.h": header}
        with tempfile.TemporaryDirectory() as out:
            def library(text):
                subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{out}/l.so"],
                               input=text, check=True, universal_newlines=True)
                return f"{out}/l.so"
            both = {**files, "tests/style/symbols.txt": "banyan_a\nbanyan_b\n"}
            self.expect("check_symbols.py", both, "2 symbols", 0, [library(source)])
            self.expect("check_symbols.py", {**files, "tests/style/symbols.txt": "banyan_a\n"},
                        "banyan_b: in banyan.h", 1, [library(source)])
            self.expect("check_symbols.py", both, "bny_c: in the library", 1,
                        [library(source + "int bny_c;\n")])
            self.expect("check_symbols.py", both, "banyan_b: in symbols.txt", 1,
                        [library(source.splitlines()[0])])


if __name__ == "__main__":
    unittest.main()
