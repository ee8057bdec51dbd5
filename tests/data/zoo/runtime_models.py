"""Models from onnxruntime's tools: quantized, fused, converted and optimized models."""
import os
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
import torch
import torch.nn as nn
import torch.nn.functional as F
from onnx import numpy_helper

import reference
from reference import SPECS, autograd, cast, export, label_of, match, randomize, row, run_stock, save, strip

STORED_INTEGERS = "the weights are stored as integers"


def tool(kind, **spec):
    """Registers a function that returns a network, its arguments, and what a tool makes of the exported file."""
    def register(build):
        SPECS[build.__name__] = dict(name=build.__name__, make=build, run=make, what=" ".join(build.__doc__.split()), kind=kind,
                                     module="runtime", **spec)
        return build
    return register


def make(spec):
    net, args, change = spec["make"]()
    net.eval()
    randomize(net)
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "a.onnx"), os.path.join(folder, "b.onnx")
        proto = export(dict(spec, outputs=["y"]), net, args)
        onnx.save(proto, source)
        proto = change(source, target) or onnx.load(target)
    strip(proto)
    feeds = {n: a.numpy() for n, a in zip(spec["inputs"], args)}
    feeds = {i.name: feeds[i.name].astype(np.float16) if i.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 else feeds[i.name]
             for i in proto.graph.input}
    with torch.no_grad():
        outputs = [net(*args)]
    stock = run_stock(proto, feeds, spec.get("fused", True))[0]
    bound = spec.get("forward_tolerance", 2e-5)
    want = outputs[0].numpy()
    assert np.abs(stock - want).max() <= bound * (1 + np.abs(want).max()), np.abs(stock - want).max()
    data = {**{"in/" + n: v for n, v in feeds.items()}, "out/y": stock}
    spec = dict(spec, outputs=["y"])
    if spec.get("gradients", True):
        found, count, unused = match(proto, net)
        assert not unused, unused
        label = label_of(spec, outputs)
        loss, flat, inputs = autograd(spec, net, args, label, torch.float64)
        data.update({"in/label": label.numpy(), "loss": np.float64(loss), "out/y": cast(outputs[0], torch.float32).numpy()})
        grads = {**{n: flat[at] for n, at in found.items()}, **inputs}
        data.update({"grad/" + n: g.astype(np.float32) for n, g in grads.items()})
        more = dict(trains=True, loss=spec.get("loss", "mse"), loss_output="y", trainable=list(found), input_gradients=list(inputs), tied=[])
    elif spec.get("trains", True):
        data["in/label"] = label_of(spec, outputs).numpy()
        names = [t.name for t in proto.graph.initializer if t.name in spec["trainable"](proto)]
        more = dict(trains=True, loss=spec.get("loss", "mse"), loss_output="y", trainable=names)
    else:
        more = dict(trains=False, reason=spec["reason"])
    save(spec, proto, data)
    return row(spec, proto, tolerance=spec.get("tolerance", 2e-4), **more)


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, 3, 2), nn.Linear(8 * 9, 5)

    def forward(self, image):
        return self.c(F.relu(self.b(F.relu(self.a(image)))).flatten(1))


def images():
    return [torch.randn(4, 1, 10, 10)]


def reader(rows):
    from onnxruntime.quantization import CalibrationDataReader

    class Rows(CalibrationDataReader):
        def __init__(self):
            self.left = iter([{k: v} for k, v in rows])

        def get_next(self):
            return next(self.left, None)
    return Rows()


def quantized(**options):
    def change(source, target):
        from onnxruntime.quantization import quantize_static
        rows = [("image", torch.randn(4, 1, 10, 10).numpy()) for _ in range(6)]
        quantize_static(source, target, reader(rows), **options)
    return change


QUANTIZED = dict(opset=18, inputs=["image"], fused=False, forward_tolerance=0.1, tolerance=2e-2, gradients=False, trains=False,
                 reason=STORED_INTEGERS)


@tool("quantized", made_by="onnxruntime.quantization.quantize_static, QDQ", **QUANTIZED)
def quantized_qdq_convolutions():
    """A convolutional network by quantize_static in the QDQ form, int8 weights per channel."""
    from onnxruntime.quantization import QuantFormat, QuantType
    return Digits(), images(), quantized(quant_format=QuantFormat.QDQ, per_channel=True, weight_type=QuantType.QInt8)


@tool("quantized", made_by="onnxruntime.quantization.quantize_static, QOperator", 
      **{**QUANTIZED, "trains": True}, trainable=lambda proto: [t.name for t in proto.graph.initializer if t.name in ("conv2d_scale", "conv2d_1_scale")])
def quantized_qlinear_convolutions():
    """A convolutional network by quantize_static in the operator form: QLinearConv, QGemm; weights are integers, scales of activations are trained."""
    from onnxruntime.quantization import QuantFormat, QuantType
    return Digits(), images(), quantized(quant_format=QuantFormat.QOperator, weight_type=QuantType.QInt8)


