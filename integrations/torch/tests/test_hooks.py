# SPDX-License-Identifier: BSD-3-Clause
"""Hooks with codecs: they train, keep what they lose, and go through checkpoints."""
import pytest
import torch
import torch.distributed as dist
from torch import nn

import banyan_torch
import common
from banyan_torch import hooks
from test_backend import losses, model


def test_rules():
    assert hooks._rules("int8") == [("*", [], "int8", "")]
    assert hooks._rules("topk:delta=0.01,force=1") == [("*", [], "topk:delta=0.01,force=1", "")]
    first, second = hooks._rules("fc*:>=16384:<99999=int8@ring; *=bf16")
    assert first[0] == "fc*" and [n for _, n in first[1]] == [16384, 99999] and first[2:] == ("int8", "ring")
    assert second == ("*", [], "bf16", "")
    with pytest.raises(ValueError, match="no rule"):
        hooks._rules("int8;bf16")


def hooked(rules, **settings):
    net = nn.parallel.DistributedDataParallel(model(), **settings)
    mine = banyan_torch.hook(rules, net)
    net.register_comm_hook(None, mine)
    return net, mine


def trains(rules, saves):
    plain = losses(nn.parallel.DistributedDataParallel(model()), 20)
    net, mine = hooked(rules, bucket_cap_mb=.2)            # several buckets, which DDP makes anew
    found = losses(net, 20)
    stats = mine.stats()
    assert abs(found[-1] - plain[-1]) < .1, (found, plain)
    assert stats["steps"] == 20 and stats["gradient_bytes"] == 20 * 4 * sum(p.numel() for p in net.parameters())
    assert stats["sent_bytes"] * saves < 2 * stats["gradient_bytes"], stats   # each is sent and fetched
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    root = weights.clone()
    dist.broadcast(root, 0)
    assert torch.equal(weights, root)


@pytest.mark.parametrize("rules, saves", [("int8:force=1", 3.5), ("*:>=4096=int8:force=1;*=bf16:force=1", 3),
                                          ("topk:delta=0.1,force=1", 3.5), ("none", .9),
                                          ("powersgd:rank=4,force=1", 3.5),
                                          ("auto:like=int8,from=int8,force=1", 3.5)])
def test_training(rules, saves):
    common.run(trains, 2, rules, saves)


def residuals_survive():
    """inputs + old residuals = result + new residuals, over ranks, also where DDP makes its buckets anew."""
    net, mine = hooked("topk:delta=0.05,force=1", bucket_cap_mb=.2)
    generator = torch.Generator().manual_seed(dist.get_rank())
    given = got = 0
    for _ in range(4):
        net.zero_grad()
        with net.no_sync():
            x = torch.randn(16, 20, generator=generator)
            net(x).square().sum().backward()
        given = given + torch.cat([p.grad.flatten() for p in net.parameters()])
        net.zero_grad()
        net(x).square().sum().backward()
        got = got + dist.get_world_size() * torch.cat([p.grad.flatten() for p in net.parameters()])
    kept = torch.zeros_like(got)
    starts = hooks._starts([(name.removeprefix("module."), p.numel()) for name, p in net.named_parameters()])
    for members, (state, _) in mine._states.items():
        for name, at in hooks._starts(members).items():
            n = dict(members)[name]
            kept[starts[name]:starts[name] + n] += state.residual()[at:at + n]
    dist.all_reduce(given)
    dist.all_reduce(kept)
    assert torch.allclose(given, got + kept, rtol=1e-3, atol=1e-2 * given.abs().max().item())
    assert sum(n for members in mine._states for _, n in members) == got.numel()   # the old ones are gone


def test_residuals_survive_new_buckets():
    common.run(residuals_survive, 2)


def checkpoint():
    net, mine = hooked("topk:delta=0.1,force=1")
    losses(net, 5)
    saved = {"net": {k: v.clone() for k, v in net.state_dict().items()}, "hook": mine.state_dict()}
    wanted = losses(net, 5)
    other, its = hooked("topk:delta=0.1,force=1")
    other.load_state_dict(saved["net"])
    its.load_state_dict(saved["hook"])
    for piece, again in zip(saved["hook"]["pieces"], its.state_dict()["pieces"], strict=True):
        assert piece["members"] == again["members"] and torch.equal(piece["state"], again["state"])
    found = losses(other, 5)                               # in DDP's first buckets, so with other rounding
    assert max(abs(a - b) for a, b in zip(found, wanted)) < 5e-3, (found, wanted)


