# SPDX-License-Identifier: BSD-3-Clause
"""Each command of the documents for users runs: here, or where ELSEWHERE says. A command that stands in neither table fails.
Needs the installed programs on PATH and ./program, a program of several ranks. Usage: documents.py SOURCE"""
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(sys.argv[1])
FILES = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md")), SOURCE / "perf" / "README.md"]
STAND_INS = {"/shared/": "./", "/var/lib/node_exporter": "metrics", "mpirun -np 4": "banyan_run -n 2",
             "banyan_perf allreduce -P 9": "banyan_perf allreduce -P 9 -e 64K"}
HERE = (r"banyan_topo (show|verify|draw|compare|simulate|plan|predict).*", r"banyan_run -n \d+ banyan_topo .*", "banyan_doctor",
        r"banyan_perf allreduce -P 9 .*", r"BANYAN_(TOPO|METRICS|TRACE)=\S+ (banyan_run|mpirun) -np? \d+ \./program", r"banyan_trace merge .*",
        r"\(umask 077.*job\.secret\)")
ELSEWHERE = {
    "scripts/test, .ci/run": r"scripts/(quickstart|test).*|meson (setup|test).*|pip install \.|scripts/(deb|wheel).*|cc .*|.*\./prog|apt-get install .*",
    "tests/install/run.sh": r"python3 -m banyan\.run .*|export PATH=.*",
    "tests/perf/test_tools.py, test_elastic.py": r"build/examples/train_digits .*|banyan_run --(keep-going|restart).*|elastic_train .*|banyan_trace draw .*",
    "tests/python/test_recorder.py, test_status.py": r"BANYAN_DUMP=.*|pkill .*|banyan_trace report .*|banyan_status.*|BANYAN_METRICS=29800 .*",
    "tests/mp/test_run_hosts.py, test_launchers.py": r"banyan_run --hosts.*|banyan_run -np 8 --hostfile .*|mpirun -np 8 .*|srun .*|torchrun .*|export (WORLD_SIZE"
                                                     r"|BANYAN_SECRET_FILE)=.*|RANK=.*|wait",
    "tests/integrations/mpi": r".*LD_PRELOAD=.*|cmake .*|patchelf .*|export MPITRAMPOLINE_LIB.*|mpirun -n 2 python3 .*",
    "tests/compress, perf": r"banyan_codec.*|perf/\S+\.py.*|build/perf/forests_sim.*|build/tools/banyan_topo simulate .*",
    "scripts/test-frameworks": r"pip install --no-build-isolation .*",
    "tests/guest, tests/mp/test_dpdk.py; a card": r"ibv_devices|rdma link|export BANYAN_(TRANSPORT|DEBUG)=.*|scripts/softroce-guest .*|dpdk-devbind.*|modprobe .*"
                                                  r"|ip link .*|chown .*|ulimit .*|scripts/netns-cluster .*|banyan_perf allreduce -P 2 --transport dpdk",
}


def commands():
    for path in FILES:
        if path.name == "tutorial.md":  # doc_commands.py
            continue
        for block in re.findall(r"^ *```sh\n(.*?)^ *```$", path.read_text(encoding="utf-8"), re.M | re.S):
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                line = re.sub(r"(^|\s+)#\s.*", "", line).strip()
                if line:
                    yield path.relative_to(SOURCE), line


def main():
    pathlib.Path("profile.json").write_bytes((SOURCE / "tests/fuzz/seeds/profile/codecs.json").read_bytes())
    pathlib.Path("cluster.txt").write_text("@rank " + " ".join(f"r{i}" for i in range(8)) + "\n" +
                                           "".join(f"r{i} r{(i + 1) % 8} 1\n" for i in range(8)), encoding="ascii")
    ran, failed, unused = 0, [], dict(ELSEWHERE)
    for path, line in commands():
        elsewhere = [where for where, what in ELSEWHERE.items() if re.fullmatch(what, line)]
        for where in elsewhere:
            unused.pop(where, None)
        if not any(re.fullmatch(what, line) for what in HERE):
            if not elsewhere:
                failed.append(f"{path}: no test runs: {line}")
            continue
        for shown, meant in STAND_INS.items():
            line = line.replace(shown, meant)
        done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
        ran += 1
        if done.returncode:
            failed.append(f"{path}: exit status {done.returncode}: {line}\n{done.stdout}")
    failed += [f"no document has what {where} is to run" for where in unused]
    print("\n".join(failed) or f"{ran} commands of the documents ran")
    return bool(failed)


sys.exit(main())
