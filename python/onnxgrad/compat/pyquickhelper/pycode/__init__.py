"""Tools around Python code."""
