"""Time to build the gradient of a large graph: ResNet-50 and a BERT of 12 layers.

    python benchmarks/gradient_build.py [--repeat N]

Both graphs are made here, as exporters write them, with random weights of full size, in a file.
Measured in the extension, by `time.process_time` (one thread; the same as the clock on a machine
that does nothing else): "load" reads the file, "import" makes the working copy (opset, types of all
values, what the weights are), both once for a model; "gradient" with respect to all weights, in a
current opset, without the conversion to an `onnx.ModelProto`. "memory" is by how much the peak of
the process grows while the gradient is built.
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import onnx
from known_models import bert, resnet50
from onnx import helper

from onnxgrad import _core


def peak_mib() -> float:
    """Return the peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def with_mean(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the mean of its output as the loss."""
    output = model.graph.output[0]
    model.graph.node.append(helper.make_node("ReduceMean", [output.name], ["loss"], keepdims=0))
    output.CopyFrom(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return model


def measure(model: onnx.ModelProto, repeat: int) -> dict[str, float]:
    """Return the measurements of one model."""
    names = [tensor.name for tensor in model.graph.initializer]
    numbers = {"nodes": len(model.graph.node), "weights": len(names)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(with_mean(model), file)
        del model
        numbers["mib"] = file.stat().st_size / 2**20
        loads, imports, gradients, clock = [], [], [], []
        growth = 0.0
        for _ in range(repeat):
            start = time.process_time()
            loaded = _core.Model.load(str(file))
            loads.append(time.process_time() - start)
            start = time.process_time()
            assert loaded.weights  # makes the working copy
            imports.append(time.process_time() - start)
            before = peak_mib()
            start, start_clock = time.process_time(), time.perf_counter()
            result, _ = _core.gradient(loaded, names, ["loss"], True, False, [], 26, False)
            gradients.append(time.process_time() - start)
            clock.append(time.perf_counter() - start_clock)
            growth = max(growth, peak_mib() - before)
            assert len(result.outputs) == len(names)
    numbers |= {"load_ms": 1000 * statistics.median(loads)}
    numbers |= {"import_ms": 1000 * statistics.median(imports)}
    numbers |= {"gradient_ms": 1000 * statistics.median(gradients)}
    return numbers | {"clock_ms": 1000 * min(clock), "memory_mib": growth}


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    columns = ("nodes", "weights", "mib", "load_ms", "import_ms", "gradient_ms", "clock_ms")
    columns += ("memory_mib",)
    print("model    " + "".join(f"{column:>12}" for column in columns))
    for make in (resnet50, bert):
        found = measure(make(), arguments.repeat)
        print(f"{make.__name__:<9}" + "".join(f"{found[column]:>12.1f}" for column in columns))


if __name__ == "__main__":
    main()
