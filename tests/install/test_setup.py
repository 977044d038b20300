# SPDX-License-Identifier: BSD-3-Clause
"""meson setup with the build packages of scripts/lib/deps.sh alone, as after scripts/quickstart: tests are left out, which the summary
says. Also the setup of a wheel. Usage: test_setup.py ROOT"""
import ast
import json
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

    def test_a_wheel_has_the_package_alone(self):
        lines = (ROOT / "pyproject.toml").read_text().splitlines()
        options = next(ast.literal_eval(line.split("=", 1)[1].strip()) for line in lines if line.startswith("setup = ["))
        run = self.setup(*options)
        self.assertEqual(run.returncode, 0, run.stdout)
        plan = json.loads((self.folder / "build/meson-info/intro-install_plan.json").read_text())
        installed = {entry["destination"] for kind in plan.values() for entry in kind.values()}
        names = {path.name for path in (ROOT / "python/banyan").iterdir() if path.suffix in (".py", ".typed")}
        names |= {"lib/libbanyan.so.1", "lib/libbanyan-training.so.1", "lib/libbanyan-lightgbm.so.1", "bin/banyan_run"}
        self.assertEqual(installed, {"{py_platlib}/banyan/" + name for name in names})


unittest.main(verbosity=2)
