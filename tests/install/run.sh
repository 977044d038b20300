#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs a build into an empty folder, then builds and runs a program against the installed tree: by pkg-config
# shared and static, and by CMake shared and static; each as one rank alone and as two ranks. Also the Python module.
# Usage: run.sh BUILD_DIR
set -euo pipefail # so no `grep -q` behind a pipe: it would end the writer by SIGPIPE
build=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
source=$(realpath "$here/../..")
work=$(mktemp -d "${TMPDIR:-/tmp}/banyan-install.XXXXXX")
trap 'rm -rf "$work"' EXIT
say() { printf '%s\n' "--- $*"; }

say "install"
meson install -C "$build" --no-rebuild --destdir "$work/dest" >"$work/install.log" 2>&1 ||
    { cat "$work/install.log" >&2; exit 1; }
# Nothing refers to the prefix: the tree works where it now lies.
prefix=$work/dest$(meson introspect "$build" --buildoptions |
    python3 -c 'import json, sys; print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == "prefix"))')
pc=$(find "$prefix" -name banyan.pc)
libdir=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH=${pc%/*}
cp "$here/app.c" "$here/train.c" "$work"
cp "$source/examples/allreduce.c" "$work/allreduce.c"
cd "$work"

headers=$(cd "$prefix/include" && find . -name '*.h' | sort)
[ "$headers" = $'./banyan/banyan.h\n./banyan/extend.h\n./banyan/methods.h\n./banyan/objects.h\n./banyan/training.h' ] || { echo "installed headers are: $headers" >&2; exit 1; }
for name in banyan banyan-training banyan-methods; do
    [ "$(objdump -p "$libdir/lib$name.so" | awk '$1 == "SONAME" { print $2 }')" = "lib$name.so.1" ]
done

# Runs a program as one rank alone, then as two.
run_ranks() {
    timeout 60 "$@"
    timeout 60 "$prefix/bin/banyan_run" -n 2 "$@"
}

say "pkg-config, shared"
${CC:-cc} app.c -o app-shared $(pkg-config --cflags --libs banyan)
export LD_LIBRARY_PATH=$libdir
ldd app-shared | grep 'libbanyan.so.1 => '"$libdir" >grep.log || { ldd app-shared >&2; exit 1; }
run_ranks ./app-shared
${CC:-cc} allreduce.c -o allreduce $(pkg-config --cflags --libs banyan)
run_ranks ./allreduce
${CC:-cc} train.c -o train-shared $(pkg-config --cflags --libs banyan-training banyan-methods)
run_ranks ./train-shared

for program in "$prefix"/bin/*; do
    name=${program##*/}
    [ -e "$prefix/share/bash-completion/completions/$name" ] || { echo "$name has no completion" >&2; exit 1; }
    ! command -v help2man >which.log || [ -s "$prefix/share/man/man1/$name.1" ] || { echo "$name has no manual page" >&2; exit 1; }
done
say "completion"
PATH=$prefix/bin:$PATH bash -euc '. "$1"; COMP_CWORD=1
    _banyan banyan_run --host; [[ " ${COMPREPLY[*]} " == *" --hostfile "* ]]
    _banyan banyan_perf allg; [ "${COMPREPLY[*]}" = allgather ]
    _banyan banyan_topo pl; [ "${COMPREPLY[*]}" = plan ]
    _banyan banyan_trace me; [ "${COMPREPLY[*]}" = merge ]' - "$prefix/share/bash-completion/completions/banyan_run"

modules=$(find "$prefix" -name 'libbanyan-mpi-*.so' -o -name libbanyan-dpdk.so -o -name libbanyan-lgc.so)
for module in $modules; do
    [ "${module%/*}" = "$libdir/banyan" ] || { echo "$module is not in $libdir/banyan" >&2; exit 1; }
done
if [ -e "$libdir/banyan/libbanyan-dpdk.so" ]; then
    say "modules are found" # where DPDK has nothing to run on, as long as it is DPDK that says so
    for program in ./app-shared "$prefix/bin/banyan_perf allreduce -e 4"; do
        BANYAN_TRANSPORT=dpdk BANYAN_DPDK_PORT=0000:ff:1f.7 timeout 60 "$prefix/bin/banyan_run" -n 2 $program >module.log 2>&1 || true
        grep DPDK module.log >grep.log && ! grep "libbanyan-dpdk.so" module.log >grep.log ||
            { cat module.log >&2; exit 1; }
    done
fi

unset LD_LIBRARY_PATH
say "pkg-config, static"
# glibc warns that getaddrinfo and dlopen of a static program want the same glibc at run time.
${CC:-cc} app.c -static -o app-static $(pkg-config --static --cflags --libs banyan) 2>static.log ||
    { cat static.log >&2; exit 1; }
if readelf -d app-static | grep NEEDED; then
    echo "app-static is not static" >&2
    exit 1
fi
run_ranks ./app-static
${CC:-cc} train.c -static -o train-static $(pkg-config --static --cflags --libs banyan-training banyan-methods) 2>static.log ||
    { cat static.log >&2; exit 1; }
run_ranks ./train-static

say "CMake"
cmake -G Ninja -S "$here" -B cmake -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release >cmake.log 2>&1 &&
    cmake --build cmake >>cmake.log 2>&1 || { cat cmake.log >&2; exit 1; }
run_ranks cmake/app_shared
run_ranks cmake/app_static
run_ranks cmake/train
run_ranks cmake/train_static
for program in app_static train_static; do
    if readelf -d "cmake/$program" | grep 'NEEDED.*banyan'; then
        echo "$program needs a shared library" >&2
        exit 1
    fi
done

say "Python"
module=$(dirname "$(find "$prefix" -path '*/banyan/__init__.py')")
export PYTHONPATH=${module%/*} PYTHONDONTWRITEBYTECODE=1
cat >app.py <<'END'
import array
import banyan

assert banyan.__file__.startswith("dest/") or "/dest/" in banyan.__file__, banyan.__file__
with banyan.Comm.from_env() as comm:
    x = array.array("d", [comm.rank + 1])
    comm.allreduce(x)
    assert x[0] == comm.size * (comm.size + 1) / 2, x
    print(f"rank {comm.rank} of {comm.size}: banyan {banyan.version()}, sum {x[0]}")
END
run_ranks python3 app.py

say "the tutorial"
mkdir tutorial
if /usr/bin/python3 -c 'import numpy' 2>numpy.log; then # the system's, to which the packages of the tests give numpy
    ln -s /usr/bin/python3 tutorial/python3
    (cd tutorial && PATH=$PWD:$prefix/bin:$PATH /usr/bin/python3 "$here/doc_commands.py" "$source/docs/tutorial.md") >tutorial.log 2>&1 ||
        { cat tutorial.log >&2; exit 1; }
    grep "has not called operation 0, allreduce of 3 f64, which rank 0, 2 called" tutorial.log >grep.log || { cat tutorial.log >&2; exit 1; }
    [ "$(grep -o '\[10\. 10\. 10\. 10\. 10\.\]' tutorial.log | wc -l)" = 4 ] || { cat tutorial.log >&2; exit 1; }
fi
say "the documents"
mkdir documents
cp app-static documents/program
(cd documents && HOME=$PWD PATH=$prefix/bin:$PATH python3 "$here/documents.py" "$source")
say "all programs ran"
