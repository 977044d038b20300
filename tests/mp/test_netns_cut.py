# SPDX-License-Identifier: BSD-3-Clause
"""Networks that are cut in two under a training (examples/elastic_train), in network namespaces: one part at most goes on, the
others say that they are cut off; where the way is back in time nobody notices.
Usage: test_netns_cut.py NETNS_CLUSTER ELASTIC_TRAIN [ROUNDS SEED]
With ROUNDS: random cuts of 3 to 6 hosts, two beside each other; a line a round, exit status 0 when none failed."""
import concurrent.futures
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest

CLUSTER, TRAIN = sys.argv[1:3]
ROUNDS = sys.argv[3:5]

# Frames to the far side go to a peer info that nobody has: silence, as on a cable that was pulled. $1: "HOST:FAR,FAR ..." what each host
# cannot reach; $2: after host 0 has received so many packets, of the 20000 and more of a training, on a fast machine as on a slow
# one; $3: for so many seconds, 0: for ever; $4: a file in which host 0 says when, so that all cut at the same time.
SCRIPT = r"""
far=$(for pair in $1; do case $pair in $NETNS_HOST:*) echo ${pair#*:} | tr , ' ';; esac; done)
after=$2; lasts=$3; mark=$4; shift 4
now() { date +%s%3N; }
(
  if [ $NETNS_HOST = 0 ]; then
    until [ "$(awk '/eth0:/ {print $3}' /proc/net/dev)" -gt $after ]; do kill -0 $$ || exit; sleep 0.01; done
    echo $(($(now) + 150)) > $mark.new && mv $mark.new $mark
  fi
  until [ -e $mark ]; do kill -0 $$ || exit; sleep 0.01; done
  sleep $(echo "$(cat $mark) $(now)" | awk '{print ($1 > $2 ? ($1 - $2) / 1000 : 0)}')
  for h in $far; do ip neigh replace 10.77.0.$((h + 1)) lladdr 02:ff:ff:ff:ff:01 nud permanent dev eth0; done
  [ $lasts = 0 ] && exit
  sleep $lasts
  for h in $far; do ip neigh del 10.77.0.$((h + 1)) dev eth0; done
) >/dev/null 2>&1 &
"$@"
echo "rank $RANK: exit $?"
"""


# Host $2 goes, as by a loss of power: its peer info is down, and nobody says so. Lines have their time, in ms; $1: a file with that of the end.
VANISH = r"""
mark=$1; host=$2; shift 2
if [ $NETNS_HOST = $host ]; then
  (
    until [ "$(awk '/eth0:/ {print $3}' /proc/net/dev)" -gt 4000 ]; do kill -0 $$ || exit; sleep 0.01; done
    date +%s%3N > $mark
    ip link set eth0 down
  ) >/dev/null 2>&1 &
fi
"$@" 2>&1 | while read -r line; do echo "$(date +%s%3N) rank $RANK: $line"; done
"""


def between(a, b):
    """What the hosts of both sides cannot reach."""
    return " ".join([f"{h}:{','.join(map(str, b))}" for h in a] + [f"{h}:{','.join(map(str, a))}" for h in b])


def one_way(a, b):
    """a's packets do not reach b."""
    return " ".join(f"{h}:{','.join(map(str, b))}" for h in a)


def train(hosts, cut, after=4000, lasts=0, silent=2, epochs=60, **env):
    """Exit statuses by rank, and what was said. The cluster ends what is left of a run."""
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.run([CLUSTER, "--net", f"star:0*{hosts}", "--timeout", "90", "--", "sh", "-c", SCRIPT, "sh", cut, str(after),
                            str(lasts), folder + "/cut", TRAIN, "--epochs", str(epochs)], capture_output=True, text=True,
                           timeout=120, env={**os.environ, "BANYAN_SILENT_S": str(silent), "BANYAN_OP_TIMEOUT": "20", **env})
    said = p.stdout + p.stderr
    return {int(r): int(s) for r, s in re.findall(r"rank (\d+): exit (\d+)", said)}, said


