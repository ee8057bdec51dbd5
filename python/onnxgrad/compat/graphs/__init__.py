"""Graphs that programs of other packages ask for: written, taken apart and put together here."""
