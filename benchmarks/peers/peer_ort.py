"""ONNX Runtime Training 1.19.2, the last release.

ort-api    the on-device API: artifacts.generate_artifacts (loss, gradient graph, optimizer graph),
           then CheckpointState, Module, Optimizer. SGD without momentum and AdamW, no other.
ort-agent  the TrainingAgent under ORTModule, driven as the onnxcustom library does it: forward,
           backward, then an ONNX graph that updates the weights, OrtValues all along. The loss is
           inside the trained graph. The update graph is one's own: SGD, momentum, Nesterov here.

The package imports torch for an FP16 helper that is not used here: onnxruntime.training is put into
sys.modules as a bare package, so that its __init__ does not run and no torch is needed.
"""

from __future__ import annotations

import pathlib
import shutil
import sys
import tempfile
import types
from collections.abc import Sequence

import numpy as np
import onnx
import onnx.helper
import onnxruntime
import worker
import workloads
from onnx import TensorProto, numpy_helper
from onnxruntime.capi import _pybind_state as core

bare = types.ModuleType("onnxruntime.training")
bare.__path__ = [str(pathlib.Path(onnxruntime.__file__).parent / "training")]
sys.modules["onnxruntime.training"] = bare


def session_options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def with_optional_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The gradient builder asserts unless these nodes spell out their optional outputs."""
    for node in model.graph.node:
        count = {"MaxPool": 2, "LayerNormalization": 3}.get(node.op_type, 0)
        while len(node.output) < count:
            node.output.append(f"{node.output[0]}_optional{len(node.output)}")
    return model


class Api:
    version = onnxruntime.__version__

    def __init__(self, task: worker.Task) -> None:
        from onnxruntime.training import api, artifacts, onnxblock

        settings = task.workload.optimizer
        if settings.name == "sgd" and settings.momentum:
            raise NotImplementedError("the on-device API has no momentum")
        if task.targets.ndim > 1 and task.workload.loss == "ce":
            raise NotImplementedError("its cross-entropy takes [rows, classes]")
        self.api, self.threads, self.workload = api, task.threads, task.workload
        self.folder = tempfile.mkdtemp(prefix="ort-api-")
        if settings.name == "sgd":
            optimizer = onnxblock.optim.SGD()
        else:
            optimizer = onnxblock.optim.AdamW(
                betas=(0.9, 0.999), eps=1e-8, weight_decay=settings.decay
            )
            use_torch_mode(optimizer)
        squared = task.workload.loss == "mse"
        losses = artifacts.LossType
        artifacts.generate_artifacts(
            with_optional_outputs(onnx.load(task.model_path)),
            requires_grad=task.trainable,
            frozen_params=[name for name in task.weights if name.endswith(("_mean", "_var"))],
            loss=losses.MSELoss if squared else losses.CrossEntropyLoss,
            optimizer=optimizer,
            artifact_directory=self.folder,
        )
        self.batches = task.batches()
        self.reset()

    def path(self, name: str) -> str:
        return str(pathlib.Path(self.folder) / name)

    def reset(self) -> None:
        self.state = self.api.CheckpointState.load_checkpoint(self.path("checkpoint"))
        self.module = self.api.Module(
            self.path("training_model.onnx"), self.state,
            session_options=session_options(self.threads),
        )  # fmt: skip
        self.optimizer = self.api.Optimizer(self.path("optimizer_model.onnx"), self.module)
        self.optimizer.set_learning_rate(self.workload.optimizer.rate)
        self.module.train()

    def first(self) -> None:
        self.module(*self.batches[0])
        self.optimizer.step()
        self.module.lazy_reset_grad()

    def run(self) -> Sequence[float]:
        module, optimizer, losses = self.module, self.optimizer, []
        for _ in range(self.workload.epochs):
            for inputs, targets in self.batches:
                losses.append(module(inputs, targets))
                optimizer.step()
                module.lazy_reset_grad()
        return losses

    def __del__(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


def use_torch_mode(optimizer: object) -> None:
    """PyTorch's flavour of AdamW is adam_mode 0, which the public class does not expose."""
    build = optimizer._adamw._build_optimizer_node

    def build_with_mode(inputs, name, kind, attributes):
        return build(inputs, name, kind, dict(attributes, adam_mode=0))

    optimizer._adamw._build_optimizer_node = build_with_mode


