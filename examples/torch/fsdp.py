# SPDX-License-Identifier: BSD-3-Clause
"""A small GPT that learns to write banyan's documents, with its parameters spread over the ranks (FSDP2), or copied to
each (--ddp), which gives the same losses.

    torchrun --nproc-per-node=2 fsdp.py
"""
import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"
WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 64, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2)
                   for part in self.qkv(self.before(x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.after(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))

    def forward(self, text):
        return self.head(self.blocks(self.letters(text) + self.places.weight[:text.shape[1]]))


def spread(net):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    dist.init_process_group("banyan")
    torch.manual_seed(0)
    net = DistributedDataParallel(GPT()) if args.ddp else spread(GPT())
    text = torch.tensor(list(b"".join(p.read_bytes() for p in sorted(DOCS.glob("*.md")))))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(args.steps):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=generator).tolist()
        sample = torch.stack([text[at:at + LENGTH + 1] for at in starts])
        loss = nn.functional.cross_entropy(net(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1} loss {mean.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
