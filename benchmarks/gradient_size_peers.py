"""Gradient graphs of other systems, each in its own Python: `PYTHON gradient_size_peers.py SYSTEM`.

Reads lines `MODEL OUT WEIGHT...` on standard input: a file whose output `loss` is differentiated by
these inputs, and where the result goes. Writes one line each: "ok" or why there is none.
"""

import sys

import onnx


def by_onnx_ad(model: onnx.ModelProto, weights: list[str]) -> onnx.ModelProto:
    import onnx_ad

    return onnx_ad.reverse(model, inputs=weights, outputs=["loss"])


def by_onnxruntime_training(model: onnx.ModelProto, weights: list[str]) -> onnx.ModelProto:
    from onnxruntime.capi._pybind_state import GradientGraphBuilder, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 4
    builder = GradientGraphBuilder(
        model.SerializeToString(), {"loss"}, set(weights), "loss", options
    )
    builder.build()
    return onnx.load_from_string(builder.get_model())


SYSTEMS = {"onnx-ad": by_onnx_ad, "onnxruntime-training": by_onnxruntime_training}


def main(system: str) -> None:
    for line in sys.stdin:
        source, target, *weights = line.rstrip("\n").split("\t")
        try:
            onnx.save(SYSTEMS[system](onnx.load(source), weights), target)
            answer = "ok"
        except Exception as error:  # a failure is a row of the table
            answer = f"{type(error).__name__}: {error}"
        print(" ".join(answer.split())[:300], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
