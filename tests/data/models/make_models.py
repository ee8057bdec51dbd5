"""Makes the models of this folder, their reference values and index.json.

    python make_models.py [NAME ...]      (needs torch, onnx, onnxscript, onnxruntime, scikit-learn, skl2onnx)

README.md says what the files hold. Using them needs none of this: onnx, numpy and onnxruntime are enough.
"""
import copy
import json
import math
import os
import pathlib
import sys
import tempfile
import warnings
import zlib

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import onnx
import onnxruntime as ort
import torch
import torch.nn as nn
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from model_zoo import SPECS, randint, randn

warnings.filterwarnings("ignore")
ort.set_default_logger_severity(4)
torch.set_num_threads(1)
HERE = pathlib.Path(__file__).resolve().parent


# ---- export, loss, gradients -----------------------------------------------------------------------------------


def randomize(net):
    """Small noise on every parameter, every value unique, so that initializers can be matched to parameters by value."""
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(p * 0.8 + 0.08 * torch.randn_like(p))
        for name, b in net.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(0.2 * torch.randn_like(b))
            if name.endswith("running_var"):
                b.copy_(0.6 + 0.8 * torch.rand_like(b))
        for _ in range(50):
            flat = np.concatenate([p.numpy().reshape(-1) for p in net.parameters()])
            _, first = np.unique(flat, return_index=True)
            if len(first) == len(flat):
                return
            again = np.ones(len(flat), bool)
            again[first] = False
            flat[again] *= (1 + 0.01 * torch.rand(int(again.sum())).numpy())
            at = 0
            for p in net.parameters():
                p.copy_(torch.from_numpy(flat[at:at + p.numel()].reshape(p.shape)))
                at += p.numel()
    raise AssertionError("parameter values are not unique")


def export(spec, net, args):
    dynamic = spec.get("dynamic")
    if spec.get("exporter", "dynamo") == "dynamo":
        shapes = None if dynamic is None else tuple(dict(d) for d in dynamic)
        return torch.onnx.export(net, tuple(args), dynamo=True, opset_version=spec["opset"], input_names=spec["inputs"],
                                 output_names=spec["outputs"], dynamic_shapes=shapes, optimize=spec.get("optimize", True),
                                 verbose=False, external_data=False).model_proto
    if "script" in spec:
        scripted = spec["script"]()
        scripted.load_state_dict(net.state_dict())
        net = torch.jit.script(scripted.eval())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(net, tuple(args), path, dynamo=False, opset_version=spec["opset"], input_names=spec["inputs"],
                          output_names=spec["outputs"],
                          dynamic_axes=None if dynamic is None else dict(zip(spec["inputs"], dynamic)))
        return onnx.load(path)


def graphs(graph):
    yield graph
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("g"):
                yield from graphs(a.g)


def strip(proto):
    """Removes doc strings and metadata: the exporters put stack traces there."""
    def clean(m):
        m.doc_string = ""
        if hasattr(m, "metadata_props"):
            del m.metadata_props[:]
    clean(proto)
    for g in graphs(proto.graph):
        for m in [g, *g.node, *g.value_info, *g.input, *g.output, *g.initializer, *(a for n in g.node for a in n.attribute)]:
            clean(m)
    for f in proto.functions:
        for m in [f, *f.node, *f.value_info]:
            clean(m)


def match(proto, net):
    """Initializer name -> (index of every element among all parameter values), where each element is a parameter's."""
    flat = np.concatenate([p.detach().numpy().reshape(-1) for p in net.parameters()])
    order = np.argsort(flat)
    found, partly = {}, []
    for t in proto.graph.initializer:
        a = numpy_helper.to_array(t)
        if t.data_type != TensorProto.FLOAT or not a.size:
            continue
        at = order[np.minimum(np.searchsorted(flat[order], a.reshape(-1)), len(flat) - 1)]
        same = flat[at] == a.reshape(-1)
        if same.all():
            found[t.name] = at.reshape(a.shape)
        elif same.any():
            partly.append(t.name)
    count = np.zeros(len(flat), int)
    for at in found.values():
        np.add.at(count, at.reshape(-1), 1)
    assert (count == 1).all(), "elements missing %d, twice %d, partly %s" % ((count == 0).sum(), (count > 1).sum(), partly)
    return found


