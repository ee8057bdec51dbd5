"""Continuations of a text that a language model writes while it is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxgrad.base.checks import function_or_none, positive_int, real_number, several
from onnxgrad.base.messages import print_stderr
from onnxgrad.callbacks.base import Callback, Logs
from onnxgrad.data.tokens import as_tokenizer, checked_text, completed, token_input
from onnxgrad.data.tokens.places import places_of
from onnxgrad.errors import DataError, OptionError, printable

__all__ = ["SampleText"]

Array = np.ndarray[Any, Any]


class SampleText(Callback):
    """Writes a continuation of a prompt after each epoch.

    The model computes the scores of the whole row for each token: its keys and values are not kept.

    Parameters
    ----------
    prompt : str or list of int
    tokenizer : path, tokenizers.Tokenizer or "bytes", default=None
        As for `data.Tokens`. None writes numbers of tokens.
    length : int, default=64
        Tokens of a continuation; it ends earlier with the tokenizer's token of an end.
    temperature : float, default=1.0
        Divides the scores; 0 takes the most likely token.
    top_k : int, default=None
        Draw among so many of the most likely tokens. None: all.
    window : int, default=256
        Tokens that the model reads at most, those before the next one; no more than it has places.
    every : int, default=1
        Epochs between two samples.
    seed : int, default=0
        Seed of the random numbers, beside the number of the epoch.
    write : function, default=None
        Called with each text; None writes to standard error.

    Attributes
    ----------
    texts : list of str
        All samples.

    Examples
    --------
    >>> import onnxgrad as og
    >>> sampling = og.callbacks.SampleText("Shall I ", tokenizer="bytes", temperature=0)
    """

    first_worker_only = True

    def __init__(
        self,
        prompt: str | Sequence[int],
        *,
        tokenizer: Any = None,
        length: int = 64,
        temperature: float = 1.0,
        top_k: int | None = None,
        window: int = 256,
        every: int = 1,
        seed: int = 0,
        write: Callable[[str], Any] | None = None,
    ) -> None:
        self.tokenizer = as_tokenizer(tokenizer)
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise OptionError(
                    what="prompt: a text, and no tokenizer is given",
                    value="tokenizer",
                    hint="Give tokenizer='tokenizer.json' of the model, or tokens as the prompt.",
                )
            prompt = self.tokenizer.encode(checked_text(prompt, "prompt"))[0].tolist()
        tokens = several("prompt", prompt, "tokens")
        self.prompt = [positive_int("prompt", token, 0) for token in tokens]
        if not self.prompt:
            raise OptionError(
                what="prompt: no tokens", value="prompt", hint="Give at least one token."
            )
        self.length = positive_int("length", length)
        self.temperature = real_number("temperature", temperature, 0.0)
        self.top_k = None if top_k is None else positive_int("top_k", top_k)
        self.window = positive_int("window", window, 2)
        self.every = positive_int("every", every)
        self.seed = positive_int("seed", seed, 0)
        self.texts: list[str] = []
        self._write = function_or_none("write", write) or _to_stderr

    def __repr__(self) -> str:
        return f"SampleText({self.prompt!r}, length={self.length})"

    def on_epoch_end(self, trainer: Any, logs: Logs) -> None:
        """Write a sample after every `every` epochs."""
        epoch = int(logs.get("epoch", len(trainer.history.get("train_loss", [])) or 1))
        if epoch % self.every == 0:
            self.texts.append(self.text(trainer.session, epoch))
            self._write(self.texts[-1])

    def text(self, session: Any, number: int = 0) -> str:
        """Return the prompt with a continuation by the current weights of a session."""
        tokens = self.tokens(session, number)
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        return self.tokenizer.decode(tokens)

    def tokens(self, session: Any, number: int = 0) -> list[int]:
        """Return the tokens of the prompt and of a continuation."""
        core = session._core
        name = token_input(core.inputs)
        scores = core.loss.scores
        if name is None or scores not in [value.name for value in core.outputs]:
            raise DataError(
                what="the model has no input of tokens [N, T], or no output of scores [N, T, V]",
                hint="Leave SampleText out.",
            )
        fixed = next(value.shape[1] for value in core.inputs if value.name == name)
        places = None if isinstance(fixed, int) else places_of(session)
        window = fixed if isinstance(fixed, int) else self.window
        window = window if places is None else min(window, places.most)
        width = min(window, len(self.prompt) + self.length)
        width = fixed if isinstance(fixed, int) else width
        random = np.random.default_rng([self.seed, number])
        tokens = list(self.prompt)
        end = None if self.tokenizer is None else self.tokenizer.end
        for _ in range(self.length):
            read = tokens[-width:]
            row = np.zeros((1, width), np.int64)  # scores do not depend on the padding after them
            row[0, : len(read)] = read
            segments = np.where(np.arange(width) < len(read), 0, -1)[None]
            feeds = completed(core.inputs, {name: row}, segments=segments)
            found = session.predict(feeds, [scores])[0]
            tokens.append(self._drawn(np.asarray(found[0, len(read) - 1], np.float64), random))
            if tokens[-1] == end:
                break
        return tokens

    def _drawn(self, scores: Array, random: np.random.Generator) -> int:
        if self.temperature == 0:
            return int(np.argmax(scores))
        scores = scores / self.temperature
        if self.top_k is not None and self.top_k < len(scores):
            least = np.partition(scores, -self.top_k)[-self.top_k]
            scores = np.where(scores < least, -np.inf, scores)
        shares = np.exp(scores - scores.max())
        return int(random.choice(len(shares), p=shares / shares.sum()))


def _to_stderr(text: str) -> None:
    print_stderr("sample: " + printable(text))
