"""Rewriting models."""
