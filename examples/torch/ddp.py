# SPDX-License-Identifier: BSD-3-Clause
"""Handwritten digits, data-parallel: each rank has its share of the data, gradients are means over the ranks.

    torchrun --nproc-per-node=2 ddp.py
    torchrun --nproc-per-node=2 ddp.py --hook "*:>=4096=int8;*=bf16"     # fewer bytes, for slow links
"""
import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DIGITS = pathlib.Path(__file__).resolve().parent.parent / "train_digits" / "digits.csv"


def digits():
    """Pixels and labels: of training and of test."""
    lines = DIGITS.read_text(encoding="utf-8").splitlines()
    rows = torch.tensor([[float(x) for x in line.split(",")] for line in lines if line[:1].isdigit()])
    x, y = rows[:, :-1] / 16, rows[:, -1].long()
    cut = len(x) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hook", help="codec, or rules of codecs")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    dist.init_process_group("banyan")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, (test_x, test_y) = digits()
    x, y = (part[rank::size] for part in train)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    hook = None
    if args.hook:
        import banyan_torch
        hook = banyan_torch.hook(args.hook, net)
        net.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=.1, momentum=.9)
    batches = len(train[0]) // size // 32                  # the same on all ranks
    for _ in range(args.epochs):
        for i in range(batches):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[32 * i:32 * (i + 1)]), y[32 * i:32 * (i + 1)]).backward()
            optimizer.step()
    with torch.no_grad():
        right = (net(test_x).argmax(1) == test_y).float().mean().item()
    if rank == 0:
        print(f"accuracy {right:.4f}" + (f" {hook.stats()}" if hook else ""))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
