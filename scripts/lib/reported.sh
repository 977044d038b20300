#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs one test program as meson's wrapper: sanitizers write into a folder of this program's own, below BANYAN_TEST_REPORTS, and a
# program that leaves a report fails. What a program that failed by itself did not free is part of that failure.
dir=$(mktemp -d "$BANYAN_TEST_REPORTS/XXXXXX") || exit 1
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}log_path=$dir/asan
export UBSAN_OPTIONS=${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}log_path=$dir/ubsan
export TSAN_OPTIONS=${TSAN_OPTIONS:+$TSAN_OPTIONS:}log_path=$dir/tsan
"$@"
status=$?
rmdir "$dir" 2>/dev/null && exit $status
how=()
[ $status != 0 ] && how=(--failed)
# What the folder holds is told here, so that the last look at BANYAN_TEST_REPORTS finds only what came later.
python3 "$(dirname "$0")/reports.py" "${how[@]}" "$dir" >/dev/null || status=99
rm -r "$dir"
exit $status
