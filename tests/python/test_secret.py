# SPDX-License-Identifier: BSD-3-Clause
"""A rank's first from_env() takes the job's secret out of os.environ too, later ones know it, and a rank that replaces itself by
exec keeps it. Every rank of `banyan_run -n N` runs this."""
import os
import subprocess
import sys

import banyan
import numpy


def works():
    with banyan.Comm.from_env(init_timeout_s=20) as comm:
        assert comm.size > 1 and comm.allreduce(numpy.ones(1, "int32"))[0] == comm.size


def said(*command):
    """By a program that this rank starts."""
    return subprocess.run(command, env=os.environ.copy(), capture_output=True, text=True, timeout=60).stdout.strip()


def main():
    ident = os.environ["BANYAN_ID"]
    assert said("printenv", "BANYAN_ID") == ident
    for _ in range(2):
        works()
        assert os.environ["BANYAN_ID"] == ""
        assert said("printenv", "BANYAN_ID") == ""
    why = said(sys.executable, __file__, "joins")
    assert "BANYAN_ID is empty" in why and "pass it to exec" in why, why
    os.environ["BANYAN_ID"] = ident
    works()
    assert os.environ["BANYAN_ID"] == ident  # what the program has set is its own
    os.execv(sys.executable, [sys.executable, __file__, "replaced"])


if len(sys.argv) == 1:
    main()
elif sys.argv[1] == "replaced":
    works()
    assert os.environ["BANYAN_ID"] == ""
elif sys.argv[1] == "joins":
    try:
        banyan.Comm.from_env(init_timeout_s=20)
    except banyan.Error as why:
        print(why)
