"""Descriptions of adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import (
    flag,
    mapping,
    patterns,
    plain_text,
    positive_int,
    real_number,
    unknown_name,
)
from onnxgrad.base.description import Description
from onnxgrad.base.option_texts import texts_of, values_of
from onnxgrad.errors import OptionError

__all__ = [
    "IA3",
    "Adapter",
    "AdapterLike",
    "BitFit",
    "DoRA",
    "LoRA",
    "LoRALike",
    "Norms",
    "adapted",
    "adapter_name",
    "adapter_options",
    "as_adapter",
]

Names: TypeAlias = "str | Iterable[str] | None"


class Adapter(Description):
    """A way to train few weights; `LoRA`, `DoRA`, `IA3`, `BitFit` or `Norms`."""

    _kind: ClassVar[str]

    def _add_to(self, model: _core.Model, seed: int) -> _core.Model:
        options: dict[str, Any] = {
            "rank": 1,
            "alpha": 0.0,
            "rank_stabilized": False,
            "dropout": 0.0,
            "targets": (),
            "exclude": (),
            "full": (),
            "name": "default",
            **vars(self),
        }
        if options.get("seed") is None:
            options["seed"] = seed
        lists = {key: list(options[key] or ()) for key in ("targets", "exclude", "full")}
        options["alpha"] = options["alpha"] or 0.0
        return _core.add_adapter(model, self._kind, **options | lists)


def adapter_name(given: object) -> str:
    """Return the name of an adapter, which must be a text."""
    return plain_text("name", given, "mine")


def _names(option: str, given: Names) -> tuple[str, ...] | None:
    return None if given is None else tuple(patterns(option, given))


class LoRA(Adapter):
    """Low-rank matrices beside layers: y = x W + b becomes y + alpha / rank * x A B.

    Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, arXiv:2106.09685.

    Parameters
    ----------
    rank : int, default=8
        Columns of A and rows of B.
    alpha : float, default=None
        None means `rank`, a scale of 1.
    targets : str or list of str, default=None
        Layers to adapt: names or glob patterns of their weights, modules or nodes; the last parts
        of a module (``"q_proj"``); or what they are in the graph: ``"attention"``, ``"query"``,
        ``"key"``, ``"value"``, ``"attention_output"``, ``"mlp"``, ``"mlp_up"``, ``"mlp_down"``,
        ``"head"``, ``"linear"`` (all linear layers), ``"conv"``, ``"embedding"``. None means all
        linear layers but the head, in a model without any the convolutions.
    dropout : float, default=0.0
        Fraction of the elements of x that training drops before A.
    exclude : str or list of str, default=()
        Layers to leave out, in the same forms.
    rank_stabilized : bool, default=False
        Whether the scale is alpha / sqrt(rank) (rsLoRA, arXiv:2312.03732).
    full : str or list of str, default=()
        Names or patterns of weights of the model that are trained as well, such as a new head.
    name : str, default="default"
        Name of the adapter; a model may have several.
    seed : int, default=None
        Seed of A, which is uniform in ±1/sqrt(inputs); B is 0. None means that of the session.

    Examples
    --------
    >>> import onnxgrad as og
    >>> og.adapters.LoRA(rank=16, targets=["attention", "mlp"]).rank
    16
    """

    _kind = "lora"
    rank: int
    alpha: float | None
    targets: tuple[str, ...] | None
    dropout: float

    def __init__(
        self,
        rank: int = 8,
        alpha: float | None = None,
        *,
        targets: Names = None,
        dropout: float = 0.0,
        exclude: Names = (),
        rank_stabilized: bool = False,
        full: Names = (),
        name: str = "default",
        seed: int | None = None,
    ) -> None:
        super().__init__(
            rank=positive_int("rank", rank),
            alpha=None if alpha is None else real_number("alpha", alpha, 0.0, open_minimum=True),
            targets=_names("targets", targets),
            dropout=real_number("dropout", dropout, 0.0, below=1.0),
            exclude=_names("exclude", exclude) or (),
            rank_stabilized=flag("rank_stabilized", rank_stabilized),
            full=_names("full", full) or (),
            name=adapter_name(name),
            seed=None if seed is None else positive_int("seed", seed, 0),
        )


class DoRA(LoRA):
    """LoRA of the direction of a matrix, beside a trained magnitude for each output.

    Liu et al., DoRA: Weight-Decomposed Low-Rank Adaptation, arXiv:2402.09353. The parameters are
    those of `LoRA`; with a dropout it computes what PEFT does.
    """

    _kind = "dora"


class IA3(Adapter):
    """Trained factors on keys, values and the inputs of the last layer of an MLP.

    Liu et al., Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context
    Learning, arXiv:2205.05638.

    Parameters
    ----------
    targets : str or list of str, default=None
        As for `LoRA`; None means ``["key", "value", "mlp_down"]``. Of ``"mlp_down"`` the inputs are
        scaled, of others the results.
    exclude, full, name
        As for `LoRA`.
    """

    _kind = "ia3"

    def __init__(
        self,
        targets: Names = None,
        *,
        exclude: Names = (),
        full: Names = (),
        name: str = "default",
    ) -> None:
        super().__init__(
            targets=_names("targets", targets),
            exclude=_names("exclude", exclude) or (),
            full=_names("full", full) or (),
            name=adapter_name(name),
        )


class BitFit(Adapter):
    """Training of the biases alone.

    Ben Zaken et al., BitFit: Simple Parameter-efficient Fine-tuning for Transformer-based Masked
    Language-models, arXiv:2106.10199.

    Parameters
    ----------
    full : str or list of str, default=()
        Names or patterns of other weights that are trained as well.
    """

    _kind = "bitfit"

    def __init__(self, *, full: Names = ()) -> None:
        super().__init__(full=_names("full", full) or ())


class Norms(BitFit):
    """Training of the scales and shifts of normalizations alone.

    Parameters
    ----------
    full : str or list of str, default=()
        Names or patterns of other weights that are trained as well.
    """

    _kind = "norms"


_CLASSES: dict[str, type[Adapter]] = {
    "lora": LoRA,
    "dora": DoRA,
    "ia3": IA3,
    "bitfit": BitFit,
    "norms": Norms,
}

AdapterLike: TypeAlias = "str | Adapter | Mapping[str, Any]"
"""A name (``"lora"``, ``"dora:rank=4"``), a description, or ``{"dora": {"rank": 4}}``."""
LoRALike: TypeAlias = "int | LoRA | Mapping[str, Any]"
"""A rank, a description, or its options as a dictionary."""


def as_adapter(adapter: AdapterLike, **options: Any) -> Adapter:
    """Return the description that a name, with these options, or a dictionary stands for.

    Raises
    ------
    OptionError
        An unknown name or option; the message suggests the nearest.
    """
    if isinstance(adapter, Mapping) and len(adapter) == 1:
        ((adapter, given),) = adapter.items()
        options = {**mapping("adapter", given), **options}
    if isinstance(adapter, Adapter):
        return adapter.replace(**options) if options else adapter
    name, colon, text = adapter.partition(":") if isinstance(adapter, str) else ("", "", "")
    if name not in _CLASSES:
        raise unknown_name("adapter", adapter, list(_CLASSES))
    return _CLASSES[name](**{**(values_of("adapter", text) if colon else {}), **options})


def as_lora(lora: LoRALike) -> LoRA:
    """Return the description of a `lora` option."""
    if isinstance(lora, Mapping):
        return LoRA(**mapping("lora", lora))
    if isinstance(lora, LoRA):
        return lora
    if lora is True:
        return LoRA()
    return LoRA(positive_int("lora", lora))


def adapted(
    model: _core.Model,
    lora: LoRALike | None,
    adapter: AdapterLike | None,
    seed: int = 0,
    full: tuple[str, ...] = (),
) -> _core.Model:
    """Return the model with the adapter of the options `lora` and `adapter`, if any.

    Weights `full` are trained as well.
    """
    if lora is not None and adapter is not None:
        raise OptionError(
            what="lora and adapter are given; lora=8 means adapter='lora:rank=8'",
            value="adapter",
            hint="Give one of them.",
        )
    described: Any = None
    if lora is not None:
        described = as_lora(lora)
    elif adapter is not None:
        described = as_adapter(adapter)
    if described is None:
        return model
    if full:
        described = described.replace(full=(*described.full, *full))
    changed: _core.Model = described._add_to(model, seed)
    return changed


def adapter_options(lora: LoRALike | None, adapter: AdapterLike | None) -> dict[str, Any]:
    """Return the options of the command line for these of a session.

    An adapter that it cannot express, with targets of its own, is left out.
    """
    if lora is not None:
        low_rank = as_lora(lora)
        return {
            "lora": low_rank.rank,
            "lora_alpha": low_rank.alpha,
            "lora_targets": list(low_rank.targets or ()) or None,
            "lora_dropout": low_rank.dropout,
        }
    if adapter is None:
        return {"lora": None, "adapter": None}
    described = as_adapter(adapter)
    texts = texts_of(described, type(described)())
    if texts is None:
        return {"adapter": None}
    return {"adapter": described._kind + ":" * bool(texts) + ",".join(texts)}
