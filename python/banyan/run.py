# SPDX-License-Identifier: BSD-3-Clause
"""banyan_run, which starts the ranks of a program on this machine: `python3 -m banyan.run -n 4 python3 program.py`.
`python3 -m banyan.run --help` lists its options."""
import os
import pathlib
import shutil
import sys

__all__ = ["main", "path"]


def path():
    """The launcher's path: the wheel's own, that of the prefix, or the one on PATH."""
    here = pathlib.Path(__file__).resolve()
    found = [folder / "bin" / "banyan_run" for folder in here.parents]
    found = [str(name) for name in found if os.access(name, os.X_OK)] + [shutil.which("banyan_run")]
    if not found[0]:
        raise FileNotFoundError("there is no banyan_run in this Python's prefix, nor on PATH: install banyan, "
                                "or add the folder of its banyan_run to PATH")
    return found[0]


def main():
    """Becomes banyan_run, with this process's arguments."""
    name = path()
    os.execv(name, [name] + sys.argv[1:])


if __name__ == "__main__":
    main()
