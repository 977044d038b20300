# SPDX-License-Identifier: BSD-3-Clause
"""A small GPT trained by DistributedDataParallel on two hosts (network namespaces), by gloo and by banyan with codecs: test
loss against seconds. Needs root, torch and banyan-torch (scripts/test-frameworks); run it with the Python that has them.

    torch_train.py --rates 100,1000 --seconds 40 --json out.json --svg perf/torch_train

With --batch 1 steps are as wire-bound as those of users whose processors are faster than two cores that both hosts share.

PyTorch's own PowerSGD hook is not among the methods: over gloo it hangs or fails (docs/pytorch.md). Each method trains for
--seconds, in which evaluations do not count. --svg PREFIX draws PREFIX_RATEmbit.svg, without methods that force a codec.
Prints steps a second and the time to gloo's last loss."""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
METHODS = {  # backend, and rules of a hook
    "gloo": ("gloo", None),
    "banyan": ("banyan", None),
    "banyan, int8": ("banyan", "int8"),
    "banyan, top-k 1 %": ("banyan", "*:>=1024=topk:delta=0.01;*=bf16"),
    "banyan, PowerSGD": ("banyan", "*:>=16384=powersgd:rank=4;*=bf16"),
}
WARM_UP = 3  # steps before the clock starts: buckets, connections, plans


def rank_main(args):
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name != "lo")
    import torch
    import torch.distributed as dist
    sys.path.insert(0, str(HERE.parent / "examples" / "torch"))
    import fsdp as model  # the example's model, wider
    model.WIDTH, model.LAYERS, model.BATCH = args.width, args.layers, args.batch
    backend, rules = METHODS[args.rank]
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    torch.manual_seed(args.seed)
    net = torch.nn.parallel.DistributedDataParallel(model.GPT())
    if rules:
        import banyan_torch
        net.register_comm_hook(None, banyan_torch.hook(rules, net))
    text = torch.tensor(list(b"".join(p.read_bytes() for p in sorted(model.DOCS.glob("*.md")))))
    learn, test = text[:-len(text) // 10], text[-len(text) // 10:]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def loss_of(content, batch, generator):
        starts = torch.randint(len(content) - model.LENGTH - 1, (batch,), generator=generator).tolist()
        sample = torch.stack([content[at:at + model.LENGTH + 1] for at in starts])
        return torch.nn.functional.cross_entropy(net(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())

    def test_loss():
        with torch.no_grad(), net.no_sync():
            return loss_of(test, 64, torch.Generator().manual_seed(1)).item()
    generator = torch.Generator().manual_seed(1000 * args.seed + dist.get_rank())
    rows, seconds, step, begin = [], 0.0, -WARM_UP, time.perf_counter()
    while seconds < args.seconds:
        if step == 0:
            dist.barrier()
            seconds, begin = 0.0, time.perf_counter()
        optimizer.zero_grad()
        loss_of(learn, model.BATCH, generator).backward()
        optimizer.step()
        step += 1
        if step > 0 and step % args.every == 0:
            slowest = torch.tensor(seconds + time.perf_counter() - begin)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            seconds = slowest.item()
            rows.append({"step": step, "seconds": round(seconds, 4), "loss": round(test_loss(), 5)})
            dist.barrier()
            begin = time.perf_counter()
    if dist.get_rank() == 0:
        parameters = sum(p.numel() for p in net.parameters())
        pathlib.Path(args.out).write_text(json.dumps({"parameters": parameters, "rows": rows}), encoding="utf-8")
    dist.destroy_process_group()


def train(args, rate, method, seed):
    """What rank 0 found, or None: it did not end."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        command = [sys.executable, str(HERE.parent / "scripts" / "netns-cluster"), "--net", f"star:{rate}*2", "--timeout",
                   str(int(args.seconds) + 60), "--", sys.executable, __file__, "--rank", method, "--seed", str(seed), "--seconds",
                   str(args.seconds), "--every", str(args.every), "--width", str(args.width), "--layers", str(args.layers),
                   "--batch", str(args.batch), "--out", out]
        done = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore"), capture_output=True,
                              text=True, check=False)
        if done.returncode or not os.path.exists(out):
            print(f"{method}, {rate} Mbit/s: failed ({done.returncode})\n{done.stderr[-1500:]}", file=sys.stderr)
            return None
        return json.loads(pathlib.Path(out).read_text(encoding="utf-8"))


def reached(rows, loss):
    return next((r["seconds"] for r in rows if r["loss"] <= loss), None)


def summary(rate, found):
    """found: method -> runs of its seeds. Speed beside gloo's, and the time to gloo's last loss (within 1 %)."""
    def speed(runs):
        return statistics.median(run["rows"][-1]["step"] / run["rows"][-1]["seconds"] for run in runs)

    gloo = found.get("gloo")
    for method, runs in found.items():
        line = f"{rate:5} Mbit/s  {method:20} {speed(runs):7.2f} steps/s"
        if gloo:
            times = [reached(run["rows"], 1.01 * base["rows"][-1]["loss"]) for run, base in zip(runs, gloo)]
            late = "not reached" if None in times else f"{statistics.median(times):6.2f} s"
            line += f"  {speed(runs) / speed(gloo):6.2f} x gloo  gloo's last loss: {late}"
        print(f"{line}  last loss {statistics.median(run['rows'][-1]['loss'] for run in runs):.4f}", flush=True)


def plot(rows, rate, path):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.writelines(json.dumps(r) + "\n" for r in rows if r["rate"] == rate and "force" not in (METHODS[r["name"]][1] or ""))
        file.flush()
        subprocess.run([sys.executable, str(HERE.parent / "tools" / "banyan_plot"), file.name, "--x", "seconds", "--y", "loss",
                        "--xlabel", "seconds", "--ylabel", "test loss", "--title",
                        f"A small GPT on two hosts, {rate} Mbit/s between them", "-o", path], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100,1000", help="Mbit/s")
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by ;")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8, help="sequences of 64 letters a rank and step")
    parser.add_argument("--json")
    parser.add_argument("--svg")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args)
        return
    rows = []
    for rate in map(int, args.rates.split(",")):
        found = {}
        for seed in map(int, args.seeds.split(",")):
            for method in args.methods.split(";"):
                run = train(args, rate, method, seed)
                if run:
                    found.setdefault(method, []).append(run)
                    rows += [dict(r, name=method, rate=rate, seed=seed, parameters=run["parameters"]) for r in run["rows"]]
        summary(rate, found)
        if args.svg:
            first = args.seeds.split(",")[0]
            plot([r for r in rows if r["seed"] == int(first)], rate, f"{args.svg}_{rate}mbit.svg")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(r) + "\n" for r in rows)


if __name__ == "__main__":
    main()
