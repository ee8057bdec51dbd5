"""Drawings of models."""
