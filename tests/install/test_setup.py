# SPDX-License-Identifier: BSD-3-Clause
"""meson setup with the build packages of scripts/lib/deps.sh alone, as after scripts/quickstart: tests are left out, which the summary
says. Usage: test_setup.py ROOT"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop()).resolve()
# What pkg-config finds of the test packages.
TESTS_ALONE = ("criterion", "pmix", "mpich", "ompi", "mpi", "orte", "valgrind")


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        found = self.folder / "pkgconfig"
        found.mkdir()
        path = subprocess.run(["pkg-config", "--variable", "pc_path", "pkg-config"], stdout=subprocess.PIPE, text=True, check=True)
        for pc in (pc for place in path.stdout.strip().split(":") for pc in pathlib.Path(place).glob("*.pc")):
            link = found / pc.name
            if not pc.name.startswith(TESTS_ALONE) and not link.exists():
                link.symlink_to(pc.resolve())

    def setup(self, *options):
        env = {**os.environ, "PKG_CONFIG_LIBDIR": str(self.folder / "pkgconfig")}
        env.pop("PKG_CONFIG_PATH", None)
        return subprocess.run(["meson", "setup", self.folder / "build", ROOT, *options], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)

    def test_tests_are_left_out(self):
        run = self.setup()
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertRegex(run.stdout, "\n +tests *: NO - .*libcriterion-dev.*scripts/test\n")

    def test_tests_are_insisted_on(self):
        run = self.setup("-Dtests=enabled")
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn('Dependency "criterion" not found', run.stdout)


unittest.main(verbosity=2)
