"""Small networks of torch and transformers, what torch's exporters make of them, PEFT's adapters.

torch, transformers and PEFT are imported by the functions: only `make interop` has them.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort

import onnxgrad as og

Arrays = dict[str, np.ndarray]

VOCABULARY = 50
ROWS, LENGTH, CLASSES = 3, 5, 4


def _attention_block() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        """An encoder layer with projections of its own, and a classifier."""

        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
            self.v_proj, self.o_proj = nn.Linear(16, 16), nn.Linear(16, 16)
            self.norm = nn.LayerNorm(16)
            self.mlp = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
            self.classifier = nn.Linear(16, CLASSES)

        def forward(self, x: Any) -> Any:
            def heads(y: Any) -> Any:
                return y.view(y.shape[0], y.shape[1], 2, 8).transpose(1, 2)

            q, k, v = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
            mixed = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, -1) @ v
            x = x + self.o_proj(mixed.transpose(1, 2).reshape(x.shape))
            x = x + self.mlp(self.norm(x))
            return self.classifier(x.mean(1))

    return Block()


def _convolutions() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, CLASSES),
    )


def _bag_of_tokens() -> Any:
    from torch import nn

    class Bag(nn.Module):
        """A table and two layers."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, 12)
            self.hidden = nn.Linear(12, 10)
            self.head = nn.Linear(10, CLASSES)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.hidden(self.table(tokens)).tanh().mean(1))

    return Bag()


def _transformer(kind: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, attn_implementation="eager", use_cache=False, **options
    )


def _bert() -> Any:
    import transformers

    config = _transformer(
        "Bert",
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        num_labels=CLASSES,
    )
    return transformers.BertForSequenceClassification(config)


