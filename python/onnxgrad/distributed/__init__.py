"""The other workers of a job of several processes; see docs/distributed.md."""

from onnxgrad.distributed.workers import Workers, connect

__all__ = ["Workers", "connect"]
