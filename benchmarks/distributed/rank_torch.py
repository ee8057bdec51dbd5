"""A rank of PyTorch: DistributedDataParallel over Gloo, the eager model of benchmarks/peers."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
import peer_torch
import worker
import workloads

MODELS = pathlib.Path.home() / ".cache/onnxgrad/peers/models"


class Model(torch.nn.Module):
    """The functional model of a peer, with its weights as parameters."""

    def __init__(self, peer: peer_torch.Peer) -> None:
        super().__init__()
        for name in list(peer.weights):
            parameter = torch.nn.Parameter(peer.weights[name].detach().clone())
            self.register_parameter(name, parameter)
            peer.weights[name] = parameter
        peer.make_optimizer()
        self.peer_loss = peer.loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.peer_loss(x, y)


def main() -> None:
    name, steps = sys.argv[1], int(sys.argv[2])
    workload = workloads.WORKLOADS[name]
    size = int(os.environ.get("WORLD_SIZE", "1"))
    inputs = np.load(MODELS / f"{name}.x.npy")[: workload.batch]
    targets = np.load(MODELS / f"{name}.y.npy")[: workload.batch]
    peer = peer_torch.Peer(worker.Task("torch-eager", name, 1, MODELS, inputs, targets))
    model: torch.nn.Module = Model(peer)
    if size > 1:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)

    def step() -> None:
        model(x, y).backward()
        peer.optimizer.step()
        peer.optimizer.zero_grad()

    for _ in range(3):  # the buckets are rearranged after the first
        step()
    best = 1e9
    for _ in range(3):
        if size > 1:
            dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        best = min(best, (time.perf_counter() - begin) / steps)
    if int(os.environ.get("RANK", "0")) == 0:
        print("RESULT", json.dumps({"step_ms": best * 1e3}), flush=True)
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
