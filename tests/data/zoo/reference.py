"""Exports a network and stores what PyTorch computes for it: outputs, a loss, all gradients, and for some a whole training.

The modules *_models.py register what is exported with `model`; make_zoo.py calls `make`.
"""
import copy
import os
import pathlib
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
SPECS = {}
TRAINED_STEPS = 20


def model(kind, **spec):
    """Registers a function that returns a network and its arguments; `kind` is the row's kind in docs/zoo.md."""
    def register(make):
        what = " ".join(make.__doc__.split())
        SPECS[make.__name__] = dict(name=make.__name__, make=make, what=what, kind=kind,
                                    module=make.__module__.removesuffix("_models"), **spec)
        return make
    return register


# ---- files -----------------------------------------------------------------------------------------------------


def graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from graphs(inner)


def strip(proto):
    """Removes doc strings and metadata: the exporters put stack traces there."""
    def clean(message):
        message.doc_string = ""
        if hasattr(message, "metadata_props"):
            del message.metadata_props[:]
    clean(proto)
    for graph in graphs(proto.graph):
        attributes = [a for node in graph.node for a in node.attribute]
        for message in [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer, *attributes]:
            clean(message)
    for function in proto.functions:
        for message in [function, *function.node, *function.value_info]:
            clean(message)


def operators(proto):
    nodes = [n for g in graphs(proto.graph) for n in g.node] + [n for f in proto.functions for n in f.node]
    return sorted({n.op_type if n.domain in ("", "ai.onnx") else n.domain + "." + n.op_type for n in nodes})


def describe(values):
    """Name -> [type, dimensions] of tensors; other types by their name."""
    out = {}
    for value in values:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            out[value.name] = [kind, None]
            continue
        tensor = value.type.tensor_type
        text = "string" if tensor.elem_type == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        out[value.name] = [text, [d.dim_param or (d.dim_value if d.HasField("dim_value") else None) for d in tensor.shape.dim]]
    return out


def row(spec, proto, **more):
    return dict(name=spec["name"], kind=spec["kind"], what=spec["what"], made_by=spec["made_by"],
                opset={o.domain or "ai.onnx": o.version for o in proto.opset_import}, inputs=describe(proto.graph.input),
                outputs=describe(proto.graph.output), nodes=len(proto.graph.node), operators=operators(proto), **more)


def run_stock(proto, feeds, optimize=True):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: feeds[name] for name in names})


def save(spec, proto, data):
    onnx.save(proto, HERE / (spec["name"] + ".onnx"))
    np.savez_compressed(HERE / (spec["name"] + ".npz"), **data)


# ---- networks of PyTorch -----------------------------------------------------------------------------------------


def floating(net):
    return [p for p in net.parameters() if p.is_floating_point()]


def randomize(net):
    """Every element of every parameter has a value of its own, so that initializers are matched to parameters by value."""
    import torch
    with torch.no_grad():
        for p in floating(net):
            p.copy_(p * 0.8 + 0.08 * torch.randn_like(p))
        for name, b in net.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(0.2 * torch.randn_like(b))
            if name.endswith("running_var"):
                b.copy_(0.6 + 0.8 * torch.rand_like(b))
        seen = np.zeros(0, np.float32)
        for p in floating(net):
            for _ in range(200):
                flat = p.float().numpy().reshape(-1)
                _, first = np.unique(flat, return_index=True)
                again = np.ones(len(flat), bool)
                again[first] = False
                again |= np.isin(flat, seen) | (flat == 0)
                if not again.any():
                    break
                moved = flat.copy()
                moved[again] += 0.02 * torch.randn(int(again.sum())).numpy()
                p.copy_(torch.from_numpy(moved.reshape(p.shape)).to(p.dtype))
            else:
                raise AssertionError("parameter values are not unique")
            seen = np.concatenate([seen, p.float().numpy().reshape(-1)])


def export(spec, net, args):
    import torch
    net = copy.deepcopy(net)
    names, outputs, dynamic = spec["inputs"], spec["outputs"], spec.get("dynamic")
    if spec.get("exporter", "dynamo") == "dynamo":
        shapes = None if dynamic is None else tuple(None if d is None else dict(d) for d in dynamic)
        program = torch.onnx.export(net, tuple(args), dynamo=True, opset_version=spec["opset"], input_names=names,
                                    output_names=outputs, dynamic_shapes=shapes, optimize=spec.get("optimize", True),
                                    verbose=False, external_data=False)
        return program.model_proto
    if "script" in spec:
        scripted = spec["script"]()
        scripted.load_state_dict(net.state_dict())
        net = torch.jit.script(scripted.train(net.training))
    axes = None if dynamic is None else {n: d for n, d in zip(names, dynamic) if d}
    mode = torch.onnx.TrainingMode.TRAINING if net.training else torch.onnx.TrainingMode.PRESERVE
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(net, tuple(args), path, dynamo=False, opset_version=spec["opset"], input_names=names,
                          output_names=outputs, dynamic_axes=axes, training=mode,
                          do_constant_folding=spec.get("optimize", True))
        return onnx.load(path)


