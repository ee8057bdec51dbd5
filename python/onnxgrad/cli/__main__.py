"""``python -m onnxgrad.cli``: the same as ``python -m onnxgrad``."""

from onnxgrad.cli import main

main()
