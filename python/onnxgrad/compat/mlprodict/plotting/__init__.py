"""Models as text."""
