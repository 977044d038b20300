# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own tests of torch.distributed (torch.testing._internal.distributed.distributed_test), on banyan.

    pytorch_suite.py [--as gloo|banyan] [--ranks N] [--filter TEXT] [--plain]

--as gloo: banyan under gloo's name, so that the tests run which are gated to gloo. --plain: gloo itself.
Prints a line for each test and, at the end, the numbers of those that passed, failed and were skipped.
"""
import argparse
import os
import sys
import tempfile
import unittest

# Names of tests that need a GPU, or that fail for a reason that lies in PyTorch:
GPU = ("cuda", "nccl", "gpu")
NOT_OURS = (
    # It expects the name of a built-in backend in DDP's log (torch writes "custom" for a plug-in), or gloo's threads.
    "test_ddp_logging_data_cpu",
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as", dest="name", default="banyan", choices=("gloo", "banyan"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--filter", default="")
    parser.add_argument("--plain", action="store_true")
    return parser.parse_args()


def pose(name):
    """Gives banyan the place of the backend `name`."""
    import torch.distributed as dist
    import banyan_torch
    if name == "banyan":
        banyan_torch.register()
        return
    dist.Backend._ensure_backend_registered(name)
    entry = dist.Backend._plugins[name.upper()]

    def create(opts, options=None):
        return banyan_torch.create(opts, banyan_torch._native().Options(opts.timeout, name))
    dist.Backend._plugins[name.upper()] = type(entry)(create, True)


def suite(args):
    import torch
    from torch.testing._internal import common_distributed
    torch.set_num_threads(1)
    for kind in ("plugin", "ddp", "subgroup"):
        common_distributed.DistTestCases.backend_feature[kind].add("banyan")
    from torch.testing._internal.distributed import distributed_test
    common_distributed.get_timeout = lambda _: 90

    class TestDist(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # The children inherit torch: to load it takes seconds.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    names = [n for n in unittest.TestLoader().getTestCaseNames(TestDist)
             if args.filter in n and not any(word in n for word in GPU)]
    if not args.plain:
        names = [n for n in names if n not in NOT_OURS]
    return unittest.TestSuite(TestDist(n) for n in names)


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "barrier"))
        os.makedirs(os.path.join(folder, "test_dir"))
        os.environ.update(BACKEND=args.name, WORLD_SIZE=str(args.ranks), TEMP_DIR=folder,
                          OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        if not args.plain:
            pose(args.name)
        result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite(args))
    wrong, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"passed {result.testsRun - wrong - skipped} failed {wrong} skipped {skipped}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
