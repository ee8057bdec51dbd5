"""mlprodict's module tree, as far as the training notebooks use it."""
