"""Exports of modules, with what of each file holds parameters of the module.

    python make_parameters.py [NAME ...]

Each module is exported by both exporters of PyTorch three times: as it is made ("new"), with other
parameters ("trained"), and with others again. A tensor of the file whose numbers differ between the
last two holds parameters, also where an exporter folded them; every other tensor is a constant or
buffer. The reads of tensors in the new file, in which equal tensors are one, are compared with
those of the trained one by their place.

``modules.tar.xz`` gets the files; random numbers are left out and drawn again from a seed when they
are read (``tests/python/exported_parameters.py``), since only their kind matters. Made with torch
2.15.0, transformers 5.24.0, timm 1.0.31, diffusers 0.42.1.
"""

import contextlib
import io
import json
import logging
import sys
import tarfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from library_modules import MODULES
from onnx import numpy_helper

HERE = Path(__file__).parent
EXPORTERS = ("script", "dynamo")


def graphs_of(graph):
    """Return a graph and those within its nodes."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            for one in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                found += graphs_of(one)
    return found


def export(net, inputs, exporter):
    """Return the file of a module, without what says where on this machine it was written."""
    path = io.BytesIO()
    options = (
        {"external_data": False, "verbose": False}
        if exporter == "dynamo"
        else {"opset_version": 17}
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        made = torch.onnx.export(
            net,
            inputs,
            None if exporter == "dynamo" else path,
            dynamo=exporter == "dynamo",
            **options,
        )
    model = made.model_proto if exporter == "dynamo" else onnx.load_from_string(path.getvalue())
    for graph in graphs_of(model.graph):
        for node in graph.node:
            node.doc_string = ""
            for entry in [
                e for e in node.metadata_props if e.key.endswith(("stack_trace", "class_hierarchy"))
            ]:
                node.metadata_props.remove(entry)
    return model


def tensors_of(model):
    """Return the tensors of a file by name: initializers and constant nodes."""
    found = {}
    for graph in graphs_of(model.graph):
        found |= {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def reads_of(model):
    """Return the names that the nodes of a file read, in order, with those of no constant nodes."""
    return [
        [node.op_type, *node.input]
        for graph in graphs_of(model.graph)
        for node in graph.node
        if node.op_type != "Constant"
    ]


def differs(a, b):
    return a.shape != b.shape or not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def other_parameters(net, seed):
    """Set the parameters to other numbers near their own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in net.parameters():
            if tensor.is_floating_point():
                size = 0.1 if tensor.numel() == 1 else 0.1 + 0.1 * tensor.abs().mean()
                tensor += size * torch.randn(tensor.shape, generator=generator)


def files_of(name, exporter):
    """Return the new and the trained file of a module, and the names that hold parameters."""
    torch.manual_seed(0)
    net, inputs = MODULES[name]()
    net.eval()
    new = export(net, inputs, exporter)
    other_parameters(net, 1)
    trained = export(net, inputs, exporter)
    other_parameters(net, 2)
    again = export(net, inputs, exporter)
    if reads_of(trained) != reads_of(again):
        raise ValueError(f"{name}: the structure depends on the parameters")
    first, second = tensors_of(trained), tensors_of(again)
    learned = {key for key, value in first.items() if differs(value, second[key])}
    return new, trained, sorted(learned)


def is_drawn(array):
    """Whether numbers are as a random generator returns them: all different, none round."""
    flat = np.unique(array)
    return array.size > 1 and flat.size == array.size and not np.isin(flat, [0, 1]).any()


def pack(model, learned):
    """Take the random numbers out of a file; return how to put them back, by name."""
    drawn = {}
    seen = {}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.name not in learned or array.dtype != np.float32:
            continue
        if array.size and (array == array.flat[0]).all():
            drawn[tensor.name] = ["equal", float(array.flat[0])]
        elif is_drawn(array):
            copy = seen.get(array.tobytes()) or seen.get(array.T.tobytes())
            same = array.tobytes() in seen
            drawn[tensor.name] = (
                ["copy" if same else "transposed", copy] if copy else ["drawn", len(seen)]
            )
            seen.setdefault(array.tobytes(), tensor.name)
        else:
            continue
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
    kept = {tensor.name for tensor in model.graph.initializer}
    for value in [value for value in model.graph.value_info if value.name not in kept]:
        model.graph.value_info.remove(value)
    return drawn


def main():
    names = sys.argv[1:] or list(MODULES)
    index = []
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    with tarfile.open(HERE / "modules.tar.xz", "w:xz", preset=9) as archive:

        def write(name, content):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        for name in names:
            for exporter in EXPORTERS:
                try:
                    new, trained, learned = files_of(name, exporter)
                except (RuntimeError, TypeError) as error:
                    print(name, exporter, "cannot export it:", str(error).splitlines()[0])
                    continue
                row = {"module": name, "exporter": exporter, "learned": learned}
                for state, model in (("new", new), ("trained", trained)):
                    row[state] = pack(model, set(learned))
                    write(f"{name}.{exporter}.{state}.onnx", model.SerializeToString())
                index.append(row)
        write("index.json", json.dumps(index).encode())
    print(len(index), "files of", len({row["module"] for row in index}), "modules")


if __name__ == "__main__":
    main()
