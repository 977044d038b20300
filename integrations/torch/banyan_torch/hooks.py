# SPDX-License-Identifier: BSD-3-Clause
"""Communication hooks of DistributedDataParallel: gradients travel by banyan's codecs."""
import fnmatch
import operator
import re

import torch
import torch.distributed as dist

_TESTS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_RULE = re.compile(r"\s*([^:=;]+)((?::(?:<=|>=|<|>)\d+)*)=([^@]*)(?:@(.+))?")


def _rules(text):
    """[(pattern, [(test, elements)], codec, schedule)] of "*:>=16384=int8;*=bf16", or of one codec for all."""
    found = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        match = _RULE.fullmatch(rule)
        if not match:
            if ";" in text.strip("; "):
                raise ValueError(f"hook: {rule!r} is no rule; one is pattern[:>=elements]=codec[@schedule]")
            return [("*", [], rule, "")]
        tests = [(_TESTS[sign], int(n)) for sign, n in re.findall(r":(<=|>=|<|>)(\d+)", match[2])]
        found.append((match[1].strip(), tests, match[3].strip(), match[4] or ""))
    return found


class Hook:
    """A hook for register_comm_hook(None, hook); made by hook()."""

    def __init__(self, rules, module=None, group=None, seed=0):
        from . import _native
        self.__name__ = self.__qualname__ = f"banyan:{rules}"
        self.rules, self.seed = rules, seed
        self._parsed = _rules(rules)
        self._native = _native()
        self._group = group
        self._names = {}
        for name, parameter in module.named_parameters() if module is not None else ():
            self._names[id(parameter)] = name.removeprefix("module.")
        self._states = {}    # members of a piece -> its state, and the names that have not left it
        self._layouts = {}   # what a bucket consists of -> its pieces
        self._before = self._bytes = self._steps = 0

    def __call__(self, _, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        backend = self._backend()
        if bucket.index() == 0 and self._steps == 0:
            self._before = backend.stats()["wire_bytes"]
        buffer = bucket.buffer()
        self._bytes += buffer.numel() * buffer.element_size()
        self._steps += bucket.is_last()
        pieces = [(buffer[start:start + n], codec, schedule, state, shape)
                  for start, n, codec, schedule, state, shape in self._pieces(bucket)]
        return backend.average(pieces).get_future().then(lambda _: buffer)

    def _backend(self):
        group = self._group or dist.distributed_c10d._get_default_group()
        backend = group._get_backend(torch.device("cpu"))
        if not isinstance(backend, self._native.Backend):
            raise TypeError(f"hook: the process group is of {backend.name()!r}; make one with "
                            "init_process_group(\"banyan\")")
        return backend

    def _name(self, parameter):
        return self._names.setdefault(id(parameter), f"parameter{len(self._names)}")

    def _choose(self, name, elements):
        for pattern, tests, codec, schedule in self._parsed:
            if fnmatch.fnmatchcase(name, pattern) and all(test(elements, n) for test, n in tests):
                return codec or "none", schedule
        return "none", ""

    def _pieces(self, bucket):
        """Neighbours in a bucket that travel by the same codec are one piece."""
        parameters = bucket.parameters()
        layout = tuple((self._name(p), p.numel()) for p in parameters)
        if layout not in self._layouts:
            runs = []
            for (name, n), parameter in zip(layout, parameters):
                choice = self._choose(name, n)
                if not runs or runs[-1][0] != choice:
                    runs.append((choice, [], []))
                runs[-1][1].append((name, n))
                runs[-1][2].append(list(parameter.shape))
            self._layouts[layout] = self._place(runs)
        return self._layouts[layout]

    def _place(self, runs):
        pieces, start = [], 0
        for (codec, schedule), members, shapes in runs:
            n = sum(count for _, count in members)
            state = None if codec == "none" else self._state(tuple(members), n)
            pieces.append((start, n, codec, schedule, state, shapes[0] if len(shapes) == 1 else []))
            start += n
        return pieces

    def _state(self, members, n):
        """The state of a piece. Parameters that were in other pieces bring their residuals along: DDP makes
        its buckets anew after the first step."""
        if members in self._states:
            return self._states[members][0]
        state = self._native.CodecState(n, self.seed)
        starts = _starts(members)
        for others, (other, left) in list(self._states.items()):
            for name, at in _starts(others).items():
                if name in starts and name in left:
                    state.take(starts[name], other, at, dict(others)[name])
                    left.discard(name)
            if not left:
                del self._states[others]
        self._states[members] = (state, {name for name, _ in members})
        return state

    def scale(self, factor):
        """For a change of the learning rate: factor is the old one divided by the new one."""
        for state, _ in self._states.values():
            state.scale(factor)

    def stats(self):
        """Steps and bytes of gradients so far, and the bytes that this rank's group sent meanwhile."""
        sent = self._backend().stats()["wire_bytes"] - self._before if self._bytes else 0
        return {"steps": self._steps, "gradient_bytes": self._bytes, "sent_bytes": sent}

    def state_dict(self):
        """What a checkpoint keeps: each rank saves its own. Names are the module's, so give the hook its module."""
        return {"rules": self.rules, "pieces": [{"members": list(members), "state": state.save()}
                                                for members, (state, _) in self._states.items()]}

    def load_state_dict(self, saved):
        """On the same rank of as many ranks, before the first step."""
        self._states, self._layouts = {}, {}
        for piece in saved["pieces"]:
            members = tuple((name, n) for name, n in piece["members"])
            state = self._native.CodecState(sum(n for _, n in members), self.seed)
            state.load(piece["state"])
            self._states[members] = (state, {name for name, _ in members})


def _starts(members):
    """Where each parameter begins in a piece."""
    starts, at = {}, 0
    for name, n in members:
        starts[name] = at
        at += n
    return starts


def hook(rules, module=None, group=None, seed=0):
    """A communication hook for DistributedDataParallel that averages gradients by banyan's codecs.

        net = DistributedDataParallel(model)
        net.register_comm_hook(None, banyan_torch.hook("int8"))

    rules: a codec for all gradients ("int8", "topk:ratio=0.01"), or rules by parameter name and number of
    elements, of which the first that matches counts: "*:>=16384=int8;*=bf16". module: gives the names to rules and
    checkpoints. seed: the same on all ranks, for codecs that draw at random."""
    return Hook(rules, module, group, seed)
