#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the allreduce of StragglAR (Devraj et al., arXiv 2505.23523) as an MSCCL algorithm, for the ranks of which the last
is late: the others reduce-scatter among them; then it exchanges a block with each of them by turns, and ranks that have the sum of
a block give it to those who have not, a block a rank and turn. In an exchange the last rank gets the sum, not what it lacks of it, a chunk later: so all add in one order.

    perf/straggler_plan.py 8 > s8.xml; banyan_sim --ranks 8 --schedule s8.xml --late 200 --late-rank 7 allreduce 32M
"""
import random
import sys


def one_way(n, rng):
    """(turn, from, to, block) of all that is told after the last rank has come, but its own exchanges; and the last turn."""
    late, has = n - 1, [set() for _ in range(n)]
    out, t = [], 0
    while any(len(h) < n - 1 for h in has):
        t += 1
        busy = {late, t - 1} if t < n else set()
        copies = [sum(b in h for h in has) for b in range(n - 1)]
        edges = [(copies[b], len(has[to]), rng.random(), frm, to, b) for frm in range(n) for to in range(n) for b in has[frm] - has[to]
                 if frm not in busy and to not in busy and to != late]
        sends, gets, told = set(), set(), []
        for _, _, _, frm, to, b in sorted(edges):
            if frm not in sends and to not in gets:
                sends.add(frm)
                gets.add(to)
                told.append((t, frm, to, b))
        for _, _, to, b in told:
            has[to].add(b)
        if t < n:
            has[late].add(t - 1)
            has[t - 1].add(t - 1)
        out += told
    return out, t


def turns(n):
    """The shortest of some ways; that of the paper takes n - 1 + log2(n) - 1 turns."""
    ways = [one_way(n, random.Random(i)) for i in range(300)]
    return min(ways, key=lambda w: w[1])


def main():
    n = int(sys.argv[1])
    late = n - 1
    tbs = [{} for _ in range(n)]  # (peer, is_send) -> steps, each [type, block, wait for (peer, is_send, step)]
    done = [{} for _ in range(n)]  # block -> the step after which the rank has its sum

    def add(r, peer, is_send, kind, block, waits=()):
        steps = tbs[r].setdefault((peer, is_send), [])
        waits = [w for w in waits if w]
        for w in waits[:-1]:
            steps.append(["nop", block, w])
        steps.append([kind, block, waits[-1] if waits else None])
        return (peer, is_send, len(steps) - 1)

    partial = [[] for _ in range(n)]
    for d in range(1, n - 1):
        for r in range(n - 1):
            to = (r + d) % (n - 1)
            add(r, to, 1, "s", to)
            partial[to].append(add(to, r, 0, "rrc", to))
    told, last = turns(n)
    for t in range(1, last + 1):
        if t < n:
            r = t - 1
            his = add(late, r, 1, "s", r)
            done[r][r] = add(r, late, 0, "rrc", r, partial[r])
            add(r, late, 1, "s", r, [done[r][r]])
            done[late][r] = add(late, r, 0, "r", r, [his])
        for _, frm, to, b in (x for x in told if x[0] == t):
            add(frm, to, 1, "s", b, [done[frm][b]])
            done[to][b] = add(to, frm, 0, "r", b)
    print(f'<algo name="straggler" proto="Simple" nchannels="1" nchunksperloop="{n - 1}" ngpus="{n}" coll="allreduce" inplace="1">')
    for r in range(n):
        ids = {key: i for i, key in enumerate(tbs[r])}
        waited = {(w[:2], w[2]) for steps in tbs[r].values() for _, _, w in steps if w}
        print(f'  <gpu id="{r}" i_chunks="{n - 1}" o_chunks="0" s_chunks="0">')
        for (peer, is_send), steps in tbs[r].items():
            print(f'    <tb id="{ids[peer, is_send]}" send="{peer if is_send else -1}" recv="{-1 if is_send else peer}" chan="0">')
            for s, (kind, b, w) in enumerate(steps):
                dep, deps = (ids[w[:2]], w[2]) if w else (-1, -1)
                has = int(((peer, is_send), s) in waited)
                print(f'      <step s="{s}" type="{kind}" srcbuf="i" srcoff="{b}" dstbuf="i" dstoff="{b}" cnt="1" depid="{dep}" '
                      f'deps="{deps}" hasdep="{has}"/>')
            print("    </tb>")
        print("  </gpu>")
    print("</algo>")
    print(f"{last} turns", file=sys.stderr)


if __name__ == "__main__":
    main()