def match(proto, net):
    """Initializer name -> for each of its elements the number of the parameter's element; also names of unused parameters."""
    named = {n: p for n, p in net.named_parameters() if p.is_floating_point()}
    values = np.concatenate([p.detach().float().numpy().reshape(-1) for p in named.values()] or [np.zeros(0, np.float32)])
    order = np.argsort(values)
    found, partly = {}, []
    for tensor in proto.graph.initializer:
        if tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16):
            continue
        array = numpy_helper.to_array(tensor).astype(np.float32)
        if not array.size or not len(values):
            continue
        at = order[np.minimum(np.searchsorted(values[order], array.reshape(-1)), len(values) - 1)]
        same = values[at] == array.reshape(-1)
        if same.all():
            assert len(np.unique(at)) == len(at), "%s has elements of a parameter more than once" % tensor.name
            found[tensor.name] = at.reshape(array.shape)
        elif same.any() and array.size > 1:
            partly.append(tensor.name)
    assert not partly, "initializers that are parameters in part: %s" % partly
    count = np.zeros(len(values), int)
    for at in found.values():
        np.add.at(count, at.reshape(-1), 1)
    unused, start = [], 0
    for name, p in named.items():
        part = count[start:start + p.numel()]
        start += p.numel()
        if (part == 0).any():
            unused.append(name)
    return found, count, unused


def tensors_of(value):
    import torch
    if isinstance(value, torch.Tensor):
        return [value]
    if value is None:
        return []
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in tensors_of(part)] if isinstance(value, (tuple, list)) else []


def outputs_of(spec, net, args):
    """The network's outputs, by the same computation in other words where the exported one has no gradient in PyTorch."""
    forward = getattr(net, "reference", net)
    return tensors_of(forward(*args))[:len(spec["outputs"])]


def cast(value, dtype):
    import torch
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def loss_of(spec, outputs, label):
    import torch.nn.functional as F
    y = outputs[spec.get("loss_output", 0)]
    kind = spec.get("loss", "mse")
    if kind == "mse":
        return ((y - label) ** 2).mean()
    return F.cross_entropy(y.movedim(kind[1], 1), label)


def label_of(spec, outputs):
    import torch
    y = outputs[spec.get("loss_output", 0)]
    kind = spec.get("loss", "mse")
    if kind == "mse":
        return (0.7 * torch.randn(y.shape) + 0.2).float()
    moved = y.movedim(kind[1], -1)
    return torch.randint(0, moved.shape[-1], moved.shape[:-1])


def autograd(spec, net, args, label, dtype):
    """Loss, gradients of all elements of all parameters in one array, gradients of floating-point inputs."""
    import torch
    net, label = copy.deepcopy(net).to(dtype), cast(label, dtype)
    for p in floating(net):   # frozen ones too
        p.requires_grad_(True)
    args = [cast(a.detach().clone(), dtype).requires_grad_(a.is_floating_point()) for a in args]
    loss = loss_of(spec, outputs_of(spec, net, args), label)
    loss.backward()

    def grad(t):
        return (torch.zeros_like(t) if t.grad is None else t.grad).detach().double().numpy()
    without = spec.get("no_input_gradients", [])
    inputs = {n: grad(a) for n, a in zip(spec["inputs"], args) if a.is_floating_point() and n not in without}
    flat = np.concatenate([grad(p).reshape(-1) for p in floating(net)] or [np.zeros(0)])
    return float(loss.detach()), flat, inputs


def trained(spec, net, args, label, optimizer, found):
    """Losses of steps on one batch in float64 and the last weights, by initializer."""
    import torch
    net, args, label = copy.deepcopy(net).double(), [cast(a, torch.float64) for a in args], cast(label, torch.float64)
    rate = spec["train"][optimizer]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    stepper, losses = kind(net.parameters(), lr=rate), []
    for _ in range(TRAINED_STEPS):
        stepper.zero_grad()
        loss = loss_of(spec, outputs_of(spec, net, args), label)
        loss.backward()
        stepper.step()
        losses.append(float(loss.detach()))
    flat = np.concatenate([p.detach().numpy().reshape(-1) for p in net.parameters()])
    last = {"%s/%s" % (optimizer, name): flat[at] for name, at in found.items()}
    return {optimizer + "_rate": np.float64(rate), optimizer + "_losses": np.array(losses), **last}