def test_checkpoint():
    common.run(checkpoint, 2)


def wrong_group():
    net = nn.parallel.DistributedDataParallel(model())
    net.register_comm_hook(None, banyan_torch.hook("int8"))
    with pytest.raises(TypeError, match="init_process_group"):
        losses(net, 1)


def test_another_backend_is_refused():
    common.run(wrong_group, 1, backend="gloo")


def adapts():
    """Accordion's levels follow the norms of rank 0's gradients, and residuals stay with their parameters."""
    net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=.2)
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    mine = banyan_torch.accordion(net, optimizer, "none", "topk:delta=0.1,force=1", interval=2, min_count=1000)
    net.register_comm_hook(None, mine)
    big = [name for name, p in net.module.named_parameters() if p.numel() >= 1000]

    def steps(n, scale=1.0):
        for _ in range(n):
            net.zero_grad()
            (net(torch.ones(4, 20)) * scale).sum().backward()

    def much():
        return sorted(name for name, codec in mine.codecs().items() if codec != "none")
    steps(2)
    assert much() == []                                    # the first decision has no norm before it
    steps(2)
    assert much() == sorted(big) and len(big) == 3         # the same gradients again
    steps(2, 10.0)
    assert much() == []                                    # they have grown
    steps(2, 10.0)
    assert much() == sorted(big)
    steps(1, 10.0)
    kept = {m: s.residual().clone() for m, (s, _) in mine._states.items()}
    assert any(r.abs().max() > 0 for r in kept.values())
    saved = mine.state_dict()
    optimizer.param_groups[0]["lr"] = 0.1
    steps(1, 10.0)
    assert much() == []                                    # the learning rate has dropped
    other = banyan_torch.accordion(net, optimizer, "none", "topk:delta=0.1,force=1", interval=2, min_count=1000)
    other.load_state_dict(saved)
    again = other.state_dict()
    assert torch.equal(again["accordion"], saved["accordion"])
    for piece in again["pieces"]:
        assert torch.equal(other._states[tuple(map(tuple, piece["members"]))][0].residual(),
                           kept[tuple(map(tuple, piece["members"]))])
    other._start()                                         # collective
    assert sorted(n for n, codec in other.codecs().items() if codec != "none") == sorted(big)


def test_accordion():
    common.run(adapts, 2)


def spread(net, old):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    if old:
        return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def fsdp(rules, old, error):
    plain = losses(spread(model(), old), 15)
    net = spread(model(), old)
    mine = banyan_torch.hook(rules)
    mine.attach(net)
    found = losses(net, 15)
    stats = mine.stats()
    assert abs(found[-1] - plain[-1]) <= error, (found, plain)
    assert stats["steps"] == 15 and stats["gradient_bytes"] >= 15 * 4 * sum(p.numel() for p in model().parameters())
    saved = mine.state_dict()
    again = banyan_torch.hook(rules)
    again.load_state_dict(saved)
    assert [p["members"] for p in again.state_dict()["pieces"]] == [p["members"] for p in saved["pieces"]]
    assert rules == "none" or len(saved["pieces"]) == (1 if old else 3)


@pytest.mark.parametrize("old", [False, True], ids=["fsdp2", "fsdp1"])
@pytest.mark.parametrize("rules, error", [("none", 1e-5), ("int8:force=1", .02), ("topk:delta=0.2,force=1", .1)])
def test_fsdp(rules, error, old):
    common.run(fsdp, 2, rules, old, error)


