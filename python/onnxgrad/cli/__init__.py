"""The command line: ``onnxgrad``, ``python -m onnxgrad`` or ``python -m onnxgrad.cli``."""

from onnxgrad.cli.exit_status import EXIT_STATUS
from onnxgrad.cli.program import app, main

__all__ = ["EXIT_STATUS", "app", "main"]
