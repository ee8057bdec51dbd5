"""The part of pyquickhelper's module tree that the training notebooks use."""

# The release that this module reproduces.
__version__ = "1.12.3823"
