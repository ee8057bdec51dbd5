"""Gradients of a model beside central differences of the model itself."""

from onnxgrad.gradient_checks.check import CheckedInput, GradientCheck, check_gradients

__all__ = ["CheckedInput", "GradientCheck", "check_gradients"]
