"""The names of onnxcustom, onnxruntime-training, mlprodict and helpers, on onnxgrad's engine.

A program moves by changing import prefixes: ``from onnxcustom.training.optimizers import ...`` is
``from onnxgrad.compat.onnxcustom.training.optimizers import ...`` here. docs/migration.md has the
names side by side, and what differs.
"""
