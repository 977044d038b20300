# SPDX-License-Identifier: BSD-3-Clause
"""What banyan_topo show says of RDMA devices, on a machine of two NUMA nodes and five devices whose files are made up, and put in
place of the kernel's in a mount namespace. Usage: check_devices.py BANYAN_TOPO"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

topo = sys.argv[1]
failures = []


def expect(ok, what):
    if not ok:
        failures.append(what)


def machine(folder, devices):
    """devices: (name, NUMA node, state of port 1)"""
    nodes, classes = pathlib.Path(folder, "node"), pathlib.Path(folder, "class")
    for node, (distance, cpus) in enumerate([("10 21", "0-1,4"), ("21 10", "2-3,5-1023")]):
        (nodes / f"node{node}").mkdir(parents=True)
        (nodes / f"node{node}/distance").write_text(distance + "\n")
        (nodes / f"node{node}/cpulist").write_text(cpus + "\n")
    (nodes / "online").write_text("0-1\n")
    classes.mkdir()
    for name, node, state in devices:
        (classes / f"infiniband/{name}/device").mkdir(parents=True)
        (classes / f"infiniband/{name}/device/numa_node").write_text(f"{node}\n")
        (classes / f"infiniband/{name}/ports/1").mkdir(parents=True)
        (classes / f"infiniband/{name}/ports/1/state").write_text(state + "\n")


def show(devices, *args):
    with tempfile.TemporaryDirectory() as folder:
        machine(folder, devices)
        script = f"mount --bind {folder}/node /sys/devices/system/node && mount --bind {folder}/class /sys/class && exec \"$@\""
        out = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", topo, "show", *args], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "HWLOC_SYNTHETIC": "package:2 core:2 pu:1", "BANYAN_TUNE": "0"})
    expect(out.returncode == 0, f"show: {out.returncode} {out.stderr}")
    return out.stdout


if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
    print("mount namespaces need root, or user namespaces")
    sys.exit(77)

FIVE = [("mlx5_0", 0, "4: ACTIVE"), ("mlx5_1", 0, "4: ACTIVE"), ("mlx5_2", 1, "4: ACTIVE"), ("mlx5_3", 1, "1: DOWN"), ("irdma0", -1, "4: ACTIVE")]
text = show(FIVE)
for line in ("verbs: ranks on NUMA node 0 take mlx5_0:1 mlx5_1:1 by turns (one of the 2 nearest of 4, its turn; NUMA node 0, as the rank)",
             "verbs: ranks on NUMA node 1 take mlx5_2:1 (nearest of 4; NUMA node 1, as the rank)"):
    expect(text.count(line + "\n") == 1, f"{line}\nis not in\n{text}")
verbs = json.loads(show(FIVE, "--json"))["verbs"]
expect(verbs == [{"numa": 0, "distance": 10, "take": [{"device": "mlx5_0", "port": 1}, {"device": "mlx5_1", "port": 1}]},
                 {"numa": 1, "distance": 10, "take": [{"device": "mlx5_2", "port": 1}]}], f"{verbs}")
far = show(FIVE[2:3])
expect("NUMA node 0 take mlx5_2:1 (the only one; NUMA node 1, at distance 21)\n" in far and "at distance" not in far.split("NUMA node 1 take")[1], far)
expect("verbs: no RDMA device has a port that is up\n" in show(FIVE[3:4]), "a port that is down")
expect(json.loads(show([], "--json"))["verbs"] == [], "no device")
print("\n".join(failures) or "devices are shown")
sys.exit(1 if failures else 0)
