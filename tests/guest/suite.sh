#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# The soft-RoCE suite, run inside the guest of scripts/softroce-guest with two hosts. Prints TAP. Every check has a
# deadline. Usage: suite.sh BUILD [NAME-PATTERN [REPETITIONS [PATIENCE]]]
set -uo pipefail
build=$1 pattern=${2:-.} repeat=${3:-1} patience=${4:-1} # patience: factor of all deadlines, for a busy machine
rank=$build/tests/mp/rank
export BANYAN_TEST_ALONE=1 BANYAN_VERBS=rnr=0 BANYAN_INIT_TIMEOUT=$((40 * patience)) BANYAN_OP_TIMEOUT=$((60 * patience))
unset BANYAN_IFNAME
lanes=3 # most checks wait rather than compute
state=/tmp/suite # of the run: the number of checks so far, whether one failed; a folder for each check
mkdir -p $state && echo 0 >$state/count

# one NAME SECONDS COMMAND...: a case, in a folder of its own; its lines of output in one piece.
one() {
    local name=$1 limit=$2 start=$SECONDS rc=0 dir n
    shift 2
    dir=$(mktemp -d $state/XXXXXX)
    # a shell function has its deadlines within
    if [ "$(type -t "$1")" = function ]; then tmp=$dir "$@" >"$dir/log" 2>&1 || rc=$?
    else timeout -k 5 $((limit * patience)) "$@" >"$dir/log" 2>&1 || rc=$?; fi
    exec 7>$state/lock
    flock 7
    n=$(($(<$state/count) + 1))
    echo $n >$state/count
    if [ $rc = 0 ]; then
        echo "ok $n - $name ($((SECONDS - start)) s)"
        sed -n 's/^note:/# /p' "$dir/log"
    else
        echo "not ok $n - $name ($((SECONDS - start)) s)"
        echo "# exit status $rc"
        tail -n 25 "$dir/log" | sed 's/^/# /'
        touch $state/failed
    fi
    rm -rf "$dir"
}
# check: when nothing else runs. side: beside others, where no time is looked at and no interface changed.
check() {
    [[ $1 =~ $pattern ]] || return 0
    wait
    (one "$@")
}
side() {
    [[ $1 =~ $pattern ]] || return 0
    while [ "$(jobs -rp | wc -l)" -ge $lanes ]; do wait -n; done
    (one "$@") &
}

# job RANKS COMMAND...: over verbs (or $transport), ranks on the two hosts by turns.
job() { timeout -k 5 $((${limit:-60} * patience)) "$build/tools/banyan_run" -n "$1" on-host env BANYAN_TRANSPORT="${transport:-verbs}" "${@:2}"; }
# cases RANKS CASE [ARGUMENT]: a case of the multi-process tests' worker.
cases() { job "$1" "$rank" "$2" env 0 "${seed:-$RANDOM}" "${3:-}"; }
# says TEXT COMMAND...: it must fail, and say this (a pattern) within its deadline.
says() {
    local text=$1 rc=0
    shift
    "$@" >"$tmp/says" 2>&1 || rc=$?
    cat "$tmp/says"
    [ $rc -ne 0 ] && [ $rc -ne 124 ] || { echo "exit status $rc"; return 1; }
    grep -Eq "$text" "$tmp/says" || { echo "nothing like: $text"; return 1; }
}
program() { timeout -k 5 $((150 * patience)) env BANYAN_TEST_TRANSPORT="${transport:-verbs}" BANYAN_TEST_IFNAMES=w0,w1 "$build/tests/transport/test_transport_$1" -j1 "${@:2}"; }
counter() { cat /sys/class/infiniband/rxe*/ports/1/hw_counters/"$1" | paste -sd+ | bc; }

put() { job 2 "$build/perf/banyan_perf" "$1" -b 8 -e 256K -f 32 -n 2 -w 1 -c 1 --inplace 0 --no-roofline; }