def add_loss(model: onnx.ModelProto, loss: str) -> onnx.ModelProto:
    """Replaces the outputs with the loss between "Y" and a new input "label"."""
    graph, node = model.graph, onnx.helper.make_node
    value_info = onnx.helper.make_tensor_value_info
    if loss == "mse":
        graph.input.append(value_info("label", TensorProto.FLOAT, ["N", 1]))
        graph.node.extend([
            node("Sub", ["Y", "label"], ["loss_difference"]),
            node("Mul", ["loss_difference", "loss_difference"], ["loss_square"]),
            node("ReduceMean", ["loss_square"], ["loss"], keepdims=0),
        ])  # fmt: skip
    else:
        graph.input.append(value_info("label", TensorProto.INT64, ["N"]))
        outputs = ["loss", "log_probability"]
        graph.node.append(
            node("SoftmaxCrossEntropyLoss", ["Y", "label"], outputs, reduction="mean")
        )
    del graph.output[:]
    graph.output.append(value_info("loss", TensorProto.FLOAT, []))
    return model


def gradient_model(task: worker.Task) -> bytes:
    """The forward and backward graph of the model with its loss."""
    settings = core.OrtModuleGraphBuilderConfiguration()
    settings.initializer_names = task.trainable
    settings.initializer_names_to_train = task.trainable
    settings.input_names_require_grad = []
    settings.build_gradient_graph = True
    builder = core.OrtModuleGraphBuilder()
    model = add_loss(with_optional_outputs(onnx.load(task.model_path)), task.workload.loss)
    builder.initialize(model.SerializeToString(), settings)
    builder.build(core.TrainingGraphTransformerConfiguration())
    return builder.get_gradient_model()


def update_model(settings: workloads.Optimizer, shapes: dict[str, tuple[int, ...]]) -> bytes:
    """One graph that updates all weights: w_, g_ (and v_) of each in, wo_ (and vo_) out."""
    node, momentum = onnx.helper.make_node, settings.momentum
    nodes, inputs, outputs = [], [], []

    def declare(prefixes: list[str], name: str) -> list[onnx.ValueInfoProto]:
        make = onnx.helper.make_tensor_value_info
        return [make(prefix + name, TensorProto.FLOAT, shapes[name]) for prefix in prefixes]

    for name in shapes:
        inputs += declare(["w_", "g_"] + (["v_"] if momentum else []), name)
        outputs += declare(["wo_"] + (["vo_"] if momentum else []), name)
        direction = "g_" + name
        if momentum:
            nodes += [node("Mul", ["v_" + name, "momentum"], ["t1_" + name]),
                      node("Add", ["t1_" + name, direction], ["vo_" + name])]  # fmt: skip
            direction = "vo_" + name
            if settings.nesterov:
                nodes += [node("Mul", [direction, "momentum"], ["t2_" + name]),
                          node("Add", ["t2_" + name, "g_" + name], ["t3_" + name])]  # fmt: skip
                direction = "t3_" + name
        nodes += [node("Mul", [direction, "rate"], ["t4_" + name]),
                  node("Sub", ["w_" + name, "t4_" + name], ["wo_" + name])]  # fmt: skip
    constants = [
        numpy_helper.from_array(np.array(settings.rate, np.float32), "rate"),
        numpy_helper.from_array(np.array(momentum, np.float32), "momentum"),
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "update", inputs, outputs, constants),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    model.ir_version = 8
    return model.SerializeToString()


