"""onnxruntime-training's newer interface, "on-device training", on onnxgrad's engine.

`artifacts` writes the files of a training, `api` trains with them, `onnxblock` builds losses and
optimizers node by node.
"""
