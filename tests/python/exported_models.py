"""One model in every form that models come in, and a stand-in for torch's ONNXProgram."""

import functools
import gzip
import io
import pathlib

import ndonnx as ndx
import numpy as np
import onnx
import onnx_ir as ir
import spox
import spox.opset.ai.onnx.v21 as op
from onnxscript import FLOAT, script
from onnxscript import opset18 as ops
from spox._graph import arguments, results

ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
TARGETS = np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2)
_W = (np.arange(6, dtype=np.float32).reshape(3, 2) - 2) / 4
_B = np.array([0.5, -0.5], np.float32)


class Program:
    """A result of torch.onnx.export, as far as onnxgrad uses it."""

    def __init__(self, model, exported_program):
        self.model = model
        self.exported_program = exported_program

    @property
    def model_proto(self):
        return ir.to_proto(self.model)

    def __call__(self, *args):
        raise AssertionError("a program is a model, not a function that makes one")

    def __deepcopy__(self, memo):
        raise TypeError("programs cannot be copied")


@script(default_opset=ops)
def linear_script(X: FLOAT["N", 3]) -> FLOAT["N", 2]:  # noqa: F821 (a dimension)
    """The model as a function of onnxscript."""
    W = ops.Constant(value=onnx.numpy_helper.from_array(_W, "W"))
    b = ops.Constant(value=onnx.numpy_helper.from_array(_B, "b"))
    return ops.Add(ops.MatMul(X, W), b)


def _spox_values():
    x = spox.argument(spox.Tensor(np.float32, ("N", 3)))
    return x, op.add(op.matmul(x, op.const(_W)), op.const(_B))


def proto():
    """Return Y = X W + b as a ModelProto."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        linear (float[N, 3] X) => (float[N, 2] Y) { Z = MatMul(X, W) Y = Add(Z, b) }"""
    )
    for name, array in (("W", _W), ("b", _B)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def saved(folder, *, beside=False):
    """Return the path of the model, with its weights in another file or not."""
    path = pathlib.Path(folder) / "model.onnx"
    options = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(proto(), path, **(options if beside else {}))
    return path


def _spox_pair(_):
    x, y = _spox_values()
    return {"X": x}, {"Y": y}


@functools.cache
def _ndonnx_pair(_=None):
    x = ndx.argument(shape=("N", 3), dtype=ndx.float32)
    return {"X": x}, {"Y": ndx.matmul(x, ndx.asarray(_W)) + ndx.asarray(_B)}


@functools.cache
def _of_ndonnx():
    return ndx.build(*_ndonnx_pair())


def _spox_graph(_):
    (x,) = arguments(X=spox.Tensor(np.float32, ("N", 3)))
    return results(Y=op.add(op.matmul(x, op.const(_W)), op.const(_B))).with_arguments(x)


def _zipped(folder):
    path = saved(folder, beside=True)
    packed = path.with_suffix(".onnx.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return gzip.open(packed)


def _after_header(_):
    file = io.BytesIO(b"header" + proto().SerializeToString())
    file.seek(6)
    return file


KINDS = {
    "path": saved,
    "text": lambda folder: str(saved(folder)),
    "bytes": lambda _: proto().SerializeToString(),
    "memoryview": lambda _: memoryview(proto().SerializeToString()),
    "proto": lambda _: proto(),
    "file": lambda folder: saved(folder).open("rb"),
    "file_with_data_beside": lambda folder: saved(folder, beside=True).open("rb"),
    "zipped_file_with_data_beside": _zipped,
    "file_after_header": _after_header,
    "ir": lambda _: ir.from_proto(proto()),
    "ir_with_data_beside": lambda folder: ir.load(saved(folder, beside=True)),
    "program": lambda _: Program(ir.from_proto(proto()), None),
    "script": lambda _: linear_script,
    "spox": lambda _: spox.build(*_spox_pair(_)),
    "spox_pair": _spox_pair,
    "spox_graph": _spox_graph,
    "ndonnx": lambda _: _of_ndonnx(),
    "ndonnx_pair": lambda _: _ndonnx_pair(),
}  # fmt: skip
