# SPDX-License-Identifier: BSD-3-Clause
"""A rank that uses the package as a wheel brings it: with the package's own library, and the libraries that it loads on first
use where they lie beside it. Needs no other package."""
import array
import os
import pathlib
import subprocess
import tempfile

import banyan
import banyan.run

LIB = pathlib.Path(banyan.__file__).resolve().parent / "lib"
TOPOLOGIES = {
    "libcjson.so.1": """{"nodes": [{"id": "a"}, {"id": "b"}], "links": [{"src": "a", "dst": "b", "cap": 1, "dir": "both"}]}""",
    "libexpat.so.1": """<system version="1"><cpu host_hash="0x1" numaid="0" arch="x86_64">
        <pci busid="0000:41:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" rank="0"/></pci>
        <pci busid="0000:42:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="1" rank="1"/></pci>
        </cpu></system>""",
}


def check_origin(name, places):
    """Asserts that the library was loaded from the wheel, if that brings it."""
    found = [os.path.realpath(place) for place in places if os.path.basename(place).startswith(name.split(".")[0] + ".so")]
    assert found, f"{name} was not loaded"
    if (LIB / name).exists():
        assert found == [str(LIB / name)], f"{name} comes from {found}"


def mapped():
    return sorted({line.split()[-1] for line in open("/proc/self/maps") if "/" in line})


def launcher_loads():
    """The libraries that banyan_run loads where it looks at the machine."""
    run = subprocess.run([banyan.run.path(), "--report-bindings", "-n", "1", "true"], env={**os.environ, "LD_DEBUG": "files"},
                         stderr=subprocess.PIPE, text=True, check=True)
    assert "rank 0: " in run.stderr, run.stderr
    return [line.split("calling init: ")[1] for line in run.stderr.splitlines() if "calling init: " in line]


with banyan.Comm.from_env() as comm:
    x = array.array("d", [comm.rank + 1])
    comm.allreduce(x)
    assert comm.size == 2 and x[0] == 3, (comm.size, x)
check_origin("libbanyan.so.1", mapped())
for name, text in TOPOLOGIES.items():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        with banyan.Comm.from_env(topology=file.name) as comm:
            comm.barrier()
    check_origin(name, mapped())
if comm.rank == 0:
    check_origin("libhwloc.so.15", launcher_loads())