def replicated(rules, error):
    """Two replicas of two shards each: the same losses as FSDP's own second sum."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))

    def sharded(mesh):
        net = model()
        for layer in net[0], net[2]:
            fully_shard(layer, mesh=mesh)
        return fully_shard(net, mesh=mesh)
    plain = losses(sharded(mesh), 15)
    net = sharded(mesh["shards"])
    mine, replicas = banyan_torch.hook(rules), mesh["replicas"].get_group()
    with pytest.raises(ValueError, match="FSDP itself sums over the replicas"):
        banyan_torch.hook(rules).attach(sharded(mesh), replicas=replicas)
    for wrong in mesh["shards"], mesh["shards"].get_group(), dist.group.WORLD:
        with pytest.raises(ValueError, match="may share itself alone"):
            banyan_torch.hook(rules).attach(net, replicas=wrong)
    mine.attach(net, replicas=mesh["replicas"])
    found = losses(net, 15)
    assert all(abs(a - b) <= error for a, b in zip(found, plain)), (found, plain)
    kept = [] if rules == "none" else ["0/replicas", "2/replicas", "root/replicas"]
    assert sorted(name for ((name, _),) in mine._states) == kept
    for parameter in net.parameters():
        root = parameter.to_local().detach().clone()
        dist.broadcast(root, group_src=0, group=replicas)
        assert torch.equal(root, parameter.to_local())
    elements = torch.tensor(sum(p.to_local().numel() for p in net.parameters()))
    dist.all_reduce(elements, dist.ReduceOp.MAX)           # FSDP pads the others' shards to as many
    assert mine.stats()["steps"] == 15 and mine.stats()["gradient_bytes"] == 15 * 4 * (2 + 1) * elements


@pytest.mark.parametrize("rules, error", [("none", 1e-5), ("*/replicas=int8:force=1;*=none", .02)])
def test_replicas(rules, error):
    common.run(replicated, 4, rules, error)


def adapts_units(old):
    """Accordion over FSDP: the levels of units follow rank 0's gradients, the first step finds the units."""
    net = spread(model(), old)
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    mine = banyan_torch.accordion(net, optimizer, "none", "topk:delta=0.1,force=1", interval=2, min_count=1000)
    mine.attach(net)
    units = ["root"] if old else ["0", "2", "4"]

    def steps(n, scale=1.0):
        for _ in range(n):
            net.zero_grad()
            (net(torch.ones(4, 20)) * scale).sum().backward()

    def much():
        return sorted(name for name, codec in mine.codecs().items() if codec != "none")
    steps(1)
    assert mine.codecs() == {}
    steps(5)                                               # decisions of steps 3 and 5, as 6 begins
    assert sorted(mine.codecs()) == sorted(units) and much() == sorted(units)
    saved = mine.state_dict()
    steps(2, 10.0)                                         # of 7, as 8 begins
    assert much() == []                                    # 7 has grown
    other = banyan_torch.accordion(net, optimizer, "none", "topk:delta=0.1,force=1", interval=2, min_count=1000)
    other.load_state_dict(saved)
    net = spread(model(), old)
    other.attach(net)
    steps(1)                                               # its first step begins with what was saved
    assert sorted(name for name, codec in other.codecs().items() if codec != "none") == sorted(units)


@pytest.mark.parametrize("old", [False, True], ids=["fsdp2", "fsdp1"])
def test_accordion_of_fsdp(old):
    common.run(adapts_units, 2, old)


def adapts_units_that_come_later():
    """A unit that the first steps do not use is watched once it is used."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    net = nn.ModuleList(nn.Linear(40, 40) for _ in range(2))
    for layer in net:
        fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    mine = banyan_torch.accordion(net, optimizer, "none", "topk:delta=0.1,force=1", interval=2, min_count=100)
    mine.attach(net)

    def steps(n, *layers):
        for _ in range(n):
            net.zero_grad()
            x = torch.ones(4, 40)
            for layer in layers:
                x = net[layer](x)
            x.sum().backward()
    steps(3, 0)
    assert sorted(mine.codecs()) == ["0"]
    steps(8, 0, 1)
    assert sorted(mine.codecs()) == ["0", "1"] and "none" not in mine.codecs().values()
    saved = mine.state_dict()
    saved.pop("counts")                                    # as older states are
    mine.load_state_dict(saved)
    assert sorted(mine.codecs()) == ["0", "1"]


def test_accordion_of_units_that_come_later():
    common.run(adapts_units_that_come_later, 2)


def replicas_need_fsdp2():
    with pytest.raises(TypeError, match="use fully_shard"):
        banyan_torch.hook("int8").attach(spread(model(), True), replicas=dist.group.WORLD)


def test_replicas_need_fsdp2():
    common.run(replicas_need_fsdp2, 2)


def powersgd_takes_no_units():
    net = spread(model(), False)
    banyan_torch.hook("powersgd:rank=2,force=1").attach(net)
    with pytest.raises(RuntimeError, match="powersgd"):
        losses(net, 1)


def test_powersgd_takes_no_units():
    common.run(powersgd_takes_no_units, 2)


def test_attach_needs_fsdp():
    with pytest.raises(TypeError, match="register_comm_hook"):
        banyan_torch.hook("int8").attach(model())
