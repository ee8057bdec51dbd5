"""A folder with all files of a training, which can be resumed from it."""

from onnxgrad.run_folder.folder import RunFolder

__all__ = ["RunFolder"]
