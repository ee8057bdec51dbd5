"""pyquickhelper's module tree, as far as the training notebooks use it."""

# Of the release whose names these are.
__version__ = "1.12.3823"
