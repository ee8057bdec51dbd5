"""Times of PyTorch and JAX for the workloads, where they are installed.

Variants: eager; graph (a whole step with a fused optimizer, captured and replayed, batches copied
into it; -cl: channels last); graph-epoch (all steps of an epoch in one graph); jax-jit; jax-scan
(an epoch in a call).
"""

from __future__ import annotations

import functools
import gc
import os
from pathlib import Path
from typing import Any

from tasks import TYPES, Log, task, timed

_SLICE_S = 0.12
_IMAGES = ("w4", "w5", "w8")
_SMALL = ("w1", "w2")
_ORDER = (
    *("w3_mlp784", "w6_bert_base_layer", "w5_resnet18", "w2_mlp", "w1_linreg2", "w6_bert_tiny"),
    *("w7_causal_lm", "w8_mobilenetv2", "w4_cnn"),
)


def run(name: str, root: Path, out: Path) -> dict[str, Any]:
    """Measure "torch" or "jax"; nothing where it is absent."""
    log = Log(out / "speed" / f"anchors-{name}.jsonl", float(os.environ["ONNXGRAD_CHECK_ENDS"]))
    try:
        version = _torch(log, root, out) if name == "torch" else _jax(log, root, out)
    except ImportError:
        return {"absent": name}
    failed = [row for row in log.rows if "error" in row]
    return {
        "version": version,
        "measured": len(log.rows) - len(failed),
        "failed": [f"{row['workload']} {row['variant']}: {row['error']}" for row in failed][:8],
        "goes on": log.goes_on,
    }


class _OnCard:
    """Changes peer_torch.Peer: weights and batches are on the card, and one optimizer is fused."""

    def copy_weights(self, one: Any) -> None:
        super().copy_weights(one)  # type: ignore[misc]
        for group, is_trained in ((self.weights, True), (self.statistics, False)):
            for name, tensor in group.items():
                group[name] = tensor.detach().to("cuda").requires_grad_(is_trained)

    weights: dict[str, Any]
    statistics: dict[str, Any]

    def prepare(self, kind: str) -> None:
        """Move the batches to the card, and compute the loss there in the type."""
        import torch

        torch.set_float32_matmul_precision("highest" if kind == "float32" else "high")
        torch.backends.cudnn.allow_tf32 = kind != "float32"
        torch.backends.cudnn.benchmark = True
        self.torch = torch
        self.count = 0
        is_class = self.workload.loss == "ce"
        there = [(x.to("cuda"), y.to("cuda")) for x, y in self.batches]
        self.batches = [(x, y.flatten() if is_class else y) for x, y in there]
        functional = torch.nn.functional
        criterion = functional.cross_entropy if is_class else functional.mse_loss
        forward = self.forward()

        def loss(x: Any, y: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16, enabled=kind == "bf16"):
                return criterion(forward(x), y)

        self.loss = loss

    workload: Any
    batches: list[Any]
    forward: Any

    def make_optimizer(self) -> None:
        import torch

        settings, weights = self.workload.optimizer, list(self.weights.values())
        if settings.name == "sgd":
            self.optimizer: Any = torch.optim.SGD(
                weights,
                lr=settings.rate,
                momentum=settings.momentum,
                nesterov=settings.nesterov,
                fused=True,
            )
            return
        kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
        self.optimizer = kind(
            weights,
            lr=settings.rate,
            eps=1e-8,
            weight_decay=settings.decay,
            fused=True,
            capturable=True,
        )

    def step(self, x: Any, y: Any) -> Any:
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def next_batch(self) -> Any:
        self.count = (self.count + 1) % len(self.batches)
        return self.batches[self.count]

    def warm_up(self) -> None:
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(4):
                self.step(*self.next_batch())
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()

    def eager(self) -> float:
        def run(steps: int) -> None:
            for _ in range(steps):
                self.step(*self.next_batch())

        return timed(run, self.torch.cuda.synchronize, _SLICE_S)

    def graph(self) -> float:
        cuda = self.torch.cuda
        self.warm_up()
        x, y = (tensor.clone() for tensor in self.batches[0])
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.step(x, y)

        def run(steps: int) -> None:
            for _ in range(steps):
                batch = self.next_batch()
                x.copy_(batch[0], non_blocking=True)
                y.copy_(batch[1], non_blocking=True)
                graph.replay()

        return timed(run, cuda.synchronize, _SLICE_S)

    def graph_epoch(self) -> float:
        cuda = self.torch.cuda
        self.warm_up()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            for batch in self.batches:
                self.step(*batch)

        def run(steps: int) -> None:
            for _ in range(steps):
                graph.replay()

        return timed(run, cuda.synchronize, _SLICE_S) / len(self.batches)


def _torch(log: Log, root: Path, out: Path) -> str:
    import torch

    if not torch.cuda.is_available():
        raise ImportError("this PyTorch uses no card")
    import peer_torch

    torch.set_num_interop_threads(1)
    torch.set_num_interop_threads = lambda _count: None  # a process may call it once
    case_type = type("Case", (_OnCard, peer_torch.Peer), {})

    def measure(name: str, variant: str, kind: str) -> dict[str, Any]:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        is_channels_last = variant.endswith("-cl")
        case = case_type(task(name, "torch-cl" if is_channels_last else "torch", root, out))
        case.prepare(kind)
        us = getattr(case, variant.removesuffix("-cl").replace("-", "_"))()
        return {"us": us, "peak_mb": (torch.cuda.max_memory_allocated() - before) / 1e6}

    for kind in TYPES:
        for name in _ORDER:
            if kind != "float32" and name.startswith((*_SMALL, "w4")):
                continue
            variants = ["graph-cl"] if name.startswith(_IMAGES) else []
            variants += ["graph"] if kind == "float32" or not variants else []
            variants += ["eager"] if kind != "tf32" else []
            variants += ["graph-epoch"] if name.startswith(_SMALL) else []
            for variant in variants:
                key = (name, variant, kind)
                log.add(key, 4, functools.partial(measure, *key))
    return str(torch.__version__)


def _jax(log: Log, root: Path, out: Path) -> str:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import peer_jax

    if jax.default_backend() != "gpu":
        raise ImportError("this JAX uses no card")

    def measure(name: str, variant: str, kind: str) -> dict[str, Any]:
        precision = "highest" if kind == "float32" else "tensorfloat32"
        jax.config.update("jax_default_matmul_precision", precision)
        jax.clear_caches()
        peer = peer_jax.Peer(task(name, variant, root, out))
        peer.first()

        def run(steps: int) -> None:
            for index in range(steps):
                data = peer.data if peer.scan else peer.data[index % len(peer.data)]
                peer.state, peer.loss = peer.call(peer.state, data)

        def wait() -> None:
            jax.block_until_ready(peer.state)

        us = timed(run, wait, _SLICE_S)
        return {"us": us / (peer.workload.steps_per_epoch if peer.scan else 1)}

    for kind in ("float32", "tf32"):
        for name in _ORDER:
            if kind == "tf32" and name.startswith((*_SMALL, "w4")):
                continue
            variants = ["jax-scan"] if name.startswith((*_SMALL, "w3")) else ["jax-jit"]
            for variant in variants:
                key = (name, variant, kind)
                log.add(key, 8, functools.partial(measure, *key))
    return str(jax.__version__)
