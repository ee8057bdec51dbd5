"""A folder with everything about one training, which can be resumed from it."""

from onnxgrad.run_folder.folder import RunFolder

__all__ = ["RunFolder"]
