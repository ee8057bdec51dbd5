"""Losses and penalties, as immutable descriptions.

N is the number of rows of a batch, C the number of classes, s the scores that the loss is applied
to, t the target, d = s - t. Each loss is written into the model as standard ONNX operators. The
formulas give the loss of one row; the loss of a batch is the mean over its rows (weighted by the
sample weights, if there are any), their sum with ``reduction="sum"``, or the loss of each row with
``reduction="none"``.

A loss can also be given as:

- its name: ``"squared_error"`` (``"mse"``, ``"l2"``), ``"absolute_error"`` (``"mae"``, ``"l1"``),
  ``"huber"``, ``"smooth_l1"``, ``"elastic"``, ``"poisson"``, ``"cosine"``,
  ``"softmax_cross_entropy"`` (``"cross_entropy"``), ``"binary_cross_entropy"`` (``"bce"``),
  ``"log_loss"``, ``"negative_log_likelihood"`` (``"nll"``), ``"kl_divergence"`` (``"kl"``),
  ``"distillation"``, ``"info_nce"``, ``"triplet"``, ``"cosine_embedding"``, ``"one_vs_rest_log"``,
  ``"hinge"``, ``"squared_hinge"``, ``"modified_huber"``, ``"auto"``;
- a name of PyTorch's or Keras', ``"CrossEntropyLoss"``, ``"mean_squared_error"``, in any spelling;
- a function ``loss(scores, target)`` of arrays (see `traced`), or a model (see `User`);
- a name with options, ``"huber:delta=2"``, or ``"output:NAME"``, as on the command line; a loss of
  embeddings by its name alone is one of pairs (``views=2``), ``"triplet"`` one of triplets;
- a dictionary from outputs of the model to losses, or to pairs (loss, factor): their sum, with a
  target for each output. A loss of scores is applied to the scores that the output is computed
  from.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import plain_text, real_number
from onnxgrad.base.family import Family
from onnxgrad.base.models import is_model
from onnxgrad.base.option_texts import texts_of, with_options
from onnxgrad.errors import OptionError
from onnxgrad.losses import described
from onnxgrad.losses.base import Loss
from onnxgrad.losses.described import *  # noqa: F403
from onnxgrad.losses.penalties import Penalty, PenaltyLike, as_penalties
from onnxgrad.losses.user import Output, User, traced

if TYPE_CHECKING:
    from onnxgrad.base.models import ModelLike

__all__ = [
    "DistillLike",
    "Loss",
    "LossLike",
    "Output",
    "Penalty",
    "PenaltyLike",
    "TeacherLike",
    "User",
    "from_name",
    "names",
    "traced",
]
__all__ += described.__all__


LossLike: TypeAlias = "Loss | str | Mapping[str, Loss | str | tuple[Loss | str, float]]"
"""A loss or its name, or for several outputs a dictionary of losses or pairs (loss, factor)."""

TeacherLike: TypeAlias = "ModelLike"
"""A model, or ``"self"``: the student as it was before `new_head`, `lora` and `adapter`."""
DistillLike: TypeAlias = "str | Mapping[str, Any]"
"""Options as ``"temperature=2,alpha=0.5"`` or as a dictionary."""

_OUTPUT_OPTION = re.compile(r",(?=(?:reduction|target|sample_weight)=)")

_FAMILY = Family(Loss)
_FAMILY.fill(globals())


def names() -> list[str]:
    """Return the names of all losses, sorted."""
    return _FAMILY.names()


def from_name(name: str) -> Loss:
    """Return the loss of that name.

    Raises
    ------
    OptionError
        An unknown name; the message suggests the nearest one.

    Examples
    --------
    >>> from_name("hinge")
    OneVsRest(output='', reduction='mean', kind='hinge')
    """
    return _FAMILY.from_name(name)


def from_text(text: str, class_axis: int | None = None) -> Loss:
    """Parse a loss such as ``"huber:delta=2"`` or ``"output:loss,reduction=sum"``.

    `class_axis` is the value of ``--class-axis``, another way to set the option ``axis``.

    Examples
    --------
    >>> from_text("nll", class_axis=-1).axis
    -1
    """
    name, _, options = text.partition(":")
    if name == "output":
        output = _OUTPUT_OPTION.split(options, maxsplit=1)[0]  # a name may contain commas
        options = options[len(output) + 1 :]
        loss: Loss = Output(output)
        if options:
            loss = with_options("loss", name, loss, options)
    else:
        loss = _with_views(_FAMILY.from_text(text))
    if class_axis is None:
        return loss
    if "axis" not in vars(loss):
        raise OptionError(
            what=f"--class-axis: {name} has no class axis",
            value="--class-axis",
            hint="Leave it out, or use a cross-entropy over classes.",
        )
    return loss.replace(axis=class_axis)


def _with_views(loss: Any) -> Loss:
    """Return a loss of embeddings that was given by name as one of pairs, or of triplets."""
    if not hasattr(loss, "partners") or loss.partners or loss.views > 1:
        described: Loss = loss
        return described
    views = 3 if getattr(loss, "hardest", True) is False else 2
    changed: Loss = loss.replace(views=views)
    return changed


def _names(given: Any) -> list[str]:
    parts = [given] if isinstance(given, str) else given or ()
    return [name for part in parts for name in part.split(";")]


def to_text(loss: Loss) -> str | None:
    """Return a loss with its options as a string; None if no string can express it."""
    if not isinstance(loss, Output):
        return _FAMILY.to_text(loss)
    options = texts_of(loss, Output(loss.output))
    if options is None or "target=" in options:  # an empty target cannot be expressed
        return None
    return ",".join([f"output:{loss.output}", *options])


def as_loss(loss: Any) -> Loss:
    """Return a loss, given as such, by name or as a string, as a model or as a function."""
    if isinstance(loss, str):
        return from_text(loss)
    if is_model(loss):
        return User(loss)
    if callable(loss) and not isinstance(loss, (type, Loss)):
        return traced(loss)
    return _FAMILY.take(loss)


def _terms(loss: Any) -> list[tuple[Loss, float]]:
    """Return the losses of a dictionary, with their outputs set, and their factors."""
    if not loss:
        raise OptionError(
            what="loss: an empty dictionary",
            value="loss",
            hint="Give losses by the name of their outputs: {'Y': 'squared_error'}.",
        )
    terms = []
    for output, entry in loss.items():
        is_pair = isinstance(entry, (tuple, list)) and not is_model(entry)
        pair = entry if is_pair else (entry, 1.0)
        if len(pair) != 2:
            raise OptionError(
                what=f"loss: {len(pair)} entries for output '{output}', expected (loss, factor)",
                value="loss",
                hint="Give a loss, or (loss, factor).",
            )
        described = as_loss(pair[0]).replace(output=str(output))
        terms.append((described, real_number(f"factor of '{output}'", pair[1])))
    for (first, _), (other, _) in itertools.pairwise(terms):
        if first.reduction != other.reduction:
            raise OptionError(
                what="loss: different reductions",
                value="loss",
                hint="Use the same reduction for all losses.",
            )
    return terms


def to_core_loss(
    loss: LossLike,
    target: str = "label",
    sample_weight: str | None = None,
    penalty: PenaltyLike | None = None,
) -> _core.Loss:
    """Return the extension's description of a loss."""
    target = plain_text("target", target, "label")
    sample_weight = plain_text("sample_weight", "" if sample_weight is None else sample_weight)
    terms = _terms(loss) if isinstance(loss, Mapping) else [(as_loss(loss), 1.0)]
    several = isinstance(loss, Mapping)
    natives: list[_core.Loss] = []
    for one, factor in reversed(terms):
        is_first = one is terms[0][0]
        own_target, own_weight = target, sample_weight
        if isinstance(one, Output):
            own_target, own_weight = one.target, one.sample_weight or sample_weight
        natives.append(
            _core.Loss(
                one._native(),
                one.output,
                several,
                f"{target}_{one.output}" if several else own_target,
                own_weight if is_first else "",
                getattr(_core.Reduction, one.reduction),
                [each._native() for each in as_penalties(penalty)] if is_first else [],
                factor,
                natives[::-1] if is_first else [],
                getattr(one, "axis", None),
                _names(getattr(one, "partners", None)),
                getattr(one, "views", 1),
            )
        )
    return natives[-1]
