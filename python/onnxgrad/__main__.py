"""``python -m onnxgrad``: the command line, as the program ``onnxgrad`` has it."""

from onnxgrad.cli import main

main()
