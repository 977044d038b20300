# SPDX-License-Identifier: BSD-3-Clause
"""scripts/lib/deps.sh installs packages, also where a fetch fails once; with an apt-get and a dpkg that only pretend.
Usage: test_deps.py ROOT"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop()).resolve()
# $WORLD/installed has a line for each package; each call of what changes something adds one to $WORLD/calls.
# $WORLD/failures: how many installations are yet to fail, after the first package of each was unpacked.
TOOLS = {
    "dpkg-query": 'for name; do :; done; grep -qx -- "$name" "$WORLD/installed" && echo "install ok installed"',
    "sudo": 'exec "$@"',
    "dpkg": 'echo "dpkg $*" >>"$WORLD/calls"',
    "apt-get": r'''
words=() previous=
for word; do
    [[ $word == -?* && $word != -f || $previous == -o ]] || words+=("$word")
    previous=$word
done
echo "apt-get ${words[*]}" >>"$WORLD/calls"
case ${words[0]} in
    update | -f) exit 0 ;;
esac
left=$(cat "$WORLD/failures")
if [ "$left" != 0 ]; then
    echo $((left - 1)) >"$WORLD/failures"
    cat "$WORLD/says" >&2
    exit 100
fi
printf '%s\n' "${words[@]:1}" >>"$WORLD/installed"
'''}
FETCH = """E: Failed to fetch http://deb.debian.org/debian/pool/main/libf/libfabric/libfabric1_1.17.0-3_amd64.deb  502  Bad Gateway [IP: 10.0.0.1 80]
E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?
"""
BROKEN = """dpkg: error processing package openmpi-bin (--configure):
 installed openmpi-bin package post-installation script subprocess returned error exit status 1
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""


class Deps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.world = pathlib.Path(folder.name)
        for name, text in TOOLS.items():
            tool = self.world / "bin" / name
            tool.parent.mkdir(exist_ok=True)
            tool.write_text("#!/bin/bash\n" + text + "\n")
            tool.chmod(0o755)

    def install(self, failures, says="", installed=()):
        """install_packages gcc meson ninja-build: its status, what it printed, and the calls that it made."""
        (self.world / "failures").write_text(f"{failures}\n")
        (self.world / "says").write_text(says)
        (self.world / "installed").write_text("".join(f"{name}\n" for name in installed))
        (self.world / "calls").write_text("")
        env = {k: v for k, v in os.environ.items() if k != "SKIP_DEPS"}
        run = subprocess.run(["bash", "-c", '. "$0"; install_packages gcc meson ninja-build', ROOT / "scripts/lib/deps.sh"],
                             env={**env, "WORLD": str(self.world), "PATH": f"{self.world}/bin:{env['PATH']}"},
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return run.returncode, run.stdout, (self.world / "calls").read_text().splitlines()

    def test_nothing_to_do(self):
        self.assertEqual(self.install(0, installed=["gcc", "meson", "ninja-build"]), (0, "", []))

    def test_what_is_missing_is_installed(self):
        status, out, calls = self.install(0, installed=["meson"])
        self.assertEqual(status, 0, out)
        self.assertEqual(calls, ["apt-get update", "apt-get install gcc ninja-build"])

    def test_one_failed_fetch(self):
        for says in FETCH, BROKEN:
            status, out, calls = self.install(1, says)
            self.assertEqual(status, 0, out)
            install = ["apt-get update", "apt-get install gcc meson ninja-build"]
            self.assertEqual(calls, [*install, "dpkg --configure -a", "apt-get -f install", *install])

    def test_who_fails_twice_is_named(self):
        for says, name in (FETCH, "libfabric1"), (BROKEN, "openmpi-bin"), \
                ("E: Unable to locate package ninja-build\n", "ninja-build"):
            status, out, calls = self.install(2, says)
            self.assertEqual(status, 1)
            self.assertEqual(len(calls), 6, calls)
            self.assertIn(says, out)
            self.assertIn(f"\napt-get failed twice, at: {name}. Still missing: gcc meson ninja-build.\n", out)


unittest.main(verbosity=2)