def add_loss(spec, proto):
    m = onnx.ModelProto()
    m.CopyFrom(proto)
    g = m.graph
    y = g.output[0]
    label = onnx.ValueInfoProto()
    label.CopyFrom(y)
    label.name = "label"
    dims = label.type.tensor_type.shape.dim
    if spec["loss"] == "mse":
        g.node.extend([helper.make_node("Sub", [y.name, "label"], ["loss_difference"]),
                       helper.make_node("Mul", ["loss_difference", "loss_difference"], ["loss_square"]),
                       helper.make_node("ReduceMean", ["loss_square"], ["loss"], keepdims=0)])
    else:
        label.type.tensor_type.elem_type = TensorProto.INT64
        scores, rank = y.name, len(dims)
        del dims[rank - 1 if spec["loss"] == "ce_last" else 1]
        if spec["loss"] == "ce_last":
            g.node.append(helper.make_node("Transpose", [scores], ["loss_scores"], perm=[0, rank - 1, *range(1, rank - 1)]))
            scores = "loss_scores"
        extra = {"ignore_index": spec["ignore"]} if "ignore" in spec else {}
        g.node.append(helper.make_node("SoftmaxCrossEntropyLoss", [scores, "label"], ["loss"], reduction="mean", **extra))
    g.input.append(label)
    g.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    onnx.checker.check_model(m, full_check=True)
    return m


def torch_loss(spec, y, label):
    if spec["loss"] == "mse":
        return ((y - label) ** 2).mean()
    if spec["loss"] == "ce_last":
        y = y.movedim(-1, 1)
    return F.cross_entropy(y, label, ignore_index=spec.get("ignore", -100))


def session(m):
    return ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])


def forward(net, args):
    y = getattr(net, "reference", net.forward)(*args)
    return list(y) if isinstance(y, (tuple, list)) else [y]


def autograd(spec, net, args, label, dtype):
    def cast(t):
        return t.detach().clone().to(dtype).requires_grad_(True) if t.is_floating_point() else t
    net, args, label = copy.deepcopy(net).to(dtype), [cast(a) for a in args], cast(label)
    loss = torch_loss(spec, forward(net, args)[0], label)
    loss.backward()

    def grad(t):
        return (torch.zeros_like(t) if t.grad is None else t.grad).detach().numpy()
    inputs = {n: grad(a) for n, a in zip([*spec["inputs"], "label"], [*args, label])
              if a.is_floating_point() and n not in spec.get("no_grad_inputs", [])}
    return float(loss.detach()), np.concatenate([grad(p).reshape(-1) for p in net.parameters()]), inputs


def lift(m, names):
    """Return a copy of the model with the named initializers as inputs."""
    c = onnx.ModelProto()
    c.CopyFrom(m)
    values = {}
    for t in list(c.graph.initializer):
        if t.name in names:
            values[t.name] = numpy_helper.to_array(t)
            c.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
            c.graph.initializer.remove(t)
    return c, values


def differences(lossy, feeds, grads):
    """Largest disagreement of a central difference in onnxruntime with the stored gradients, along one direction per tensor."""
    lifted, values = lift(lossy, set(grads))
    values.update(feeds)
    s = session(lifted)
    rng, worst = np.random.default_rng(5), 0.0
    largest = max(np.abs(g).max() for g in grads.values())
    for name, g in grads.items():
        g = g.astype(np.float64)
        d = g / (np.linalg.norm(g) + 1e-30) + 0.4 * rng.standard_normal(g.shape) / math.sqrt(g.size)
        d /= np.linalg.norm(d)

        def at(e):
            return float(s.run(["loss"], {**values, name: np.asarray(values[name] + e * d, np.float32)})[0])
        want, error = float((g * d).sum()), math.inf
        for step in (2e-3, 5e-4, 1e-4):       # the smaller ones where the larger cross kinks
            got = (at(step) - at(-step)) / (2 * step)
            error = min(error, abs(got - want) / (abs(want) + 0.05 * largest + 1e-4))
        worst = max(worst, error)
        assert error < 0.03, "difference of %s: %.5g, gradient says %.5g" % (name, got, want)
    return worst


