"""LoRA with onnxgrad beside PyTorch and PEFT: time of a step and memory of the process.

    build/interop/bin/python benchmarks/lora.py              # w6 (base), w7, 1 and 2 threads
    build/interop/bin/python benchmarks/lora.py w7_causal_lm --threads 2 --repeats 10
    .venv/bin/python benchmarks/lora.py --base int4          # packed weights beside float ones

Needs the environment of `make interop`. Workloads are those of benchmarks/peers, and bert_base: all
twelve layers of w6_bert_base_layer. Adapters of rank 8 on every linear layer but the head, which
stays frozen; AdamW. One process per system; they take turns, and the shortest run counts. Memory is
the largest resident set of the process, and what of it came after the imports.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
import measure  # noqa: E402
import report  # noqa: E402
import result_files  # noqa: E402
import worker  # noqa: E402
import workloads  # noqa: E402

RANK, ALPHA = 8, 16
_layer = workloads.WORKLOADS["w6_bert_base_layer"]
workloads.WORKLOADS["bert_base"] = dataclasses.replace(
    _layer,
    rows=16,
    repeats=3,
    transformer=dataclasses.replace(_layer.transformer, layers=12, vocabulary=30522),
)
NAMES = ("w6_bert_base_layer", "w7_causal_lm")


def peak_mb(process: int | str = "self") -> float:
    """The largest resident set of a process so far; ru_maxrss would count its parent's too."""
    lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


class Onnxgrad:
    """A session with `lora=`, stepped as the peer is; with `base` on a file that is packed."""

    def __init__(self, task: worker.Task, base: str = "") -> None:
        model = str(task.model_path)
        if base:
            packed = f"{model.removesuffix('.onnx')}_{base}.onnx"
            command = [sys.executable, "-m", "onnxgrad", "convert", model, "--overwrite"]
            subprocess.run([*command, "--quantize-weights", base, "-o", packed], check=True)
            model = packed
        import peer_onnxgrad

        import onnxgrad as og

        self.after_imports = peak_mb()
        self.version = og.__version__
        self.batches = task.batches()
        self.session = og.TrainingSession(
            model,
            peer_onnxgrad.make_loss(task.workload),
            peer_onnxgrad.make_optimizer(task.workload.optimizer),
            lora={"rank": RANK, "alpha": ALPHA},
            threads=task.threads,
            seed=0,
        )

    def step(self, x, y):
        return self.session.step({"X": x, self.session.target_name: y})

    def first(self) -> None:
        self.step(*self.batches[0])

    def reset(self) -> None:
        pass

    def run(self):
        return [float(self.step(x, y)) for x, y in self.batches]


