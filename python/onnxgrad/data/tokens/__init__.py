"""Tokens as rows for language models."""

from onnxgrad.data.tokens.inputs import completed, token_input
from onnxgrad.data.tokens.preferences import Preferences
from onnxgrad.data.tokens.source import Tokens
from onnxgrad.data.tokens.text import Tokenizer, as_tokenizer, checked_text

__all__ = [
    "Preferences",
    "Tokenizer",
    "Tokens",
    "as_tokenizer",
    "checked_text",
    "completed",
    "token_input",
]
