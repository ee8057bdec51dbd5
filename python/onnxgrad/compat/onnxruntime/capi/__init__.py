"""Where programs import the classes of onnxruntime's extension from."""
