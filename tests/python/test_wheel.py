# SPDX-License-Identifier: BSD-3-Clause
"""The package in the layout of a wheel, made of the build tree: package, library and launcher in one folder, with nothing
installed. Usage: test_wheel.py ROOT LIBRARY BANYAN_RUN"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, LIBRARY, BANYAN_RUN = map(pathlib.Path, sys.argv[1:4])


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.site = pathlib.Path(folder.name)
        package = self.site / "banyan"
        shutil.copytree(ROOT / "python/banyan", package, ignore=shutil.ignore_patterns("__pycache__"))
        for source, target in (LIBRARY, "lib/libbanyan.so.1"), (BANYAN_RUN, "bin/banyan_run"):
            (package / target).parent.mkdir()
            shutil.copy(source, package / target)

    def run_launcher(self, *args):
        env = {**os.environ, "PYTHONPATH": str(self.site)}
        env.pop("BANYAN_LIBRARY", None)
        return subprocess.run([sys.executable, "-m", "banyan.run", *args], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)

    def test_two_ranks(self):
        run = self.run_launcher("-n", "2", sys.executable, str(ROOT / "tests/python/wheel.py"))
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_the_exit_status_is_the_launchers(self):
        run = self.run_launcher("-n", "1", "sh", "-c", "exit 3")
        self.assertEqual(run.returncode, 3, run.stdout)

    def test_the_chosen_library_comes_first(self):
        env = {**os.environ, "PYTHONPATH": str(self.site), "BANYAN_LIBRARY": "/nowhere/libbanyan.so.1"}
        run = subprocess.run([sys.executable, "-c", "import banyan"], env=env, stderr=subprocess.PIPE, text=True)
        self.assertEqual(run.returncode, 1)
        self.assertIn("/nowhere/libbanyan.so.1", run.stderr)


unittest.main(argv=sys.argv[:1], verbosity=2)
