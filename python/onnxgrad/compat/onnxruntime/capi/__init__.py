"""The modules from which programs import the classes of onnxruntime's extension."""