# Packets that netem loses, doubles or delays on both hosts' interfaces, below the devices; traffic must have met it.
impaired() {
    local rc=0 before after sent jobs i limit
    before=$(counter completer_retry_err) && before=$((before + $(counter duplicate_request) + $(counter out_of_seq_request)))
    for i in 0 1; do tc qdisc add dev w$i root netem limit 2000 "${@:2}" || return 1; done
    limit=90
    cases 2 sweep brief=1 >"$tmp/sweep" 2>&1 &
    jobs=$!
    BANYAN_TOPO=ring:4 cases 4 matrix >"$tmp/matrix" 2>&1 &
    jobs+=" $!"
    put put_bw || rc=1
    for i in $jobs; do wait "$i" || rc=1; done
    tail -n 10 "$tmp/sweep" "$tmp/matrix"
    sent=$(tc -s qdisc show dev w0)
    for i in 0 1; do tc qdisc del dev w$i root; done
    after=$(counter completer_retry_err) && after=$((after + $(counter duplicate_request) + $(counter out_of_seq_request)))
    echo "note:$1: $((after - before)) packets repeated or out of order; $(grep -o 'Sent.*' <<<"$sent" | tr '\n' ' ')"
    [ "$1" = delay ] || [ $after -gt $before ] || { echo "netem touched nothing"; return 1; }
    return $rc
}

# Datagrams have nobody but the library to send them again.
lost_datagrams() {
    local rc=0 i
    for i in 0 1; do tc qdisc add dev w$i root netem limit 2000 loss 1% || return 1; done
    BANYAN_DEBUG=debug limit=90 transport=ud cases 2 sweep brief=1 >"$tmp/lossy" 2>&1 || rc=1
    for i in 0 1; do tc qdisc del dev w$i root; done
    grep -v 'ud: to rank' "$tmp/lossy" | tail -n 5
    grep -m 2 'ud: to rank' "$tmp/lossy"
    grep -Eq 'ud: to rank [01]: [0-9]+ packets, [1-9][0-9]* again' "$tmp/lossy" || { echo "nothing was sent again"; rc=1; }
    return $rc
}

# An interface goes away for 2 s in the middle, and comes back. A queue pair that was sending breaks, and begins anew.
interface_flaps() {
    local rc=0 job
    BANYAN_DEBUG=info transport=ud limit=90 job 2 "$build/perf/banyan_perf" allreduce -b 64K -e 64K -n 2500 -w 1 -c 1 --inplace 0 --no-roofline >"$tmp/flaps" 2>&1 &
    job=$!
    for _ in {1..100}; do grep -q 'plan: allreduce of 16384' "$tmp/flaps" && break; sleep 0.1; done
    sleep 0.3
    ip link set w1 down
    sleep 2
    kill -0 $job || { echo "it was over before"; rc=1; }
    ip link set w1 up
    ip route add 10.9.0.0/24 dev w1 src 10.9.0.2 table 101
    wait $job || rc=1
    tail -n 8 "$tmp/flaps"
    echo "note:the queue pair was $(grep -o 'begun anew [0-9]* times' "$tmp/flaps" || echo not begun anew)"
    grep -q '#wrong' "$tmp/flaps" && grep -q 'Out of bounds values : 0 OK' "$tmp/flaps" || rc=1
    return $rc
}

# Chunks are encoded while others travel: by the trace, where the wire is 200 Mbit/s and not these CPUs.
overlap() {
    local rc=0 i
    for i in 0 1; do tc qdisc add dev w$i root netem limit 2000 rate 200mbit || return 1; done
    BANYAN_TRACE=$tmp/trace job 2 "$build/perf/banyan_perf" allreduce -b 1M -e 1M -n 3 -w 1 --inplace 0 --no-roofline --codec int8 &&
        python3 "${0%/*}/../../tools/banyan_trace" merge "$tmp/trace" && python3 "${0%/*}/overlap.py" "$tmp/trace" || rc=1
    for i in 0 1; do tc qdisc del dev w$i root; done
    return $rc
}

