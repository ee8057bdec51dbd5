"""A folder with everything about one training, which the training can go on from."""

from onnxgrad.run_folder.folder import RunFolder

__all__ = ["RunFolder"]