def vanish(hosts, host):
    """When the host went, and what was said with times. All settings are the defaults."""
    env = {k: v for k, v in os.environ.items() if k != "BANYAN_SILENT_S"}
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.run([CLUSTER, "--net", f"star:0*{hosts}", "--timeout", "90", "--", "sh", "-c", VANISH, "sh", folder + "/mark", str(host),
                            TRAIN, "--epochs", "60"], capture_output=True, text=True, timeout=120, env={**env, "BANYAN_DEBUG": "info"})
        with open(folder + "/mark") as f:
            return int(f.read()), p.stdout + p.stderr


# They wait most of the time: two run beside each other.
RUNS = {
    "most": ((5, between([0, 3, 4], [1, 2])), {}),
    "halves": ((4, between([0, 3], [1, 2])), {}),
    "any": ((4, between([0, 3], [1, 2])), {"BANYAN_QUORUM": "any"}),
    "three parts": ((5, between([0, 1], [2, 3, 4]) + " 2:0,1,3,4 3:2 4:2"), {}),
    "heals": ((5, between([0, 3, 4], [1, 2])), {"lasts": 2, "silent": 10}),
    "two alone": ((4, between([1], [3])), {}),
    # One way only: what the others send still arrives.
    "few do not hear": ((5, one_way([0, 3, 4], [1, 2])), {}),
    # One host misses four, whom the rest reach: that one is left out.
    "one misses many": ((7, between([1], [3, 4, 5, 6])), {"silent": 5}),
    "one is deaf to many": ((7, one_way([3, 4, 5, 6], [1])), {}),
}


