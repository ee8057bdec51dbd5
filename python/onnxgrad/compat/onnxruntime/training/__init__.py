"""onnxruntime-training's newer interface, "on-device training", on onnxgrad's engine.

`artifacts` writes the files of a training, `api` trains with them. `onnxblock`, which builds losses
and optimizers node by node, is not provided: use the losses and optimizers of onnxgrad.
"""