class Peft:
    """The workload as modules of torch, adapted by PEFT."""

    def __init__(self, task: worker.Task) -> None:
        import peft
        import torch

        self.after_imports = peak_mb()
        self.version = f"{torch.__version__}, peft {peft.__version__}"
        torch.set_num_threads(task.threads)
        torch.set_num_interop_threads(1)
        torch.manual_seed(0)
        network = torch_network(task)
        targets = [
            name
            for name, module in network.named_modules()
            if isinstance(module, torch.nn.Linear) and name != "head"
        ]
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets)
        self.network = peft.get_peft_model(network, config)
        self.batches = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in task.batches()]
        settings = task.workload.optimizer
        self.optimizer = torch.optim.AdamW(
            [one for one in self.network.parameters() if one.requires_grad],
            lr=settings.rate,
            weight_decay=settings.decay,
            fused=True,
        )
        self.loss = torch.nn.functional.cross_entropy

    def step(self, x, y):
        scores = self.network(x)
        loss = self.loss(scores.flatten(0, -2), y.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    first = Onnxgrad.first
    reset = Onnxgrad.reset
    run = Onnxgrad.run


def torch_network(task: worker.Task):
    """The network of a workload; its linear layers are nn.Linear, as PEFT wants."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch import nn

    sizes, width = task.workload.transformer, task.workload.transformer.width

    def tensor(name):
        return torch.from_numpy(task.weights[name])

    def linear(name):
        layer = nn.Linear(*tensor(name + "_w").shape)
        layer.weight.data = tensor(name + "_w").t().contiguous()
        layer.bias.data = tensor(name + "_b").clone()
        return layer

    class Layer(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.q, self.k, self.v, self.o, self.f1, self.f2 = (
                linear(p + name) for name in ("q", "k", "v", "o", "f1", "f2")
            )
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

        def attention(self, x):
            def split(y):
                return y.view(-1, sizes.sequence, sizes.heads, width // sizes.heads).transpose(1, 2)

            mixed = F.scaled_dot_product_attention(
                split(self.q(x)), split(self.k(x)), split(self.v(x)), is_causal=sizes.causal
            )
            return self.o(mixed.transpose(1, 2).reshape(-1, sizes.sequence, width))

        def mlp(self, x):
            return self.f2(F.gelu(self.f1(x)))

        def forward(self, x):
            if sizes.causal:
                x = self.attention(self.ln1(x)) + x
                return self.mlp(self.ln2(x)) + x
            x = self.ln1(self.attention(x) + x)
            return self.ln2(self.mlp(x) + x)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            if sizes.vocabulary:
                self.emb = nn.Embedding.from_pretrained(tensor("emb"))
                self.pos = nn.Parameter(tensor("pos"))
            self.norm = nn.LayerNorm(width)
            self.layers = nn.ModuleList(Layer(f"l{i}_") for i in range(sizes.layers))
            self.head = nn.Linear(width, task.workload.outputs, bias=not sizes.causal)
            weight = tensor("FW")
            self.head.weight.data = weight.t().contiguous() if sizes.causal else weight

        def forward(self, x):
            if sizes.vocabulary:
                x = self.emb(x) + self.pos
                x = x if sizes.causal else self.norm(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x) if sizes.causal else x.mean(1))

    return Network().train()


def serve() -> None:
    """Run as one system's process, by the protocol of benchmarks/peers."""

    def make(task: worker.Task):
        if task.variant in ("onnxgrad", "peft"):
            peer = {"onnxgrad": Onnxgrad, "peft": Peft}[task.variant](task)
        else:
            peer = Onnxgrad(task, task.variant)
        peer.version = f"{peer.version}|{peer.after_imports:.0f}"
        return peer

    worker.main(make)


def systems_of(options) -> tuple[str, str]:
    """The two that are compared: with PEFT, or packed weights with float ones."""
    return (options.base, "onnxgrad") if options.base else ("onnxgrad", "peft")


def compare(folder: pathlib.Path, name: str, threads: int, repeats: int, options):
    """A table's row and the entries of a workload."""
    ready = {}
    systems = systems_of(options)
    first, second = systems
    for system in systems:
        python = options.python if system == "peft" else options.onnxgrad_python
        request = {
            "variant": system,
            "workload": name,
            "threads": threads,
            "models": str(folder),
            "pin": measure.cores(threads),
        }
        ready[system] = measure.Worker([python, str(HERE / "lora.py")], request, folder)
        if not ready[system].info["ok"]:
            raise SystemExit(f"{system}: {ready[system].info['error']}")
    answers = {system: [] for system in systems}
    for index in range(repeats):
        for system in systems if index % 2 == 0 else systems[::-1]:
            answers[system].append(ready[system].run())
    peak = {system: peak_mb(ready[system].process.pid) for system in systems}
    for one in ready.values():
        one.close()
    steps = workloads.WORKLOADS[name].steps
    best = {system: min(one["s"] for one in answers[system]) / steps for system in systems}
    cpu = {system: min(one["cpu"] for one in answers[system]) / steps for system in systems}
    imports = {system: float(ready[system].info["version"].split("|")[1]) for system in systems}
    loss = {system: answers[system][0]["loss"] for system in systems}
    own = {system: peak[system] - imports[system] for system in systems}
    row = [
        name,
        str(threads),
        *(report.duration(best[system]) for system in systems),
        f"{best[first] / best[second]:.2f}",
        f"{cpu[first] / cpu[second]:.2f}",
        *(f"{peak[system]:.0f} ({own[system]:.0f})" for system in systems),
        f"{peak[first] / peak[second]:.2f} ({own[first] / own[second]:.2f})",
        " / ".join(f"{loss[system]:.4f}" for system in systems),
    ]
    entries = []
    for system in systems:
        entries.append(result_files.timed("lora", name, system, threads, best[system]))
        entries.append(
            result_files.Entry(
                "lora memory", name, system, threads, result_files.rounded(peak[system]), "MB"
            )
        )
    return row, entries


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        serve()
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter with torch and PEFT"
    )
    parser.add_argument("--onnxgrad-python", default=str(HERE.parent / ".venv/bin/python"))
    parser.add_argument("--base", default="", help="int4, int8 or nf4: compare it with float")
    result_files.add_option(parser)
    options = parser.parse_args()
    rows, entries = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        workloads.generate(folder, list(options.names))
        for name in options.names:
            for threads in map(int, options.threads.split(",")):
                row, found = compare(folder, name, threads, options.repeats, options)
                rows.append(row)
                entries += found
                print(*row, f"load {os.getloadavg()[0]:.1f}", flush=True)
    systems = systems_of(options)
    head = ["workload", "threads", *systems, "time", "cpu", *(f"{s}, MB" for s in systems)]
    print(report.markdown([*head, "memory", "loss"], rows))
    import onnxgrad as og

    result_files.add(options.results, entries, {"onnxgrad": og.__version__})


if __name__ == "__main__":
    main()
