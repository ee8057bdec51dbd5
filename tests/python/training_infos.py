"""TrainingInfoProto executed by the book: merge the graphs, run them, apply the bindings."""

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

__all__ = ["Interpreter", "assert_same_state", "state_of"]


def merged(model, graph):
    """The model without training information, its graph followed by `graph`."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    del proto.training_info[:]
    proto.graph.MergeFrom(graph)  # repeated fields are concatenated
    return proto


def set_initializer(graphs, name, value):
    for graph in graphs:
        for tensor in graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(numpy_helper.from_array(np.asarray(value), name))
                return
    raise KeyError(name)


def state_of(model):
    """Return the state that the update bindings of a model change, by initializer."""
    values = {}
    for info in model.training_info:
        known = {t.name: t for graph in (model.graph, info.algorithm) for t in graph.initializer}
        for binding in info.update_binding:
            values[binding.key] = numpy_helper.to_array(known[binding.key])
    return values


class Interpreter:
    """Runs the training information of a model with ONNX's reference evaluator or onnxruntime."""

    def __init__(self, model, runtime="reference"):
        self.runtime = runtime
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)

    def initialize(self):
        for info in self.model.training_info:
            proto = onnx.ModelProto()
            proto.CopyFrom(self.model)
            del proto.training_info[:]
            proto.graph.CopyFrom(info.initialization)
            self.bind(info, info.initialization_binding, proto, {})

    def step(self, feeds):
        """One iteration; returns the outputs of the first algorithm's graph."""
        first = None
        for info in self.model.training_info:
            outputs = self.bind(
                info, info.update_binding, merged(self.model, info.algorithm), feeds
            )
            first = first or outputs
        return first

    def bind(self, info, bindings, proto, feeds):
        names = [value.name for value in proto.graph.output]
        wanted = {value.name for value in proto.graph.input}
        values = self.session(proto).run(
            None, {name: value for name, value in feeds.items() if name in wanted}
        )
        outputs = dict(zip(names, values, strict=True))
        for binding in bindings:
            graphs = (self.model.graph, info.algorithm)
            set_initializer(graphs, binding.key, outputs[binding.value])
        return outputs

    def session(self, proto):
        if self.runtime == "reference":
            return ReferenceEvaluator(proto)
        import onnxruntime

        return onnxruntime.InferenceSession(proto.SerializeToString())

    def state(self):
        return state_of(self.model)


def assert_same_state(ours, expected, rtol=1e-5, atol=1e-6):
    assert expected.keys() <= ours.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=rtol, atol=atol, err_msg=name)
