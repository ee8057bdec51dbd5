"""Reports that scikit-learn is missing, before the other modules import it."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"onnxgrad.sklearn needs scikit-learn: {error}\n  Install it: pip install scikit-learn",
        name=error.name,
    ) from error
