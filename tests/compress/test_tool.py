#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""banyan_codec: rows, their fields and sense, and refusals. No time is asserted."""
import json
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)
FIELDS = {"codec", "kernel", "isa", "where", "GBps", "memcpy_GBps", "times_memcpy", "compression_ratio", "rel_err"}


def run(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=100)


class Tool(unittest.TestCase):
    def test_rows(self):
        done = run("--json", "--where", "cache", "--elements", "4096", "--reps", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        for row in rows:
            self.assertEqual(set(row), FIELDS)
            self.assertGreater(row["GBps"], 0)
        for kernel in ("encode", "encode_ef", "decode", "decode_add", "owner"):
            found = [r for r in rows if r["codec"] == "int8" and r["kernel"] == kernel]
            self.assertTrue(found, kernel)
            self.assertIn("scalar", {r["isa"] for r in found})
            for row in found: # 4096 bytes and 16 scales
                self.assertAlmostEqual(row["compression_ratio"], 4 * 4096 / (4096 + 64), places=2)
                self.assertTrue(0.002 < row["rel_err"] < 0.02, row)
                # Every instruction set gives the same bits.
                self.assertEqual(row["rel_err"], found[0]["rel_err"])

    def test_families(self):
        """Sparse codecs are measured with what they know of a tensor, exact ones also on bf16 and on zeros."""
        wanted = {"topk": {"encode", "encode_ef", "decode", "decode_add"}, "dgc": {"encode_ef"}, "lossless":
                  {"encode", "decode", "encode_bf16", "decode_bf16", "encode_zeros", "decode_zeros"},
                  "blocksparse": {"encode_zeros"}, "powersgd": {"operation", "operation_ef"}}
        for codec, kernels in wanted.items():
            done = run("--json", "--where", "cache", "--elements", "40000", "--reps", "1", "--codec", codec)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            self.assertLessEqual(kernels, {r["kernel"] for r in rows}, codec)
            for row in rows:
                self.assertGreater(row["compression_ratio"], 1, row)
                if codec == "topk" and row["kernel"] == "encode":
                    self.assertGreater(row["compression_ratio"], 30, row)

    def test_one_codec_with_parameters(self):
        done = run("--json", "--where", "cache", "--elements", "4096", "--reps", "1", "--codec", "int8:block=64",
                   "--kernel", "encode")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual({r["codec"] for r in rows}, {"int8:block=64"})
        self.assertEqual({r["kernel"] for r in rows}, {"encode", "encode_ef"})

    def test_list_says_which_are_recommended(self):
        done = run("--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        marks = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
        self.assertEqual(set(marks.values()), {"recommended", "research"})
        self.assertEqual((marks["int8"], marks["topk"], marks["eden"]), ("recommended", "recommended", "research"))

    def test_unknown_codec_lists_what_exists(self):
        done = run("--codec", "nonsense")
        self.assertEqual(done.returncode, 2)
        self.assertIn("int8", done.stderr)

    def test_wrong_options_are_named(self):
        """Nothing is measured, and the sentence has the option and what it wants."""
        for args, words in ((["--nonsense"], "--help"), (["extra"], "extra"), (["--isa", "nosuch"], "--isa nosuch"),
                            (["--where", "disk"], "cache or dram"), (["--elements", "0"], "--elements wants 1 to"),
                            (["--elements", "1x"], "1x"), (["--reps", "x"], "--reps wants 1 to"), (["--reps"], "--help"),
                            (["--codec", "int8:block=7"], "--codec int8: block=7")):
            done = run(*args)
            self.assertEqual((done.returncode, done.stdout), (2, ""), args)
            self.assertIn(words, done.stderr)

    def test_a_kernel_that_does_not_exist(self):
        done = run("--where", "cache", "--elements", "64", "--reps", "1", "--kernel", "nosuch")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--kernel nosuch", done.stderr)

    def test_help_and_version(self):
        for option, words in (("--help", "--kernel"), ("-h", "int8"), ("-V", "banyan_codec 0."), ("--version", "0.")):
            done = run(option)
            self.assertEqual((done.returncode, done.stderr), (0, ""), option)
            self.assertIn(words, done.stdout)


if __name__ == "__main__":
    unittest.main()
