"""The other workers of a job of several processes; see docs/distributed.md."""

from onnxgrad.distributed.data_parallel import DataParallel
from onnxgrad.distributed.workers import Workers, connect

__all__ = ["DataParallel", "Workers", "connect"]
