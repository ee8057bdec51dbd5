"""Helpers around ONNX graphs."""
