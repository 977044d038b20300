# SPDX-License-Identifier: BSD-3-Clause
"""The examples, as users run them: by torchrun, with nothing of ours imported."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import common

TOP = pathlib.Path(__file__).resolve().parent.parent.parent.parent
EXAMPLES = TOP / "examples" / "torch"


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


def test_training_between_namespaces(tmp_path):
    """perf/torch_train.py, small: gloo and a codec on a slow link, with a picture."""
    if subprocess.run([TOP / "scripts" / "netns-cluster", "--probe"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces here")
    out = tmp_path / "out.json"
    done = subprocess.run([sys.executable, TOP / "perf" / "torch_train.py", "--rates", "50", "--seconds", "1", "--every", "2",
                           "--width", "64", "--layers", "2", "--methods", "gloo;banyan, int8", "--json", out, "--svg",
                           tmp_path / "train"], capture_output=True, text=True, timeout=common.PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {r["name"] for r in rows} == {"gloo", "banyan, int8"} and all(r["seconds"] > 0 and r["loss"] > 1 for r in rows), rows
    assert "x gloo" in done.stdout and "<svg" in (tmp_path / "train_50mbit.svg").read_text(encoding="utf-8")