def operators(proto):
    bodies = [n for g in graphs(proto.graph) for n in g.node] + [n for f in proto.functions for n in f.node]
    return sorted({n.op_type if n.domain in ("", "ai.onnx") else n.domain + "." + n.op_type for n in bodies})


def describe(values):
    def dim(d):
        return d.dim_param or (d.dim_value if d.HasField("dim_value") else None)
    out = {}
    for v in values:
        t = v.type.tensor_type
        if not v.type.HasField("tensor_type"):
            out[v.name] = ["sequence of map"]
            continue
        out[v.name] = [helper.tensor_dtype_to_np_dtype(t.elem_type).name if t.elem_type != TensorProto.STRING else "string",
                       [dim(d) for d in t.shape.dim]]
    return out


def row(spec, proto, **more):
    return dict(name=spec["name"], what=spec["what"], made_by=spec["made_by"],
                opset={o.domain or "ai.onnx": o.version for o in proto.opset_import}, ir_version=proto.ir_version,
                inputs=describe(proto.graph.input), outputs=describe(proto.graph.output), nodes=len(proto.graph.node),
                operators=operators(proto), **more)


def make_torch(spec):
    net, arguments = spec["make"]()
    net.eval()
    randomize(net)
    batches = [arguments(k) for k in range(2 if spec.get("dynamic") else spec.get("batches", 1))]
    proto = export(spec, copy.deepcopy(net), batches[0])
    strip(proto)
    assert [i.name for i in proto.graph.input] == spec["inputs"], [i.name for i in proto.graph.input]
    assert [o.name for o in proto.graph.output] == spec["outputs"], [o.name for o in proto.graph.output]
    onnx.checker.check_model(proto, full_check=True)
    found = match(proto, net)
    lossy = add_loss(spec, proto)
    plain, full = session(proto), session(lossy)
    data, worst, noise = {}, 0.0, 0.0
    for k, args in enumerate(batches):
        tag = "" if k == 0 else "2/"
        with torch.no_grad():
            outs = forward(copy.deepcopy(net).double(), [a.double() if a.is_floating_point() else a for a in args])
        if spec["loss"] == "mse":
            label = (0.7 * torch.randn(outs[0].shape) + 0.2).float()
        elif spec["name"] == "contrastive_pair":
            label = torch.arange(6).flip(0)
        else:
            axis = -1 if spec["loss"] == "ce_last" else 1
            label = randint(outs[0].shape[axis], *outs[0].movedim(axis, -1).shape[:-1])
            if "ignore" in spec:
                label[-3:, 1] = spec["ignore"]
        feeds = {n: a.numpy() for n, a in zip(spec["inputs"], args)}
        for n, got, want in zip(spec["outputs"], plain.run(spec["outputs"], feeds), outs):
            want = want.numpy()
            assert got.shape == want.shape and np.abs(got - want).max() < 2e-5 * (1 + np.abs(want).max()), ("forward", n)
            data[tag + "out/" + n] = want.astype(np.float32)
        loss, flat, inputs = autograd(spec, net, args, label, torch.float64)
        _, flat32, inputs32 = autograd(spec, net, args, label, torch.float32)
        feeds["label"] = label.numpy()
        got = float(full.run(["loss"], feeds)[0])
        assert abs(got - loss) < 2e-5 * (1 + abs(loss)), ("loss", got, loss)
        grads = {**{n: flat[at].astype(np.float32) for n, at in found.items()},
                 **{n: g.astype(np.float32) for n, g in inputs.items()}}
        single = {**{n: flat32[at] for n, at in found.items()}, **inputs32}
        largest = max(np.abs(g).max() for g in grads.values())
        noise = max([noise, *(np.abs(g - single[n]).max() / max(np.abs(g).max(), 0.02 * largest) for n, g in grads.items())])
        worst = max(worst, differences(lossy, feeds, grads))
        data.update({tag + "in/" + n: v for n, v in feeds.items()})
        data[tag + "loss"] = np.float64(loss)
        data.update({tag + "grad/" + n: g for n, g in grads.items()})
    name = spec["name"]
    onnx.save(proto, HERE / (name + ".onnx"))
    onnx.save(lossy, HERE / (name + "_loss.onnx"))
    np.savez_compressed(HERE / (name + ".npz"), **data)
    others = [t.name for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT and t.name not in found]
    spec["made_by"] = "torch.onnx.export, dynamo=%s" % (spec.get("exporter", "dynamo") == "dynamo")
    return row(spec, proto, loss={"mse": "mean squared error"}.get(spec["loss"], "softmax cross-entropy"),
               label=describe([i for i in lossy.graph.input if i.name == "label"])["label"],
               batches=len(batches), trainable=list(found), not_trainable=others,
               input_gradients=[n for n in inputs], tolerance=float("%.1g" % max(2e-4, 20 * noise)),
               float32_error=float("%.2g" % noise), difference_error=float("%.2g" % worst))