def _decoder(kind: str) -> Any:
    import transformers

    config = _transformer(
        kind,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def _gpt2() -> Any:
    import transformers

    config = _transformer("GPT2", n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


class Network(NamedTuple):
    """A network, its inputs, and names of its layers as PEFT takes them."""

    make: Callable[[], Any]
    shape: tuple[int, ...]
    targets: list[str]
    down: list[str]  # the last layer of an MLP
    head: str
    keys: list[str] = []  # layers whose results (IA)^3 scales  # noqa: RUF012
    takes_tokens: bool = False


TOKENS = (ROWS, LENGTH)
NETWORKS = {
    "block": Network(
        _attention_block,
        (ROWS, LENGTH, 16),
        ["q_proj", "v_proj", "mlp.0", "mlp.2"],
        ["mlp.2"],
        "classifier",
        ["k_proj", "v_proj"],
    ),
    "cnn": Network(_convolutions, (ROWS, 3, 8, 8), ["0", "2"], [], "6"),
    "bag": Network(_bag_of_tokens, TOKENS, ["table", "hidden"], [], "head", takes_tokens=True),
    "bert": Network(
        _bert,
        TOKENS,
        ["query", "key", "attention.output.dense"],
        ["output.dense"],
        "classifier",
        ["key", "value"],
        takes_tokens=True,
    ),
    "llama": Network(
        lambda: _decoder("Llama"),
        TOKENS,
        ["q_proj", "v_proj", "gate_proj", "down_proj"],
        ["down_proj"],
        "lm_head",
        ["k_proj", "v_proj"],
        takes_tokens=True,
    ),
    "qwen2": Network(
        lambda: _decoder("Qwen2"),
        TOKENS,
        ["q_proj", "k_proj", "v_proj", "o_proj"],
        ["down_proj"],
        "lm_head",
        ["k_proj", "v_proj"],
        takes_tokens=True,
    ),
    "gpt2": Network(
        _gpt2,
        TOKENS,
        ["c_attn", "mlp.c_fc"],
        ["mlp.c_proj"],
        "lm_head",
        ["c_attn"],
        takes_tokens=True,
    ),
}


def network(name: str, seed: int = 0) -> Any:
    """Return a network with random weights that are not too small to matter."""
    import torch

    # transformers asks, and torch without its CUDA wheels (scripts/cpu_torch.py) cannot answer.
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.manual_seed(seed)
    made = NETWORKS[name].make().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return made


def rows_of(name: str, seed: int = 1) -> np.ndarray:
    """Return a batch of inputs."""
    generator = np.random.default_rng(seed)
    if NETWORKS[name].takes_tokens:
        return generator.integers(1, VOCABULARY, NETWORKS[name].shape)
    return generator.standard_normal(NETWORKS[name].shape).astype(np.float32)


def scores(module: Any, rows: np.ndarray) -> Any:
    """Return a network's result for rows, as a tensor."""
    import torch

    result = module(torch.from_numpy(rows))
    return getattr(result, "logits", result)


def export(module: Any, rows: np.ndarray, *, dynamo: bool) -> bytes:
    """Return the bytes of the file that torch writes for a network."""
    import torch

    example = (torch.from_numpy(rows),)
    options: dict[str, Any] = {}
    if dynamo:
        options["dynamic_shapes"] = ({0: "batch"},)
    else:
        options |= {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            copy.deepcopy(module), example, file, dynamo=dynamo, verbose=False, **options
        )
    if dynamo:
        return program.model_proto.SerializeToString()
    return file.getvalue()


def randomize(adapted: Any, seed: int = 2) -> Any:
    """Give everything that PEFT trains random numbers, as if it had been trained."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += (0.3 if "lora" in name or "ia3" in name else 0.1) * noise
    return adapted.eval()


def adapted_network(base: Any, configuration: Any) -> Any:
    """Return PEFT's model with random numbers in all that it trains."""
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Conv1D is transposed
        made = peft.get_peft_model(copy.deepcopy(base), copy.deepcopy(configuration))
    return randomize(made)


def configurations(name: str) -> dict[str, Any]:
    """PEFT's configurations for a network, by what is special in them."""
    import peft

    one = NETWORKS[name]
    targets, lora = one.targets, peft.LoraConfig
    is_tied = name == "gpt2"  # PEFT's copy of its head is no longer the table
    head = None if is_tied else [one.head]
    some = targets[1].rsplit(".", 1)[-1]
    found = {
        "lora": lora(r=4, lora_alpha=8, target_modules=targets),
        "head": lora(r=1, lora_alpha=3, target_modules=targets, modules_to_save=head),
        "rslora": lora(r=3, lora_alpha=8, use_rslora=True, target_modules=targets),
        "patterns": lora(
            r=4,
            lora_alpha=8,
            target_modules=targets,
            rank_pattern={targets[0]: 2, f".*{some[-3:]}": 6},
            alpha_pattern={f"^.*{some}": 5, targets[0]: 3},
            modules_to_save=head,
        ),
        "one": lora(r=4, target_modules=r".*\.?" + targets[-1].replace(".", r"\.")),
        "biases": lora(r=2, bias="all", target_modules=targets),
        "own_biases": lora(r=2, bias="lora_only", target_modules=targets),
    }
    found["dora"] = lora(
        r=3, lora_alpha=8, use_dora=True, target_modules=targets, modules_to_save=head
    )
    if name == "cnn":
        found["ia3"] = peft.IA3Config(target_modules=targets, feedforward_modules=targets[1:])
    if name not in ("cnn", "bag"):
        # Both MatMul, with [in, out], and Gemm, with [out, in].
        found["dora_all"] = lora(r=2, use_dora=True, target_modules="all-linear")
        found["dora_patterns"] = lora(
            r=3,
            use_dora=True,
            use_rslora=True,
            target_modules=targets,
            rank_pattern={targets[0]: 2},
            alpha_pattern={targets[0]: 5},
        )
        ia3 = peft.IA3Config
        scaled = one.keys + one.down
        found["ia3"] = ia3(
            target_modules=scaled, feedforward_modules=one.down, modules_to_save=head
        )
        found["ia3_swapped"] = ia3(target_modules=scaled, feedforward_modules=one.keys)
    return found


def run(model: Any, rows: np.ndarray) -> np.ndarray:
    """Return onnxruntime's output of a model."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: rows})[0]


def values(module: Any, rows: np.ndarray) -> np.ndarray:
    """Return torch's output of a network."""
    import torch

    with torch.no_grad():
        return scores(module, rows).numpy()


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a folder that PEFT reads."""
    from safetensors.numpy import load_file

    return load_file(folder / "adapter_model.safetensors")


def adapter_gradients(model: onnx.ModelProto, rows: np.ndarray, seed: np.ndarray) -> Arrays:
    """Return the gradients of sum(seed * outputs) by PEFT's names, in its shapes."""
    output = model.graph.output[0].name
    made = og.gradient(model, outputs=output)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    held = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    feeds = {one.name: held.get(one.name) for one in session.get_inputs()}
    feeds[model.graph.input[0].name] = rows
    feeds[f"{output}_grad"] = seed
    names = [one.name for one in session.get_outputs()]
    results = dict(zip(names, session.run(None, feeds), strict=True))
    adapter = og.adapters.of(model)[0]
    gradients = {name: results[f"{name}_grad"] for x in adapter.layers for name in x.tensors}
    return {
        key: gradient
        for key, gradient in og.adapters.state(with_tensors(model, gradients)).items()
        if any(part in key for part in PARTS)
    }


def with_tensors(model: onnx.ModelProto, tensors: Arrays) -> onnx.ModelProto:
    """Return a model with these initializers."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for one in changed.graph.initializer:
        if one.name in tensors:
            one.CopyFrom(onnx.numpy_helper.from_array(tensors[one.name], one.name))
    return changed


PARTS = ("lora_", "ia3_l")


def gradients_of(adapted: Any, rows: np.ndarray, seed: np.ndarray) -> Arrays:
    """Return PEFT's gradients of sum(seed * outputs), by the names in its files."""
    import torch
    from peft import get_peft_model_state_dict

    adapted.zero_grad()
    (scores(adapted, rows) * torch.from_numpy(seed)).sum().backward()
    named = {
        key: parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        for key, parameter in adapted.named_parameters()
    }
    found = get_peft_model_state_dict(adapted, {**adapted.state_dict(), **named})
    return {
        key: value.numpy() for key, value in found.items() if any(part in key for part in PARTS)
    }