class Agent:
    version = onnxruntime.__version__

    def __init__(self, task: worker.Task) -> None:
        settings = task.workload.optimizer
        if settings.name != "sgd":
            raise NotImplementedError("update graphs written for SGD and momentum only")
        self.task, self.momentum = task, settings.momentum
        self.device = core.OrtDevice(core.OrtDevice.cpu(), core.OrtDevice.default_memory(), 0)
        self.make_agent(gradient_model(task))
        shapes = {name: task.weights[name].shape for name in self.names}
        self.update = self.make_session(update_model(settings, shapes))
        self.alive: list[np.ndarray] = []
        self.batches = [(self.value(x), self.value(y)) for x, y in task.batches()]
        self.one = core.OrtValueVector()
        self.one.push_back(self.value(np.array(1.0, np.float32)))
        self.permanent = len(self.alive)
        self.cache = core.OrtValueCache()
        self.reset()

    def make_session(self, model: bytes) -> onnxruntime.InferenceSession:
        options = session_options(self.task.threads)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def make_agent(self, model: bytes) -> None:
        self.session = self.make_session(model)
        inputs = [item.name for item in self.session.get_inputs()]
        outputs = [item.name for item in self.session.get_outputs()]
        self.names = [name for name in inputs if name in set(self.task.trainable)]
        assert inputs == ["X", "label", *self.names], inputs
        assert [name.replace("_grad", "") for name in outputs] == self.names, outputs
        devices = [self.device] * len(outputs)
        self.agent = core.TrainingAgent(
            self.session._sess, inputs, [self.device], outputs, devices, 0
        )

    def value(self, array: np.ndarray) -> object:
        """An OrtValue over the array's own memory, which has to stay alive."""
        array = np.ascontiguousarray(array)
        self.alive.append(array)
        return core.OrtValue.ortvalue_from_numpy(array, self.device)

    def reset(self) -> None:
        """Two sets of buffers: the update reads one and writes the other."""
        del self.alive[self.permanent :]
        weights = self.task.weights
        self.buffers = []
        for _ in range(2):
            buffer = {"w_" + name: self.value(weights[name].copy()) for name in self.names}
            if self.momentum:
                for name in self.names:
                    buffer["v_" + name] = self.value(np.zeros_like(weights[name]))
            self.buffers.append(buffer)
        self.bindings = []
        for index in range(2):
            binding = core.SessionIOBinding(self.update._sess)
            for name, value in self.buffers[index].items():
                binding.bind_ortvalue_input(name, value)
            for name, value in self.buffers[1 - index].items():
                binding.bind_ortvalue_output(name.replace("_", "o_", 1), value)
            self.bindings.append(binding)
        self.current = 0
        self.run_options = onnxruntime.RunOptions()

    def step(self, inputs: object, targets: object) -> float:
        buffer, binding = self.buffers[self.current], self.bindings[self.current]
        feeds = core.OrtValueVector()
        feeds.reserve(2 + len(self.names))
        feeds.push_back(inputs)
        feeds.push_back(targets)
        for name in self.names:
            feeds.push_back(buffer["w_" + name])
        state = core.PartialGraphExecutionState()
        results, gradients = core.OrtValueVector(), core.OrtValueVector()
        self.agent.run_forward(feeds, results, state, self.cache)
        loss = float(results[0].numpy())  # the backward pass reuses this buffer
        self.agent.run_backward(self.one, gradients, state)
        for index, name in enumerate(self.names):
            binding.bind_ortvalue_input("g_" + name, gradients[index])
        self.update._sess.run_with_iobinding(binding, self.run_options)
        self.current = 1 - self.current
        return loss

    def first(self) -> None:
        self.step(*self.batches[0])

    def run(self) -> Sequence[float]:
        losses = []
        for _ in range(self.task.workload.epochs):
            for inputs, targets in self.batches:
                losses.append(self.step(inputs, targets))
        return losses


def make(task: worker.Task) -> Api | Agent:
    return Api(task) if task.variant == "ort-api" else Agent(task)


if __name__ == "__main__":
    worker.main(make)
