"""The names of onnxcustom, onnxruntime-training, mlprodict and helpers, on onnxgrad's engine.

To migrate a program, change the import prefixes: ``from onnxcustom.training.optimizers import ...``
becomes ``from onnxgrad.compat.onnxcustom.training.optimizers import ...``. docs/migration.md lists
the names side by side, and the differences.
"""
