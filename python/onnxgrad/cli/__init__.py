"""The command line: ``onnxgrad``, ``python -m onnxgrad`` or ``python -m onnxgrad.cli``."""

from onnxgrad.cli.program import EXIT_STATUS, app, main

__all__ = ["EXIT_STATUS", "app", "main"]
