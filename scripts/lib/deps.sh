# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034 # sourced by bash scripts, which use the lists
# Installs Debian packages by name, for the other scripts to source. Asks for root only when something is missing.
# SKIP_DEPS=1 leaves that to you (another distribution, no network).

# What a build of library, tools and examples needs.
build_packages=(
    gcc libc6-dev meson ninja-build pkg-config python3
    libsodium-dev
    libcjson-dev
    libexpat1-dev
    libhwloc-dev
    libibverbs-dev librdmacm-dev
    libdpdk-dev
    libdnnl-dev
    libopenblas-dev
)
# What scripts/test needs besides. valgrind: a build that finds its header later is compiled anew.
test_packages=(
    g++ clang-format-14 git libcriterion-dev libpmix-dev python3-numpy iproute2 valgrind
)
# What scripts/test --full needs besides. Of llvm: llvm-symbolizer, by which clang's sanitizers name functions; make and xz for
# the tests of MPICH.
full_packages=(
    gfortran clang libclang-rt-dev llvm abigail-tools cmake
    openmpi-bin mpich libopenmpi-dev libmpich-dev hpcc python3-dev python3-pip python3-setuptools
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
    make xz-utils nftables help2man doxygen
)

# What scripts/softroce-guest needs besides.
guest_packages=(
    qemu-system-x86 busybox-static cpio kmod python3 iproute2 rdma-core ibverbs-providers ibverbs-utils perftest
    bc util-linux
)

# Those of "$@" that dpkg does not have installed.
missing_packages() {
    local name
    for name in "$@"; do
        dpkg-query -W -f '${Status}\n' "$name" 2>/dev/null | grep '^install ok installed$' >/dev/null ||
            printf '%s\n' "$name"
    done
}

# Runs a command as root: directly, or by sudo. Fails without saying anything where there is neither.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# apt_get ARGUMENT...: in English, for failed_packages. The lock's timeout: a fresh machine often runs its own unattended upgrade.
apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q -y -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@"
}

apt_install() {
    apt_get update && apt_get install --no-install-recommends "$@"
}

# Those at which apt-get or dpkg failed, by what they said in a log.
failed_packages() {
    sed -n -e 's|^E: Failed to fetch [^ ]*/\([^/_ ]*\)_[^ ]*\.deb .*|\1|p' \
        -e 's|^E: Unable to locate package \(.*\)|\1|p' \
        -e "s|^E: Package '\(.*\)' has no installation candidate|\1|p" \
        -e 's|^dpkg: error processing package \([^ :]*\).*|\1|p' \
        -e 's|^dpkg: error processing archive [^ ]*/\([^/_ ]*\)_.*|\1|p' "$1" | sort -u | paste -s -d ' '
}

install_packages() {
    [ "${SKIP_DEPS:-0}" = 1 ] && return 0
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "This machine has no apt-get. Install what these Debian packages hold, then run again" >&2
        echo "with SKIP_DEPS=1: $*" >&2
        return 1
    fi
    local missing
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    missing=${missing//$'\n'/ }
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        echo "These packages are missing, and this is neither root nor is there sudo: $missing" >&2
        echo "As root: apt-get update && apt-get install --no-install-recommends $missing" >&2
        return 1
    fi
    echo "installing: $missing"
    local log at
    log=$(mktemp)
    # shellcheck disable=SC2086 # one word a package
    if ! apt_install $missing >"$log" 2>&1 </dev/null; then
        # One fetch of hundreds that fails ends it all, and may leave packages unpacked. What came stays in apt's cache.
        at=$(failed_packages "$log")
        echo "apt-get failed${at:+ at: $at}; trying again" >&2
        { as_root dpkg --configure -a && apt_get -f install; } >"$log" 2>&1 </dev/null || :
        if ! apt_install $missing >>"$log" 2>&1 </dev/null; then
            at=$(failed_packages "$log")
            missing=$(missing_packages "$@")
            tail -n 20 "$log" >&2
            rm -f "$log"
            echo "apt-get failed twice${at:+, at: $at}. Still missing: ${missing//$'\n'/ }." >&2
            echo "What it said is above. If it is the network, set http_proxy; then run this again." >&2
            return 1
        fi
    fi
    rm -f "$log"
    missing=$(missing_packages "$@")
    [ -z "$missing" ] || { echo "apt-get did not install: ${missing//$'\n'/ }" >&2; return 1; }
}