class Cut(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pool = concurrent.futures.ThreadPoolExecutor(2)
        cls.vanished = cls.pool.submit(vanish, 4, 2)
        cls.runs = {name: cls.pool.submit(train, *a, **kw) for name, (a, kw) in RUNS.items()}

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()

    def ended(self, name):
        status, said = self.runs[name].result()
        self.assertEqual(len(status), RUNS[name][0][0], said)
        return status, said

    def right(self, said):
        """The training of those who went on learnt what it always does."""
        accuracy = [float(a) for a in re.findall(r"test accuracy ([\d.]+)", said)]
        self.assertTrue(accuracy and min(accuracy) > 0.94, said)

    def test_a_host_that_vanishes(self):
        """It is found once BANYAN_SILENT_S, 4.4 s by default, is over, once, and alike by all. The bound has room for a busy machine."""
        went, said = self.vanished.result()
        heard = {int(r): (int(ms) - went) / 1e3 for ms, r in re.findall(r"(\d+) rank (\d): .*communicator 1 failed: rank \d \(.*?\) heard nothing of rank 2 ", said)}
        self.assertEqual(sorted(heard), [0, 1, 3], said)
        print(f"# a host that vanished was named after {min(heard.values()):.2f} to {max(heard.values()):.2f} s")
        self.assertLess(max(heard.values()), 8, said)
        self.assertEqual(len(re.findall(r"ranks go on from step", said)), 1, said)
        self.assertIn("3 of 4 ranks go on", said)
        self.right(said)

    def test_most_go_on(self):
        status, said = self.ended("most")
        self.assertEqual(status, {0: 0, 1: 1, 2: 1, 3: 0, 4: 0}, said)
        self.assertIn("3 of 5 ranks go on", said)
        self.assertEqual(len(re.findall(r"rank [12] is cut off from 3 of 5 ranks", said)), 2, said)
        self.right(said)

    def test_of_halves_that_with_the_smallest_rank(self):
        status, said = self.ended("halves")
        self.assertEqual(status, {0: 0, 1: 1, 2: 1, 3: 0}, said)
        self.right(said)

    def test_both_where_that_is_asked_for(self):
        status, said = self.ended("any")
        self.assertEqual(set(status.values()), {0}, said)
        self.assertEqual(len(re.findall(r"2 of 4 ranks go on", said)), 2, said)

    def test_three_parts_and_none_has_most(self):
        status, said = self.ended("three parts")
        self.assertEqual(set(status.values()), {1}, said)
        self.assertIn("cut off", said)

    def test_a_cut_that_heals_in_time(self):
        status, said = self.ended("heals")
        self.assertEqual(set(status.values()), {0}, said)
        self.assertNotIn("go on from step", said)
        self.right(said)

    def test_a_way_between_two_that_others_reach(self):
        """One of the two is excluded, or both: each has a clock of its own, and accuses the other."""
        status, said = self.ended("two alone")
        self.assertEqual([status[0], status[2]], [0, 0], said)
        self.assertGreaterEqual(status[1] + status[3], 1, said)
        self.right(said)

    def test_a_minority_that_does_not_hear(self):
        status, said = self.ended("few do not hear")
        self.assertEqual(status, {0: 0, 1: 1, 2: 1, 3: 0, 4: 0}, said)
        self.right(said)

    def test_one_that_misses_many(self):
        for name in ("one misses many", "one is deaf to many"):
            status, said = self.ended(name)
            self.assertEqual(status, {0: 0, 1: 1, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0}, name + said)
            self.right(said)


def random_cut(seed):
    """Cuts at random, for ever or for less than anybody minds (from 2 s on a decision may be made without those who are not heard).
    Returns what was cut, and what was wrong: "" where nothing was."""
    r = random.Random(seed)
    hosts = r.randint(3, 6)
    order = r.sample(range(hosts), hosts)
    few = sorted(order[:r.randint(1, hosts // 2)])
    most = sorted(order[len(few):])
    if len(few) == len(most) and 0 in few:
        few, most = most, few
    heals, after = r.random() < 0.25, r.randint(300, 6000)
    what = f"seed {seed}: {few} from {most} after {after} packets" + (", heals" if heals else "")
    status, said = train(hosts, between(few, most), after, lasts=int(heals), silent=10 if heals else 2, BANYAN_DEBUG="info")
    blamed = {int(k): (int(b), words) for k, b, words in
              reversed(re.findall(r"rank (\d+): info: communicator 1 failed: rank (\d+) (.*)", said))}  # the first of each
    wrong = []
    if status != {h: int(not heals and h in few) for h in range(hosts)}:
        wrong.append(f"ended with {status}")
    if heals and blamed:
        wrong.append(f"blamed {blamed}")
    if not heals:
        wrong += [f"rank {h} blames {blamed.get(h)}" for h in most if blamed.get(h, (-1,))[0] not in few]
        if len({blamed.get(h) for h in most}) != 1:
            wrong.append(f"not alike: {blamed}")
        wrong += [f"rank {h} does not say that it is cut off" for h in few if not re.search(f"rank {h} is cut off from {len(most)} of {hosts}", said)]
    accuracy = [float(a) for a in re.findall(r"test accuracy ([\d.]+)", said)]
    if not accuracy or min(accuracy) < 0.94:
        wrong.append(f"accuracy {accuracy}")
    return what, "; ".join(wrong), said


def campaign(rounds, seed):
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for what, wrong, said in pool.map(random_cut, range(seed, seed + rounds)):
            failed += bool(wrong)
            print(f"cut {what}: {'FAILED: ' + wrong if wrong else 'ok'}", flush=True)
            if wrong:
                print(said, file=sys.stderr, flush=True)
    print(f"{rounds} rounds, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    probe = subprocess.run([CLUSTER, "--probe"], capture_output=True, text=True)
    if probe.returncode == 77:
        print(probe.stderr.strip())
        sys.exit(77)
    if ROUNDS:
        sys.exit(campaign(int(ROUNDS[0]), int(ROUNDS[1])))
    unittest.main(argv=sys.argv[:1])
