# SPDX-License-Identifier: BSD-3-Clause
"""The examples, as users run them: by torchrun, with nothing of ours imported."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

import common

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent.parent / "examples" / "torch"


def torchrun(*command, ranks=2):
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone",
                           f"--nproc-per-node={ranks}", *map(str, command)], env=env, capture_output=True,
                          text=True, timeout=common.PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("options", [(), ("--hook", "int8:force=1"), ("--hook", "*:>=4096=topk:delta=0.05,force=1")],
                         ids=["plain", "int8", "topk"])
def test_ddp(options):
    said = torchrun(EXAMPLES / "ddp.py", *options)
    assert float(re.search(r"accuracy ([\d.]+)", said)[1]) > .9, said


def test_fsdp_learns_as_ddp_does():
    spread, copied = (re.findall(r"loss ([\d.]+)", torchrun(EXAMPLES / "fsdp.py", "--steps", "30", *options))
                      for options in ((), ("--ddp",)))
    assert len(spread) == 3 and float(spread[-1]) < float(spread[0])
    assert all(abs(float(a) - float(b)) < 2e-3 for a, b in zip(spread, copied)), (spread, copied)
