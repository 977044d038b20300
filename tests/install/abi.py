# SPDX-License-Identifier: BSD-3-Clause
"""scripts/abi-check --compare tells what may change in the binary interface from what may not: the public header, or a
small library's, is changed in one place each. Usage: abi.py ROOT"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop()).resolve()
HEADER = (ROOT / "include/banyan/banyan.h").read_text(encoding="utf-8")
SONAME = "libbanyan.so.1"
USER = """#include <banyan/banyan.h>
int banyan_comm_init_env(struct banyan_comm **out, const struct banyan_config *cfg) { (void)out; (void)cfg; return 0; }
int banyan_id_create(struct banyan_id *out) { (void)out; return 0; }
int banyan_comm_stats(struct banyan_comm *comm, struct banyan_stats *out) { (void)comm; (void)out; return 0; }
int banyan_barrier(struct banyan_comm *comm, const struct banyan_opts *opts) { (void)comm; (void)opts; return 0; }
size_t banyan_dtype_bytes(enum banyan_dtype dtype) { (void)dtype; return 0; }
"""


class Changes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def library(self, name, header, source, soname=SONAME):
        """Builds a library of that header; returns it and its folder of headers."""
        include = pathlib.Path(self.folder, name)
        (include / "banyan").mkdir(parents=True)
        (include / "banyan/banyan.h").write_text(header)
        library = f"{include}.so"
        subprocess.run(["cc", "-g", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-I", include, "-x", "c", "-",
                        "-o", library], input=source, check=True, universal_newlines=True)
        return library, include

    def expect(self, status, edits=(), source=USER, soname=SONAME):
        """Compares the header with one in which each (pattern, replacement) was made."""
        header = HEADER
        for pattern, replacement in edits:
            header, count = re.subn(pattern, replacement, header, count=1, flags=re.S)
            self.assertEqual(count, 1, pattern)
        run = subprocess.run([ROOT / "scripts/abi-check", "--compare", *self.library("old", HEADER, USER),
                              *self.library("new", header, source, soname)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, universal_newlines=True)
        self.assertEqual(run.returncode, status, run.stdout)

    def test_nothing_changed(self):
        self.expect(0)

    def test_function_added(self):
        self.expect(0, source=USER + "int banyan_new(void); int banyan_new(void) { return 0; }\n")

    def test_member_added_at_the_end(self):
        for name in "opts", "stats", "config":
            with self.subTest(name):
                self.setUp()
                self.expect(0, [(r"(struct banyan_%s \{.*?)\n\};" % name, r"\1\n    uint64_t more;\n};")])

    def test_data_type_added_at_the_end(self):
        self.expect(0, [(r"(BANYAN_F8E5M2)\n", r"\1, BANYAN_U128\n")])

    def test_function_removed(self):
        self.expect(1, source=re.sub(r".*banyan_barrier.*\n", "", USER))

    def test_parameter_changed(self):
        self.expect(1, [(r"(size_t banyan_dtype_bytes\()enum banyan_dtype", r"\1long")],
                    source=USER.replace("banyan_dtype_bytes(enum banyan_dtype", "banyan_dtype_bytes(long"))

    def test_member_added_in_the_middle(self):
        self.expect(1, [(r"(struct banyan_opts \{\s*size_t size;)", r"\1 int more, still_more;")])

    def test_member_changed(self):
        self.expect(1, [(r"(struct banyan_opts \{.*?)double timeout_s", r"\1int timeout_s")])

    def test_member_removed(self):
        self.expect(1, [(r"(struct banyan_stats \{.*?)uint64_t ops;", r"\1")])

    def test_member_renamed(self):
        self.expect(1, [(r"(struct banyan_opts \{.*?)int deterministic", r"\1int exact")])

    def test_struct_without_size_grows(self):
        self.expect(1, [(r"bytes\[128\]", "bytes[136]")])

    def test_anything_with_another_soname(self):
        self.expect(0, [(r"(struct banyan_stats \{.*?)uint64_t ops;", r"\1")], soname=SONAME + "0")

    def test_data_type_removed(self):
        self.expect(1, [(r"\n *BANYAN_F8E5M2\n", "\n")])

    def test_data_type_added_in_the_middle(self):
        self.expect(1, [(r"(BANYAN_F32),", r"\1, BANYAN_F8,")])


if __name__ == "__main__":
    if not (shutil.which("abidiff") and shutil.which("abidw")):
        print("abidiff is missing: install abigail-tools")
        sys.exit(77)
    unittest.main()