class Dense(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.a, self.b = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


@tool("quantized", opset=18, inputs=["x"], made_by="onnxruntime.quantization.quantize_dynamic", forward_tolerance=0.1, tolerance=2e-2,
      gradients=False, trainable=lambda proto: [t.name for t in proto.graph.initializer if t.name in ("a.bias", "b.bias")])
def quantized_dynamically():
    """A dense network by quantize_dynamic: DynamicQuantizeLinear, MatMulInteger; its biases stay numbers and train."""
    from onnxruntime.quantization import quantize_dynamic

    class Split(Dense):
        def forward(self, x):
            h = F.gelu(x @ self.a.weight.t() + self.a.bias)
            return h @ self.b.weight.t() + self.b.bias

    def change(source, target):
        quantize_dynamic(source, target)
    return Split(), [torch.randn(6, 8)], change


@tool("quantized", opset=21, inputs=["x"], made_by="onnxruntime MatMulNBitsQuantizer", forward_tolerance=0.3, tolerance=2e-2,
      gradients=False, trainable=lambda proto: [t.name for t in proto.graph.initializer if t.name in ("a.bias", "b.bias")])
def four_bit_weights():
    """MatMulNBits: weights of four bits in blocks; the biases train."""
    class Split(Dense):
        def forward(self, x):
            h = F.gelu(x @ self.a.weight.t() + self.a.bias)
            return h @ self.b.weight.t() + self.b.bias

    def change(source, target):
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
        quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=16, is_symmetric=True)
        quantizer.process()
        return quantizer.model.model
    return Split(32), [torch.randn(6, 8)], change


# ---- fused ----------------------------------------------------------------------------------------------------------------


def fuse(kind, heads, width, **options):
    def change(source, target):
        from onnxruntime.transformers.optimizer import optimize_model
        optimized = optimize_model(source, kind, num_heads=heads, hidden_size=width, opt_level=options.get("level", 0), use_gpu=False)
        if options.get("half"):
            optimized.convert_float_to_float16(keep_io_types=False)
        optimized.save_model_to_file(target)
    return change


class Logits(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, input_ids):
        return self.net(input_ids).logits


def bert():
    from transformers import BertConfig, BertForSequenceClassification
    return Logits(BertForSequenceClassification(BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20, max_position_embeddings=12, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager")))


FUSED = dict(opset=14, inputs=["input_ids"], exporter="torchscript", made_by="onnxruntime.transformers.optimizer", forward_tolerance=2e-4)


@tool("fused", loss=("ce", 1), tolerance=1e-3, **FUSED)
def bert_fused_by_onnxruntime():
    """BERT by the transformers optimizer: SkipLayerNormalization, BiasGelu, Attention where it finds them."""
    return bert(), [torch.randint(3, 30, (2, 6))], fuse("bert", 2, 16)


@tool("fused", loss=("ce", 2), tolerance=1e-3, optimize=False, **{**FUSED, "exporter": "dynamo", "opset": 18})
def gpt2_fused_by_onnxruntime():
    """GPT-2 by the transformers optimizer: FastGelu, SkipLayerNormalization, Attention where it finds them."""
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=25, n_positions=10, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        tie_word_embeddings=False, use_cache=False, attn_implementation="eager")
    return Logits(GPT2LMHeadModel(config)), [torch.randint(3, 25, (2, 6))], fuse("gpt2", 2, 16)


@tool("fused", opset=18, inputs=["image"], made_by="onnxruntime, optimized_model_filepath, extended", forward_tolerance=1e-4)
def optimized_by_onnxruntime():
    """A convolutional network as onnxruntime saves it after its extended optimizations: FusedConv, FusedGemm."""
    class Net(Digits):
        def forward(self, image):
            return torch.tanh(self.c(F.leaky_relu(self.b(F.relu(self.a(image))), 0.1).flatten(1)))

    def change(source, target):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = target
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return Net(), images(), change


@tool("fused", opset=18, inputs=["x"], made_by="onnxruntime, optimized_model_filepath, extended", forward_tolerance=1e-4)
def dense_optimized_by_onnxruntime():
    """A dense network with GELU and LayerNorm after onnxruntime's extended optimizations: BiasGelu, fused products, skip norms."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm, self.c = nn.Linear(8, 12), nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.norm(x + self.b(F.gelu(self.a(x))))
            return self.c(h @ h.transpose(1, 2) @ x * 0.3)

    def change(source, target):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = target
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return Net(), [torch.randn(2, 5, 8)], change


def to_half(source, target):
    from onnxruntime.transformers.float16 import convert_float_to_float16
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


@tool("half precision", opset=18, inputs=["image"], made_by="onnxruntime.transformers.float16", forward_tolerance=1e-2, tolerance=2e-2,
      gradients=False, trainable=lambda proto: [t.name for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT16])
def converted_to_float16():
    """A convolutional network converted to float16 with float32 inputs and outputs: Cast at both ends."""
    return Digits(), images(), to_half
