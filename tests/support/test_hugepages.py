# SPDX-License-Identifier: BSD-3-Clause
"""scripts/hugepages on a made-up /sys: shows, reserves, releases, and says what is wrong. Usage: test_hugepages.py SCRIPT"""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = sys.argv[1]


class Hugepages(unittest.TestCase):
    def setUp(self):
        self.sys = tempfile.TemporaryDirectory()
        self.pages = os.path.join(self.sys.name, "kernel/mm/hugepages/hugepages-2048kB")
        os.makedirs(self.pages)
        for name, text in (("nr_hugepages", "8\n"), ("free_hugepages", "5\n")):
            with open(os.path.join(self.pages, name), "w") as f:
                f.write(text)

    def tearDown(self):
        self.sys.cleanup()

    def run_script(self, *args):
        return subprocess.run([SCRIPT, *args], capture_output=True, text=True, env={**os.environ, "HUGEPAGES_SYS": self.sys.name})

    def reserved(self):
        with open(os.path.join(self.pages, "nr_hugepages")) as f:
            return f.read().strip()

    def test_help(self):
        p = self.run_script("--help")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertIn("reserve N [SIZE]", p.stdout)

    def test_shows(self):
        p = self.run_script()
        self.assertEqual((p.returncode, p.stdout.strip()), (0, "pages of 2048kB: 8 reserved, 5 free"))

    def test_reserves_and_releases(self):
        self.assertEqual(self.run_script("reserve", "64").returncode, 0)
        self.assertEqual(self.reserved(), "64")
        self.assertEqual(self.run_script("release").returncode, 0)
        self.assertEqual(self.reserved(), "0")

    def test_wrong_arguments_change_nothing(self):
        for args in (["reserve"], ["reserve", "x"], ["reserve", "4", "1234"], ["release", "-1"], ["grow"], ["show", "all"]):
            p = self.run_script(*args)
            self.assertEqual(p.returncode, 2, args)
            self.assertTrue(p.stderr)
        self.assertEqual(self.reserved(), "8")

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_who_may_not_is_told_who_may(self):
        os.chmod(os.path.join(self.pages, "nr_hugepages"), 0o444)
        p = self.run_script("reserve", "4")
        self.assertEqual(p.returncode, 77)
        self.assertIn("As root: scripts/hugepages reserve 4", p.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
