"""Sessions that run a model, or train it step by step."""

from onnxgrad.base.values import Evaluation, NodeArg, WeightInfo
from onnxgrad.profiles import KernelTime, Memory, Profile
from onnxgrad.sessions.inference import InferenceSession
from onnxgrad.sessions.training import TrainingSession

__all__ = [
    "Evaluation",
    "InferenceSession",
    "KernelTime",
    "Memory",
    "NodeArg",
    "Profile",
    "TrainingSession",
    "WeightInfo",
]
