# SPDX-License-Identifier: BSD-3-Clause
"""Builds the extension against the torch that is installed, and the libbanyan that it finds:
BANYAN_PREFIX (an installed or a build folder), the wheel "libbanyan", or pkg-config."""
import importlib.util
import os
import pathlib
import subprocess

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = pathlib.Path(__file__).resolve().parent
TREE = str(HERE.parent.parent / "include")  # of a build folder
NAMES = "banyan-training", "banyan"


def pkg_config(*options):
    env = dict(os.environ)
    prefix = env.get("BANYAN_PREFIX")
    if prefix:
        folders = [os.path.join(prefix, sub) for sub in ("lib/pkgconfig", "meson-uninstalled")]
        found = subprocess.run(["find", prefix, "-name", "banyan*.pc", "-printf", "%h\n"], check=False,
                               capture_output=True, text=True).stdout.split()
        env["PKG_CONFIG_PATH"] = ":".join(folders + found)
    done = subprocess.run(["pkg-config", *options, "banyan-training"], env=env, check=True, capture_output=True,
                          text=True)
    return done.stdout.split()


def libraries():
    """Include folders, the files to link, and where they are looked for at run time."""
    wheel = importlib.util.find_spec("banyan")
    lib = pathlib.Path(wheel.origin).parent / "lib" if wheel and wheel.origin else None
    if not os.environ.get("BANYAN_PREFIX") and lib and list(lib.glob("libbanyan.so.*")):
        files = [str(sorted(lib.glob(f"lib{name}.so.*"))[0]) for name in NAMES]
        return [str(lib.parent / "include"), TREE], files, ["$ORIGIN/../banyan/lib"]
    includes = [o[2:] for o in pkg_config("--cflags-only-I")] + [TREE]
    # pkg-config leaves out -L of the system's folders; a build folder's libdir does not exist.
    libdirs = [pathlib.Path(o[2:]) for o in pkg_config("--libs-only-L")]
    libdirs += map(pathlib.Path, pkg_config("--variable=libdir"))
    libdirs += [folder for d in libdirs for folder in (d.parent, d.parent / "training")]
    found = [next((d for d in libdirs if (d / f"lib{name}.so").exists()), None) for name in NAMES]
    if None in found:
        raise SystemExit(f"setup.py: lib{NAMES[found.index(None)]}.so was not found in " + ", ".join(map(str, libdirs)))
    return includes, [str(d / f"lib{name}.so") for d, name in zip(found, NAMES)], sorted({str(d) for d in found})


include_dirs, to_link, run_paths = libraries()
setup(
    ext_modules=[CppExtension(
        "banyan_torch._C",
        sorted(str(p.relative_to(HERE)) for p in (HERE / "csrc").glob("*.cpp")),
        include_dirs=include_dirs,
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter",
                            "-fvisibility=hidden"],
        extra_link_args=to_link + [f"-Wl,-rpath,{path}" for path in run_paths],
    )],
    cmdclass={"build_ext": BuildExtension},
)