# ---- forward only: onnxruntime's quantization, scikit-learn ------------------------------------------------------


def make_quantized(spec):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    net = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 5)).eval()
    randomize(net)
    x = randn(64, 16)
    proto = export(dict(opset=19, inputs=["features"], outputs=["logits"], dynamic=[{0: "batch"}]), net, [x[:8]])
    strip(proto)

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.rows = iter([{"features": x[k:k + 8].numpy()} for k in range(0, 64, 8)])

        def get_next(self):
            return next(self.rows, None)
    with tempfile.TemporaryDirectory() as folder:
        a, b = os.path.join(folder, "a.onnx"), os.path.join(folder, "b.onnx")
        onnx.save(proto, a)
        quantize_static(a, b, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QUInt8,
                        weight_type=QuantType.QInt8)
        q = onnx.load(b)
    strip(q)
    onnx.checker.check_model(q, full_check=True)
    feeds = {"features": x[:8].numpy()}
    # with optimization onnxruntime runs fused integer kernels; the reference is what the file says, node by node
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    y = ort.InferenceSession(q.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    fused = session(q).run(None, feeds)[0]
    whole = net(x[:8]).detach().numpy()
    scale = np.abs(whole).max()
    assert np.abs(y - whole).max() < 0.1 * scale and np.abs(y - fused).max() < 0.02 * scale
    onnx.save(q, HERE / (spec["name"] + ".onnx"))
    np.savez_compressed(HERE / (spec["name"] + ".npz"), **{"in/features": feeds["features"], "out/logits": y,
                                                           "float/logits": whole.astype(np.float32)})
    others = [t.name for t in q.graph.initializer if t.data_type == TensorProto.FLOAT]
    return row(spec, q, loss=None, batches=1, trainable=[], not_trainable=others, tolerance=0.005, output_step=float(
        "%.3g" % max(numpy_helper.to_array(t).max() for t in q.graph.initializer if t.name == "logits_scale")),
        fused_difference=float("%.2g" % (np.abs(y - fused).max() / scale)))


def make_sklearn(spec):
    import skl2onnx
    estimator, x = spec["make"]()
    proto = skl2onnx.to_onnx(estimator, x[:1])
    strip(proto)
    onnx.checker.check_model(proto)
    rows = x[:10]
    s = session(proto)
    names = [o.name for o in s.get_outputs()]
    outs = dict(zip(names, s.run(None, {"X": rows})))
    data = {"in/X": rows}
    more = {}
    if hasattr(estimator, "predict_proba"):
        classes = list(estimator.classes_)
        more["classes"] = [str(c) if isinstance(c, str) else int(c) for c in classes]
        p = np.array([[r[c] for c in classes] for r in outs[names[1]]], np.float32)
        assert np.abs(p - estimator.predict_proba(rows)).max() < 1e-5
        assert list(outs[names[0]]) == list(estimator.predict(rows))
        data["out/" + names[0]], data["out/" + names[1]] = np.array(list(outs[names[0]])), p
    else:
        want = estimator.predict(rows)
        assert np.abs(outs[names[0]].reshape(want.shape) - want).max() < 1e-4 * np.abs(want).max()
        data["out/" + names[0]] = outs[names[0]]
    onnx.save(proto, HERE / (spec["name"] + ".onnx"))
    np.savez_compressed(HERE / (spec["name"] + ".npz"), **data)
    weights, others = [], []
    for t in proto.graph.initializer:
        if t.data_type == TensorProto.FLOAT:
            (weights if t.name.startswith(("coefficient", "intercepts")) else others).append(t.name)
    attributes = ["%s.%s" % (n.name, a.name) for n in proto.graph.node if n.domain == "ai.onnx.ml"
                  for a in n.attribute if len(a.floats)]
    return row(spec, proto, loss=None, batches=1, trainable=weights, not_trainable=others, float_attributes=attributes,
               tolerance=1e-4, **more)


def table(seed, rows, columns):
    g = np.random.default_rng(seed)
    return g, (g.standard_normal((rows, columns)) * g.uniform(0.5, 3, columns) + g.uniform(-2, 2, columns)).astype(np.float32)


def sk_mlp_classifier_strings():
    """MLPClassifier 6-11-9-3 (relu), string classes, converter defaults: ArgMax, ArrayFeatureExtractor, ZipMap."""
    from sklearn.neural_network import MLPClassifier
    g, x = table(31, 120, 6)
    y = np.array(["oak", "ash", "elm"])[np.digitize(x[:, 0] - x[:, 3] + 0.3 * g.standard_normal(120), [-1.5, 1.5])]
    return MLPClassifier(hidden_layer_sizes=(11, 9), max_iter=60, random_state=3).fit(x, y), x


def sk_scaler_logistic_regression():
    """StandardScaler and LogisticRegression with four integer classes, converter defaults: the weights are attributes of ai.onnx.ml
    Scaler and LinearClassifier."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    g, x = table(32, 140, 7)
    y = np.digitize(x[:, 1] + x[:, 2] + 0.5 * g.standard_normal(140), [-2.0, 0.0, 2.0])
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y), x


def sk_mlp_regressor():
    """MLPRegressor 5-10-8-1 (relu) with one target, converter defaults."""
    from sklearn.neural_network import MLPRegressor
    _, x = table(34, 90, 5)
    return MLPRegressor(hidden_layer_sizes=(10, 8), max_iter=80, random_state=6).fit(x, np.abs(x[:, 0]) - 0.3 * x[:, 4]), x


def sk_mlp_regressor_two_targets():
    """MLPRegressor 4-13-2 (logistic) with two targets, converter defaults. The converter appends Reshape to (-1, 1), so n rows
    give 2n values in one column, row by row."""
    from sklearn.neural_network import MLPRegressor
    g, x = table(33, 90, 4)
    y = np.stack([x[:, 0] * 0.5 - x[:, 1], np.cos(x[:, 2])], 1)
    return MLPRegressor(hidden_layer_sizes=(13,), activation="logistic", max_iter=80, random_state=5).fit(x, y), x


def quantized_mlp():
    """MLP 16-24-12-5 put through onnxruntime.quantization.quantize_static: QDQ format, int8 weights per channel, uint8
    activations. Forward only: no gradient is prescribed for rounding."""


SPECS.append(dict(name="quantized_mlp", what=" ".join(quantized_mlp.__doc__.split()), run=make_quantized,
                  made_by="torch.onnx.export, dynamo=True, then onnxruntime.quantization.quantize_static"))
for f in (sk_mlp_classifier_strings, sk_scaler_logistic_regression, sk_mlp_regressor, sk_mlp_regressor_two_targets):
    SPECS.append(dict(name=f.__name__, what=" ".join(f.__doc__.split()), make=f, run=make_sklearn, made_by="skl2onnx.to_onnx"))


def main():
    path = HERE / "index.json"
    rows = {r["name"]: r for r in json.loads(path.read_text())} if path.exists() else {}
    order = [s["name"] for s in SPECS]
    failed = 0
    for spec in SPECS:
        name = spec["name"]
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(zlib.crc32(name.encode()) % 100003 + spec.get("seed", 0))
        try:
            r = rows[name] = spec.get("run", make_torch)(spec)
            print("%-32s %3d nodes, float32 %s, differences %s" % (name, r["nodes"], r.get("float32_error"), r.get("difference_error")),
                  flush=True)
        except Exception as e:
            failed += 1
            rows.pop(name, None)
            for end in (".onnx", "_loss.onnx", ".npz"):
                (HERE / (name + end)).unlink(missing_ok=True)
            print("FAILED", name, type(e).__name__, str(e)[:1500], flush=True)
            if os.environ.get("TRACE"):
                raise
        kept = sorted((r for k, r in rows.items() if k in order), key=lambda r: order.index(r["name"]))
        path.write_text("[\n" + ",\n".join(json.dumps(r) for r in kept) + "\n]\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