# A job for processes that have other rights than this script's functions.
plain="BANYAN_TRANSPORT=verbs timeout $((40 * patience)) $build/tools/banyan_run -n 2 on-host $rank sweep env 0 1 brief=1"
# The limit of locked memory binds root too, once it has not the right to pass it.
memlock() {
    says 'locked memory.*ulimit -l unlimited' setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \
        bash -c "ulimit -l 2048; $plain"
}
no_permission() { # from copies: the tree may lie where nobody else may look
    local rc=0 job
    chmod 755 "$tmp" && cp "$build/tools/banyan_run" "$rank" "$tmp"
    job=${plain//$build\/tools/$tmp}
    job=${job//$rank/$tmp\/${rank##*/}}
    chmod 600 /dev/infiniband/*
    says 'rank [01].*/dev/infiniband' setpriv --reuid 65534 --clear-groups env HOME=/ bash -c "cd /; $job" || rc=1
    chmod 666 /dev/infiniband/*
    return $rc
}
no_device() { says 'rank [01].*RDMA device' env BANYAN_IFNAME=lo BANYAN_TRANSPORT=verbs timeout $((40 * patience)) "$build/tools/banyan_run" -n 2 "$rank" sweep env 0 1 brief=1; }
tcp_if_allowed() {
    BANYAN_IFNAME=lo BANYAN_TRANSPORT=verbs BANYAN_VERBS=rnr=0,tcp=1 timeout $((60 * patience)) "$build/tools/banyan_run" -n 2 "$rank" sweep env 0 1 brief=1 >"$tmp/tcp" 2>&1
    local rc=$?
    cat "$tmp/tcp"
    [ $rc = 0 ] && grep -q 'verbs is not available' "$tmp/tcp"
}
port_down() {
    local rc=0
    ip link set w1 down
    says 'rank [01].*(rxe1|w1)' cases 2 sweep brief=1 || rc=1
    ip link set w1 up
    ip route add 10.9.0.0/24 dev w1 src 10.9.0.2 table 101
    for _ in {1..50}; do grep -q 'ffff:0a09' /sys/class/infiniband/rxe1/ports/1/gids/1 && break; sleep 0.1; done
    return $rc
}
rank_dies() {
    local out rc=0
    out=$(cases 3 rank_dies) || rc=$?
    echo "$out"
    [ $rc = 137 ] && [ "$(grep -c 'rank [01]: after .*rank 2' <<<"$out")" = 2 ]
}
# Whole jobs of 2 to 4 ranks lose some at random moments, agree, shrink and grow: tests/mp/soak.c.
faults() { # ROUNDS SEED
    timeout -k 5 $((200 * patience)) env -u BANYAN_TEST_ALONE -u BANYAN_INIT_TIMEOUT -u BANYAN_OP_TIMEOUT BANYAN_TEST_IFNAMES=w0,w1 \
        BANYAN_TEST_WORKER="$rank" BANYAN_TEST_PATIENCE=$((3 * patience)) "$build/tests/mp/soak" "$1" "$2" verbs >"$tmp/faults" 2>&1
    local rc=$?
    sed 's/^.* rounds, .*failed/note:&/' "$tmp/faults"
    return $rc
}
# No device is named: of those on the first one's network the ranks take one each, with real rdma_cm.
near_by_cm() {
    BANYAN_VERBS=rnr=0,connect=cm BANYAN_DEBUG=info BANYAN_TRANSPORT=verbs timeout $((60 * patience)) "$build/tools/banyan_run" -n 2 "$rank" sweep env 0 1 brief=1 >"$tmp/near" 2>&1
    local rc=$?
    grep 'for local rank' "$tmp/near"
    [ $rc = 0 ] && grep -q 'device rxe0 port 1 for local rank 0: all 2' "$tmp/near" && grep -q 'device rxe1 port 1 for local rank 1: all 2' "$tmp/near" ||
        { tail -n 5 "$tmp/near"; return 1; }
}
by_name() {
    BANYAN_IFNAME=rxe0:1 BANYAN_DEBUG=info BANYAN_TRANSPORT=verbs timeout $((60 * patience)) "$build/tools/banyan_run" -n 2 "$rank" sweep env 0 1 brief=1 >"$tmp/name" 2>&1
    local rc=$?
    grep -m 2 verbs "$tmp/name"
    [ $rc = 0 ] && grep -q 'device rxe0 port 1: MTU 4096 .*GID ::ffff:10.9.0.1' "$tmp/name" || { tail -n 5 "$tmp/name"; return 1; }
}
# A device goes away in the middle, comes back, and serves again. rxe of Linux 6.1 is removed only when nobody has it open
# any more, so its interface goes down first.
device_removed() {
    local rc=0 job removal
    limit=90 BANYAN_VERBS=rnr=0,replace=3 cases 2 until_failure >"$tmp/removed" 2>&1 &
    job=$!
    for _ in {1..300}; do grep -q working "$tmp/removed" 2>/dev/null && break; sleep 0.1; done
    ip link set w1 down
    timeout $((80 * patience)) rdma link delete rxe1 &
    removal=$!
    wait $job || rc=1
    cat "$tmp/removed"
    grep -Eq 'rank [01]: .*rank [01] .*over device rxe[01].* any more' "$tmp/removed" || { echo "no sentence names the device"; rc=1; }
    wait $removal || { echo "the device is not removed"; rc=1; }
    ip link set w1 up
    ip route add 10.9.0.0/24 dev w1 src 10.9.0.2 table 101
    timeout 40 rdma link add rxe1 type rxe netdev w1 || rc=1
    for _ in {1..100}; do grep -q 'ffff:0a09' /sys/class/infiniband/rxe1/ports/1/gids/1 2>/dev/null && break; sleep 0.1; done
    cases 2 sweep brief=1 || rc=1
    return $rc
}

# Two devices for each host: both carry, one goes away in the middle, and the results stay right.
two_devices() {
    local i rc=0
    timeout -k 5 $((100 * patience)) env BANYAN_TEST_TRANSPORT="${transport:-verbs}" BANYAN_TEST_IFNAMES=w0+v0,w1+v1 "$build/tests/transport/test_transport_verbs_rails" -j1 --filter "*/lanes_that_break*" || return 1
    # packets vanish until both ranks have moved their lane away; then it comes home
    GUEST_RAILS=2 BANYAN_DEBUG=info limit=80 cases 2 there_and_back >"$tmp/back" 2>&1 &
    for _ in {1..300}; do [ "$(grep -c 'lane 1: MTU' "$tmp/back")" = 2 ] && break; sleep 0.1; done
    for i in 0 1; do tc qdisc add dev v$i root netem loss 100%; done
    for _ in {1..400}; do [ "$(grep -c 'moved 1' "$tmp/back")" = 2 ] && break; sleep 0.1; done
    for i in 0 1; do tc qdisc del dev v$i root; done
    wait $! || rc=1
    tail -n 12 "$tmp/back"
    [ "$(grep -c 'lane 1 is back on device rxv[01]' "$tmp/back")" = 2 ] || { echo "nothing came back"; rc=1; }
    return $rc
}
one_of_two() {
    local rc=0 job
    GUEST_RAILS=2 BANYAN_DEBUG=info job 2 "$build/perf/banyan_perf" allreduce -b 512K -e 512K -n 80 -w 1 -c 1 --no-roofline >"$tmp/rails" 2>&1 &
    job=$!
    for _ in {1..200}; do [ "$(grep -c 'lane 1: MTU' "$tmp/rails")" = 2 ] && break; sleep 0.1; done
    ip link set v1 down
    wait $job || rc=1
    grep -v plan: "$tmp/rails" | tail -n 9
    grep -q 'lane 1 goes on over device rxe[01] instead of rxv[01]' "$tmp/rails" || { echo "nothing moved"; rc=1; }
    [ "$(grep -c 'replaced, [1-9][0-9]* of them by one on another device' "$tmp/rails")" = 2 ] || { echo "nothing is counted"; rc=1; }
    ip link set v1 up
    ip route add 10.9.1.0/24 dev v1 src 10.9.1.2 table 201
    return $rc
}

# One receive queue for all peers, with two queue pairs to each: collectives, then streams with queue pairs that break.
shared_queue() { BANYAN_VERBS=rnr=0,srq=1,qps=2 limit=120 cases 4 sweep brief=1 && program verbs_srq; }

# Ranks that would have slots of different sizes end in init.
other_slots() {
    says 'set BANYAN_VERBS=memory alike on all ranks; rank 1 has' \
        job 2 bash -c '[ $BANYAN_RANK = 0 ] || export BANYAN_VERBS=rnr=0,memory=1M; exec "$@"' - "$rank" sweep env 0 1 brief=1
}

# How long connections took, as the library says at level info. The slowest is printed.
set_up() { # RANKS MILLISECONDS
    local slowest
    BANYAN_DEBUG=info cases "$1" sweep brief=1 >"$tmp/setup" 2>&1 || { tail -n 5 "$tmp/setup"; return 1; }
    slowest=$(sed -n 's/.*it took \([0-9]*\) ms.*/\1/p' "$tmp/setup" | sort -n | tail -n 1)
    echo "note:the slowest of $(grep -c 'it took' "$tmp/setup") ends took ${slowest:?} ms"
    [ "$slowest" -lt $(($2 * patience)) ]
}

for ((round = 0; round < repeat; round++)); do
    for p in conformance verbs verbs_lane traffic windows; do side "transport $p" 160 program $p; done
    side "all collectives, 2 ranks" 80 cases 2 sweep brief=1
    side "all collectives, 4 ranks" 120 cases 4 sweep brief=1
    side "random calls, 3 ranks" 80 cases 3 differential "calls=40 max=40000"
    BANYAN_TOPO=ring:4 side "ring, multitree, packed with codecs, 4 ranks" 90 cases 4 matrix
    side "every codec, 2 ranks" 80 cases 2 every_codec
    # the slots, and the queues, of jobs of a thousand ranks
    BANYAN_VERBS=rnr=0,memory=64K side "all collectives with few slots, 4 ranks" 120 cases 4 sweep brief=1
    BANYAN_VERBS=rnr=0,memory=64K side "random calls with few slots, 3 ranks" 80 cases 3 differential "calls=40 max=40000"
    BANYAN_VERBS=rnr=0,memory=64K BANYAN_TOPO=ring:4 side "forests and codecs with few slots, 4 ranks" 90 cases 4 matrix
    BANYAN_VERBS=rnr=0,memory=64K side "every codec with few slots, 2 ranks" 80 cases 2 every_codec
    BANYAN_VERBS=rnr=0,memory=64K side "in order of arrival with few slots, 3 ranks" 120 cases 3 arrival
    side "slots of two sizes" 60 other_slots
    side "encoders write into registered memory" 80 cases 2 no_copies
    side "nothing is copied from registered memory" 80 cases 2 zero_copy
    BANYAN_VERBS=rnr=0,cache=uffd side "nothing is copied from memory that is cached" 80 cases 2 zero_copy_cached
    BANYAN_VERBS=rnr=0,cache=uffd side "random calls from memory that is cached, 3 ranks" 80 cases 3 differential "calls=40 max=80000"
    side "memory that is cached changes" 80 program verbs_cache --filter "*/@(what_changes*|the_heap*)"
    for p in conformance traffic; do transport=ud side "datagrams, transport $p" 160 program $p; done
    transport=ud side "datagrams, all collectives, 2 ranks" 80 cases 2 sweep brief=1
    transport=ud side "datagrams, random calls, 3 ranks" 80 cases 3 differential "calls=40 max=40000"
    transport=ud BANYAN_TOPO=ring:4 side "datagrams, ring, multitree, packed with codecs, 4 ranks" 90 cases 4 matrix
    transport=ud side "datagrams, a rank is killed" 60 rank_dies
    side "windows of banyan_perf: bandwidth" 60 put put_bw
    side "windows of banyan_perf: latency" 60 put put_lat
    side "a rank is killed" 60 rank_dies
    side "whole jobs lose ranks and go on" 200 faults 8 32
    side "tcp where it is allowed" 60 tcp_if_allowed
    side "no device" 60 no_device
    if [ -e /sys/class/infiniband/rxe0 ]; then # what follows speaks of soft-RoCE
        side "too little memory may be locked" 60 memlock
        side "no permission for the devices" 60 no_permission
        side "a device by its name, and what it says" 60 by_name
        side "devices that nobody named, by rdma_cm" 60 near_by_cm
        BANYAN_VERBS=rnr=0,qps=2 side "two queue pairs a peer" 60 cases 2 sweep brief=1
        side "a shared receive queue" 200 shared_queue
        side "two devices a host, one of them comes back" 200 two_devices
        check "one of two devices goes away" 60 one_of_two
        check "2 ranks are connected in time" 80 set_up 2 10000 # the aim is 1 s, on a machine that is ours
        check "4 ranks are connected in time" 80 set_up 4 10000
        check "1 % of packets lost" 200 impaired loss loss 1%
        check "2 % of packets doubled" 200 impaired duplicate duplicate 2%
        check "packets delayed by 2 ms" 200 impaired delay delay 2ms
        check "datagrams, 1 % of packets lost" 200 lost_datagrams
        check "datagrams, an interface goes and comes" 100 interface_flaps
        check "int8 is encoded while the wire is busy" 60 overlap
        check "a port is down" 60 port_down
        check "a device goes and comes back" 100 device_removed
    fi
    wait
done
echo "1..$(<$state/count)"
[ ! -e $state/failed ]