def tied_groups(found, count):
    """Lists of initializers with the same parameter; those of one list are the first one or its transposes."""
    groups = {}
    for name, at in found.items():
        if (count[at] > 1).any():
            groups.setdefault(int(at.min()), []).append(name)
    for names in groups.values():
        first = found[names[0]]
        assert all(np.array_equal(found[n], first) or np.array_equal(found[n].T, first) for n in names), names
    return [names for names in groups.values() if len(names) > 1]


def compare_forward(spec, proto, feeds, wanted):
    """The exported file computes what the network does, in stock onnxruntime where it has the operators."""
    if not spec.get("stock", True):
        return
    bound = spec.get("forward_tolerance", 2e-5)
    for name, got, want in zip(spec["outputs"], run_stock(proto, feeds, spec.get("fused", True)), wanted):
        want = want.double().numpy() if want.is_floating_point() else want.numpy()
        assert got.shape == want.shape, (name, got.shape, want.shape)
        error = np.abs(got.astype(np.float64) - want).max(initial=0)
        assert error <= bound * (1 + np.abs(want).max(initial=0)), (name, error)


def make(spec):
    """Exports one network of PyTorch; returns its row of index.json."""
    import torch
    net, args = spec["make"]()
    net.train(spec.get("training", False))
    randomize(net)
    proto = spec["export"](net) if "export" in spec else export(spec, net, args)
    if "export" in spec:
        spec = dict(spec, inputs=[i.name for i in proto.graph.input], outputs=[o.name for o in proto.graph.output])
    strip(proto)
    assert [i.name for i in proto.graph.input] == spec["inputs"], [i.name for i in proto.graph.input]
    assert [o.name for o in proto.graph.output] == spec["outputs"], [o.name for o in proto.graph.output]
    onnx.checker.check_model(proto)
    found, count, unused = match(proto, net)
    assert set(unused) == set(spec.get("unused", [])), "no initializer has %s" % unused
    feeds = {n: a.detach().float().numpy() if a.dtype == torch.bfloat16 else a.detach().numpy() for n, a in zip(spec["inputs"], args)}
    wide = torch.float32 if spec.get("single") else torch.float64
    with torch.no_grad():
        outputs = outputs_of(spec, copy.deepcopy(net).to(wide), [cast(a, wide) for a in args])
    assert len(outputs) == len(spec["outputs"]), len(outputs)
    spec.setdefault("made_by", "torch.onnx.export, dynamo=%s" % (spec.get("exporter", "dynamo") == "dynamo"))
    data = {"in/" + n: v for n, v in feeds.items()}
    if spec.get("random"):
        data["in/label"] = label_of(spec, outputs).numpy()
        save(spec, proto, data)
        return row(spec, proto, trains=spec.get("trains", True), random=True, loss=spec.get("loss", "mse"),
                   loss_output=spec["outputs"][0], trainable=list(found), tolerance=0)
    compare_forward(spec, proto, feeds, outputs)
    for name, value in zip(spec["outputs"], outputs):
        data["out/" + name] = value.float().numpy() if value.is_floating_point() else value.numpy()
    if not spec.get("trains", True):
        save(spec, proto, data)
        return row(spec, proto, trains=False, reason=spec["reason"], tolerance=spec.get("tolerance", 2e-4))
    label = label_of(spec, outputs)
    loss, flat, inputs = autograd(spec, net, args, label, wide)
    half = next(net.parameters()).dtype if len(found) else torch.float32
    _, flat32, inputs32 = autograd(spec, net, args, label, half if half.itemsize == 2 else torch.float32)
    grads = {**{n: flat[at] for n, at in found.items()}, **inputs}
    single = {**{n: flat32[at] for n, at in found.items()}, **inputs32}
    largest = max(np.abs(g).max(initial=0) for g in grads.values())
    assert np.isfinite(largest) and largest > 0, largest
    noise = max(np.abs(g - single[n]).max(initial=0) / max(np.abs(g).max(initial=0), 0.02 * largest) for n, g in grads.items())
    data.update({"in/label": label.numpy(), "loss": np.float64(loss)})
    data.update({"grad/" + n: g.astype(np.float32) for n, g in grads.items()})
    for optimizer in spec.get("train", ()):
        data.update(trained(spec, net, args, label, optimizer, found))
    save(spec, proto, data)
    more = dict(optimizers=list(spec["train"])) if "train" in spec else {}
    return row(spec, proto, **more, trains=True, loss=spec.get("loss", "mse"), loss_output=spec["outputs"][spec.get("loss_output", 0)],
               trainable=list(found), input_gradients=list(inputs), tied=tied_groups(found, count),
               tolerance=float("%.1g" % max(spec.get("tolerance", 2e-4), 20 * noise)), float32_error=float("%.2g" % noise))
