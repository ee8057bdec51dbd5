"""Exports of torch with the names that its exporters give, and what torch has: run by hand.

``NAME.dynamo.onnx`` and ``NAME.script.onnx`` are written by ``torch.onnx.export`` with
``dynamo=True`` and ``dynamo=False``; only stack traces are removed from the metadata. ``NAME.npz``
has the state dictionary (``state/KEY``), an input ``x`` and torch's output ``y``; and the output
``other_y`` with other numbers (``other/KEY``). Made with torch 2.15.0, transformers 5.23.0.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from torch import nn

HERE = Path(__file__).parent


class Encoder(nn.Module):
    """Two layers of nn.TransformerEncoder: packed projections, products after reshapes."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 6, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.enc(self.emb(x)).mean(1))


class Cells(nn.Module):
    """A bidirectional LSTM of two layers, a GRU, an RNN, and a layer without bias."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(8, 3, batch_first=True)
        self.rnn = nn.RNN(3, 2, batch_first=True)
        self.out = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return self.out(self.rnn(self.gru(self.lstm(x)[0])[0])[0])


class Convolutions(nn.Module):
    """Folded normalisations; a parameter at the top and one that is transposed."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(3)
        self.mix = nn.Parameter(torch.zeros(3, 3))
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x))).mean((2, 3))
        return self.fc(y @ self.mix.t())


class Tied(nn.Module):
    """A table of embeddings that is also the matrix of the scores."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.hidden = nn.Linear(4, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(self.table(x))))


class Bert(nn.Module):
    """BertForSequenceClassification of one layer."""

    def __init__(self):
        super().__init__()
        config = transformers.BertConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=6,
            vocab_size=10, max_position_embeddings=6, num_labels=3,
        )  # fmt: skip
        self.net = transformers.BertForSequenceClassification(config)

    def forward(self, x):
        return self.net(x).logits


def export(name, module, x):
    """Write the files of one module with random weights."""
    torch.manual_seed(0)
    module.eval()
    arrays = {"x": x.numpy()}
    for prefix, output in (("other", "other_y"), ("state", "y")):
        with torch.no_grad():
            for tensor in module.parameters():
                tensor.copy_(torch.randn_like(tensor) * 0.3)
        state = {f"{prefix}/{key}": v.numpy().copy() for key, v in module.state_dict().items()}
        arrays |= state | {output: module(x).detach().numpy()}
    np.savez_compressed(HERE / f"{name}.npz", **arrays)
    for kind in ("dynamo", "script"):
        path = HERE / f"{name}.{kind}.onnx"
        dynamo = kind == "dynamo"
        shapes = (
            {"dynamic_shapes": ({0: "N"},), "external_data": False, "input_names": ["x"]}
            if dynamo
            else {"dynamic_axes": {"x": {0: "N"}}, "input_names": ["x"]}
        )
        torch.onnx.export(module, (x,), str(path), dynamo=dynamo, **shapes)
        model = onnx.load(path)
        for node in model.graph.node:
            for entry in [e for e in node.metadata_props if "stack_trace" in e.key]:
                node.metadata_props.remove(entry)
        onnx.save(model, path)


if __name__ == "__main__":
    words = torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(0))
    export("encoder", Encoder(), words)
    export("cells", Cells(), torch.randn(2, 5, 3))
    export("convolutions", Convolutions(), torch.randn(2, 1, 6, 6))
    export("tied", Tied(), words)
    export("bert", Bert(), words)
