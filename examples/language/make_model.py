"""Writes a GPT-2 of transformers with random weights, as torch exports it.

    python make_model.py decoder.onnx          # 64 wide, two layers
    python make_model.py large.onnx 1024 12    # 151 million weights

Needs torch, onnxscript and transformers. Its tokens are bytes: `--tokenizer bytes`.
"""

import sys
import warnings
from pathlib import Path

import onnx
import torch
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 128  # places that it has a position for


class Decoder(torch.nn.Module):
    """The network from tokens [N, T] to scores [N, T, 256]."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=256,
            n_positions=LENGTH,
            n_embd=width,
            n_layer=layers,
            n_head=max(4, width // 64),
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        self.net = GPT2LMHeadModel(config).eval()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.net(input_ids, use_cache=False).logits


def main(path: Path, width: int = 64, layers: int = 2) -> None:
    """Export it with any number of rows, and of tokens up to LENGTH."""
    warnings.simplefilter("ignore")
    shapes = {"input_ids": {0: torch.export.Dim("N"), 1: torch.export.Dim("T", max=LENGTH)}}
    program = torch.onnx.export(
        Decoder(width, layers),
        (torch.zeros(2, 7, dtype=torch.int64),),
        dynamo=True,
        opset_version=18,
        dynamic_shapes=shapes,
        input_names=["input_ids"],
        output_names=["logits"],
        optimize=True,
    )
    model = program.model_proto
    for entry in (model.graph, *model.functions):  # names of this machine's files
        for node in entry.node:
            del node.metadata_props[:]
        for value in entry.value_info:
            del value.metadata_props[:]
    onnx.save(model, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
