#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Boots the guest and runs suite.sh in it. Usage: run.sh SOURCE BUILD [NAME-PATTERN [REPETITIONS [PATIENCE]]]
set -uo pipefail
src=$1 build=$2
shift 2
if [ "${BANYAN_SKIP_GUEST:-0}" = 1 ]; then
    echo "1..0 # SKIP BANYAN_SKIP_GUEST=1"
    exit 0
fi
limit=${BANYAN_GUEST_TEST_S:-600}
timeout -k 10 $((limit + 290)) "$src/scripts/softroce-guest" -r 2 -t "$limit" bash "$src/tests/guest/suite.sh" "$build" "$@"
rc=$?
[ $rc -lt 124 ] || echo "Bail out! the guest ended with status $rc"
exit $rc
