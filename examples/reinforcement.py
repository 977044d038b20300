# SPDX-License-Identifier: BSD-3-Clause
"""Reinforcement learning with samples by arrival: rank 0 learns a policy (REINFORCE with a baseline), the others play a
game with the newest policy that they were given and put their episodes. The learner takes those of the first k players
to come, learns, and gives these players the new policy; slow players' episodes count when they come, dead ones' never.

The game: a walk on a line of 11 places from the middle; each step left or right slips with probability 0.1; the right
end gives 1, the left end 0.2, and every step costs 0.01. The best policy always goes right.

    banyan_run --keep-going -n 5 python3 reinforcement.py --k 2 --slow 1 --die 3"""
import argparse
import os
import signal
import sys
import time

import numpy as np

import banyan
import banyan.objects

PLACES, STEPS_MAX, EPISODES, ROUNDS, RATE = 11, 60, 16, 60, 0.5
FIELDS = 3  # of a step: place, went right, what the episode gave from here on


def play(policy, rng):
    """An episode: rows of FIELDS, and its sum."""
    place, steps, gave = PLACES // 2, [], []
    while 0 < place < PLACES - 1 and len(steps) < STEPS_MAX:
        right = rng.random() < 1 / (1 + np.exp(-policy[place]))
        steps.append((place, right))
        place += 1 if right != (rng.random() < 0.1) else -1
        gave.append(-0.01 + (1.0 if place == PLACES - 1 else 0.2 if place == 0 else 0.0))
    rest = np.cumsum(gave[::-1])[::-1]
    return np.array([(p, r, g) for (p, r), g in zip(steps, rest)], "float32"), float(np.sum(gave))


def player(store, rank, args):
    rng, turn = np.random.default_rng(rank), 0
    while True:
        version = int(np.frombuffer(store.get(f"turn {rank} {turn}"), "int32")[0])
        if version < 0:
            return
        policy = np.frombuffer(store.get(f"policy {version}"), "float32")
        if rank == args.slow:
            time.sleep(0.05)
        if rank == args.die and turn == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        episodes = [play(policy, rng) for _ in range(EPISODES)]
        rows = np.concatenate([e for e, _ in episodes])
        store.put(f"episodes {rank} {turn}", rows)
        store.put(f"score {rank} {turn}", np.float32([np.mean([s for _, s in episodes])]))
        turn += 1


def improve(policy, rows):
    """A step of gradient ascent on what the episodes gave, less its mean at each place."""
    place, right, gave = rows[:, 0].astype(int), rows[:, 1], rows[:, 2]
    times = np.maximum(np.bincount(place, minlength=PLACES), 1)
    better = gave - (np.bincount(place, gave, PLACES) / times)[place]
    slope = (right - 1 / (1 + np.exp(-policy[place]))) * better
    return (policy + RATE * np.bincount(place, slope, PLACES) / np.sqrt(times)).astype("float32")


def learn(store, size, k):
    """Returns the mean scores of the rounds, and how many turns each player had."""
    policy, turn, scores = np.zeros(PLACES, "float32"), {r: 0 for r in range(1, size)}, []
    store.put("policy 0", policy)
    for r in turn:
        store.put(f"turn {r} 0", np.int32([0]))
    for version in range(1, ROUNDS + 1):
        names = [f"score {r} {turn[r]}" for r in turn]
        store.reduce(f"mean {version}", names, 1, banyan.F32, k=k, op=banyan.AVG)
        scores.append(float(np.frombuffer(store.get(f"mean {version}"), "float32")[0]))
        came = [r for r, there in zip(turn, store.contributors(f"mean {version}", len(names))) if there]
        rows = [np.frombuffer(store.get(f"episodes {r} {turn[r]}"), "float32").reshape(-1, FIELDS) for r in came]
        policy = improve(policy, np.concatenate(rows))
        store.put(f"policy {version}", policy)
        for r in came:
            turn[r] += 1
            store.put(f"turn {r} {turn[r]}", np.int32([version]))
    for r in turn:
        store.put(f"turn {r} {turn[r] + 1}", np.int32([-1]))
    return scores, turn


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--k", type=int, default=2, help="players whose episodes are waited for")
    p.add_argument("--slow", type=int, help="rank that takes 50 ms more")
    p.add_argument("--die", type=int, help="rank that is killed in its fourth turn")
    args = p.parse_args()
    comm, scores, turn = banyan.Comm.from_env(), None, None
    with banyan.objects.Store(comm) as store:
        if comm.rank:
            player(store, comm.rank, args)
        else:
            scores, turn = learn(store, comm.size, args.k)
    comm.destroy()  # the barrier of finalize would raise the death of a player
    if scores is None:
        return 0
    first, last = np.mean(scores[:5]), np.mean(scores[-5:])
    print(f"score {first:.2f} at first, {last:.2f} at last; turns of the players: {list(turn.values())}")
    return 0 if last > 0.8 > first else 1


if __name__ == "__main__":
    sys.exit(main())
