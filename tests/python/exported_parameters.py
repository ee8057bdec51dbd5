"""Exports of modules with their parameters: read, and compared with the weights trained."""

import io
import json
import tarfile
import zlib

import numpy as np
import onnx

import onnxgrad as og
from onnx_tool import ROOT

FOLDER = ROOT / "tests/data/parameters"
UNUSED = "without influence on the loss"


def _fill(model, drawn):
    """Put the numbers back that the archive leaves out."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    arrays = {}
    for name, (kind, value) in drawn.items():
        shape = tuple(tensors[name].dims)
        if kind == "equal":
            array = np.full(shape, value)
        elif kind == "drawn":
            array = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape, scale=0.3)
        else:
            array = arrays[value] if kind == "copy" else arrays[value].T
        arrays[name] = np.ascontiguousarray(array, np.float32).reshape(shape)
        tensors[name].raw_data = arrays[name].tobytes()
    return model


def stored():
    """Return rows of the archive: module, exporter, the new and trained file, what is learned."""
    rows = []
    with tarfile.open(FOLDER / "modules.tar.xz") as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}
    for row in json.loads(files["index.json"]):
        start = f"{row['module']}.{row['exporter']}"
        models = [
            _fill(onnx.load_model(io.BytesIO(files[f"{start}.{state}.onnx"])), row[state])
            for state in ("new", "trained")
        ]
        rows.append((row["module"], row["exporter"], *models, set(row["learned"])))
    return rows


def _graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for one in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(one)


def _places(model):
    """Return what each node reads, with its operator; None for what is no tensor of the file."""
    tensors = {}
    places = []
    for graph in _graphs(model.graph):
        tensors |= {tensor.name: tensor.name for tensor in graph.initializer}
        tensors |= {n.output[0]: n.output[0] for n in graph.node if n.op_type == "Constant"}
        moved = [n for n in graph.node if n.op_type == "Identity" and n.input[0] in tensors]
        tensors |= {node.output[0]: tensors[node.input[0]] for node in moved}
        hidden = {node.output[0] for node in moved}
        for node in graph.node:
            if node.op_type != "Constant" and node.output[0] not in hidden:
                places.append((node.op_type, [tensors.get(name) for name in node.input]))
    return places


def _reasons(model):
    """Return why each tensor is not trained; "" for those that are."""
    return {w.name: "" if w.reason == UNUSED else w.reason for w in og.report(model).weights}


def differences(new, trained, learned):
    """Return the differences between what a module learns and what is trained in its files."""
    found = set()
    reasons = _reasons(trained)
    for name, reason in reasons.items():
        if (name in learned) == bool(reason):
            found.add(f"{name}: {reason or 'trained'}")
    loss = og.losses.SquaredError(output=new.graph.output[0].name)
    apart = og.TrainingSession(new, loss).trained_model()
    reasons = _reasons(apart)
    wanted, made = _places(trained), _places(apart)
    assert [operator for operator, _ in wanted] == [operator for operator, _ in made]
    parts, wholes = {}, {}
    for (_, names), (_, now) in zip(wanted, made, strict=True):
        # The newer exporter leaves out a new layer's bias of zeros, which the file then has not.
        for name, part in zip(names, now, strict=False):
            if name is None or part is None:
                assert name is part
                continue
            reason = reasons[part]
            if (name in learned) == bool(reason):
                found.add(f"{name} when new: {reason or 'trained'}")
            elif name in learned:
                parts.setdefault(name, set()).add(part)
                wholes.setdefault(part, set()).add(name)
    found |= {f"{name} when new: several weights" for name, some in parts.items() if len(some) > 1}
    found |= {f"{sorted(some)} when new: one weight" for some in wholes.values() if len(some) > 1}
    return found
