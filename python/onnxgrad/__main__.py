"""``python -m onnxgrad``: the command line, like the program ``onnxgrad``."""

from onnxgrad.cli import main

main()
