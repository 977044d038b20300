#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# mpi4py's own tests of collectives, communicators, operations and requests under the interposer, from its source
# distribution, which pip fetches once and which is built once for each MPI, in FOLDER. Output: TAP.
# Usage: mpi4py_tests.sh openmpi|mpich LIBBANYAN_MPI FOLDER
set -uo pipefail
mpi=$1 library=$2 folder=$3
version=3.1.6
tree=$folder/mpi4py-$mpi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
options=()
[ "$mpi" = openmpi ] && options=(--oversubscribe --bind-to none --mca mpi_yield_when_idle 1)

fetch() {
    [ -f "$folder/mpi4py-$version.tar.gz" ] ||
        timeout 120 pip download -q "mpi4py==$version" --no-binary mpi4py --no-deps -d "$folder"
}

make_tree() {
    mkdir -p "$tree" &&
        tar xf "$folder/mpi4py-$version.tar.gz" -C "$tree" --strip 1 &&
        (cd "$tree" && CFLAGS="-O1 -g0" timeout 400 python3 setup.py -q build --mpicc="mpicc.$mpi") &&
        touch "$tree/built"
}

echo "TAP version 13"
echo "1..1"
log=$folder/mpi4py-$mpi.log
if [ ! -f "$tree/built" ] && ! fetch >"$log" 2>&1; then
    tail -n 5 "$log" | sed 's/^/# /'
    echo "ok 1 - mpi4py_2_ranks # SKIP mpi4py $version cannot be fetched: pip, and a way to PyPI, are missing"
    exit 0
fi
if [ ! -f "$tree/built" ] && ! make_tree >"$log" 2>&1; then
    tail -n 40 "$log" | sed 's/^/# /'
    echo "not ok 1 - mpi4py_2_ranks does not build (python3-dev?)"
    exit 1
fi
cd "$tree" || exit 1
if LD_PRELOAD=$library BANYAN_MPI=after=1,nonblocking=0 timeout -k 10 150 "mpirun.$mpi" "${options[@]}" -n 2 \
    python3 test/runtests.py -q -i test_cco -i test_comm -i test_request -i test_op >run.log 2>&1; then
    grep "^Ran" run.log | sed 's/^/# /'
    echo "ok 1 - mpi4py_2_ranks"
    exit 0
fi
tail -n 40 run.log | sed 's/^/# /'
echo "not ok 1 - mpi4py_2_ranks"
exit 1
