"""Losses and penalties, as plain descriptions.

N is the number of rows of a batch, C the number of classes, s the scores that the loss is put on,
t the target, d = s - t. Each loss is written into the model as standard ONNX operators. The
formulas give the loss of one row; the loss of a batch is the mean over its rows (weighted with the
sample weights, if there are any), their sum with ``reduction="sum"``, or the loss of each row with
``reduction="none"``.

Wherever a loss is asked for, these do too:

- its name: ``"squared_error"`` (``"mse"``, ``"l2"``), ``"absolute_error"`` (``"mae"``, ``"l1"``),
  ``"huber"``, ``"smooth_l1"``, ``"elastic"``, ``"poisson"``, ``"cosine"``,
  ``"softmax_cross_entropy"`` (``"cross_entropy"``), ``"binary_cross_entropy"`` (``"bce"``),
  ``"log_loss"``, ``"negative_log_likelihood"`` (``"nll"``), ``"kl_divergence"`` (``"kl"``),
  ``"one_vs_rest_log"``, ``"hinge"``, ``"squared_hinge"``, ``"modified_huber"``, ``"auto"``;
- a name with options, ``"huber:delta=2"``, or ``"output:NAME"``, as the command line has them;
- a dictionary from outputs of the model to losses, or to pairs (loss, factor): the sum of them,
  with a target for each output. A loss of scores finds those behind the output.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from onnxgrad import _core
from onnxgrad._loss_base import Loss, NativeFunction, Reduction
from onnxgrad._penalties import Penalty, PenaltyLike, as_penalties
from onnxgrad._user_losses import Output, User, traced
from onnxgrad.base.checks import real_number, unknown_name
from onnxgrad.errors import OptionError

__all__ = [
    "AbsoluteError",
    "Auto",
    "BinaryCrossEntropy",
    "Cosine",
    "Elastic",
    "Huber",
    "KlDivergence",
    "LogLoss",
    "Loss",
    "LossLike",
    "NegativeLogLikelihood",
    "OneVsRest",
    "Output",
    "Penalty",
    "PenaltyLike",
    "Poisson",
    "SmoothL1",
    "SoftmaxCrossEntropy",
    "SquaredError",
    "User",
    "from_name",
    "names",
    "traced",
]


def _axis(axis: Any) -> int | None:
    """Check an axis of the scores."""
    if axis is None:
        return None
    try:
        return operator.index(axis)
    except TypeError:
        raise OptionError(
            what=f"axis: {axis!r} is not a whole number",
            value="axis",
            hint="Give the axis of the scores that has the classes, such as -1.",
        ) from None


Kind: TypeAlias = Literal["log", "hinge", "squared_hinge", "modified_huber"]
KINDS = ("log", "hinge", "squared_hinge", "modified_huber")


class Auto(Loss):
    """Chosen by the head of the model.

    Squared error for a regression output; softmax, binary or one-vs-rest cross-entropy for the
    scores behind Softmax or Sigmoid; the negative log of the probability where there are no scores.

    Parameters
    ----------
    axis : int, default=None
        Of a loss of classes that is chosen; see `SoftmaxCrossEntropy`.
    """

    axis: int | None

    def __init__(
        self, *, axis: int | None = None, output: str = "", reduction: Reduction = "mean"
    ) -> None:
        self._set(output, reduction, axis=_axis(axis))

    def _function(self) -> NativeFunction:
        return _core.AutoLoss()


class SquaredError(Loss):
    """sum_j (s_j - t_j)^2 over the outputs of a row, averaged over j.

    s, t: [N, K] or [N], floating.
    """

    def _function(self) -> NativeFunction:
        return _core.SquaredError()


class AbsoluteError(Loss):
    """sum_j |d_j| over the outputs of a row, averaged over j. s, t: [N, K] or [N], floating."""

    def _function(self) -> NativeFunction:
        return _core.AbsoluteError()


class Huber(Loss):
    """d^2 / 2 where abs(d) <= delta, else delta (abs(d) - delta / 2); averaged over the outputs.

    s, t: [N, K] or [N], floating.

    Parameters
    ----------
    delta : float, default=1
    """

    delta: float

    def __init__(
        self, *, delta: float = 1.0, output: str = "", reduction: Reduction = "mean"
    ) -> None:
        real_number("delta", delta, open_minimum=True)
        self._set(output, reduction, delta=delta)

    def _function(self) -> NativeFunction:
        return _core.Huber(self.delta)


class SmoothL1(Loss):
    """d^2 / (2 beta) where abs(d) <= beta, else abs(d) - beta / 2; averaged over the outputs.

    s, t: [N, K] or [N], floating.

    Parameters
    ----------
    beta : float, default=1
    """

    beta: float

    def __init__(
        self, *, beta: float = 1.0, output: str = "", reduction: Reduction = "mean"
    ) -> None:
        real_number("beta", beta, open_minimum=True)
        self._set(output, reduction, beta=beta)

    def _function(self) -> NativeFunction:
        return _core.SmoothL1(self.beta)


class Elastic(Loss):
    """l1_weight abs(d) + l2_weight d^2, averaged over the outputs.

    s, t: [N, K] or [N], floating.

    Parameters
    ----------
    l1_weight, l2_weight : float, default=0.5
    """

    l1_weight: float
    l2_weight: float

    def __init__(
        self,
        *,
        l1_weight: float = 0.5,
        l2_weight: float = 0.5,
        output: str = "",
        reduction: Reduction = "mean",
    ) -> None:
        real_number("l1_weight", l1_weight)
        real_number("l2_weight", l2_weight)
        self._set(output, reduction, l1_weight=l1_weight, l2_weight=l2_weight)

    def _function(self) -> NativeFunction:
        return _core.Elastic(self.l1_weight, self.l2_weight)


class Poisson(Loss):
    """exp(s) - t s, or s - t log(s + 1e-8) without `log_input`; averaged over the outputs.

    s, t: [N, K] or [N]; t >= 0 are counts.

    Parameters
    ----------
    log_input : bool, default=True
        Whether s is the logarithm of the expected count, or the expected count itself.
    """

    log_input: bool

    def __init__(
        self, *, log_input: bool = True, output: str = "", reduction: Reduction = "mean"
    ) -> None:
        self._set(output, reduction, log_input=bool(log_input))

    def _function(self) -> NativeFunction:
        return _core.Poisson(self.log_input)


class Cosine(Loss):
    """1 - s.t / (norm(s) norm(t)), with norms of at least 1e-8.

    s, t: [N, K]; their rows are vectors.
    """

    def _function(self) -> NativeFunction:
        return _core.Cosine()


class SoftmaxCrossEntropy(Loss):
    """-log softmax(s)[t].

    s: [N, C] before any Softmax, t: [N] class numbers; or s with more axes, such as [B, T, C], and
    t of the shape of s without the class axis, such as [B, T]: the mean over the places of a row.
    With p = softmax(s), w = class_weights and e = label_smoothing a row's loss is
    (1 - e) w[t] (-log p[t]) + e / C sum_c w[c] (-log p[c]), and it counts w[t] times in a mean.
    With one-hot targets it is -sum_c w[c] log p[c] ((1 - e) t[c] + e / C), and counts once.

    Parameters
    ----------
    ignore_index : int, default=None
        Rows (or places) of this class count nothing.
    class_weights : sequence of float [C], default=()
        Weight of each class, in the order of the columns.
    label_smoothing : float, default=0
        In [0, 1).
    one_hot : bool, default=False
        Whether targets are rows [N, C] of 0 and 1, or of probabilities.
    axis : int, default=None
        The axis of s that has the classes, of three axes or more; negative from the end. None: the
        axis of the model's own Softmax or ArgMax; else the one that the shape of the first labels
        leaves out (several that fit are an error, unless one of them is the only axis of a fixed
        size behind the first). In files, which have no labels, and with one-hot targets: that only
        axis of a fixed size, else axis 1 as in PyTorch.
    """

    ignore_index: int | None
    class_weights: tuple[float, ...]
    label_smoothing: float
    one_hot: bool
    axis: int | None

    def __init__(
        self,
        *,
        ignore_index: int | None = None,
        class_weights: Iterable[float] = (),
        label_smoothing: float = 0.0,
        one_hot: bool = False,
        axis: int | None = None,
        output: str = "",
        reduction: Reduction = "mean",
    ) -> None:
        real_number("label_smoothing", label_smoothing, 0.0, 1.0)
        self._set(
            output,
            reduction,
            ignore_index=ignore_index,
            class_weights=tuple(real_number("class_weights", w) for w in class_weights),
            label_smoothing=label_smoothing,
            one_hot=bool(one_hot),
            axis=_axis(axis),
        )

    def _function(self) -> NativeFunction:
        return _core.SoftmaxCrossEntropy(
            self.ignore_index, list(self.class_weights), self.label_smoothing, self.one_hot
        )


class BinaryCrossEntropy(Loss):
    """log(1 + exp(s)) - t*s with t in {0, 1}, averaged over the columns of a row.

    s: [N] or [N, 1] with class numbers t: [N]; or s: [N, K] before any Sigmoid with t: [N, K] of
    numbers from 0 to 1.

    Parameters
    ----------
    soft_targets : bool, default=False
        Whether targets of one column, too, are numbers from 0 to 1, of the type and shape of s. A
        session that is given fractions as targets does so by itself.
    """

    soft_targets: bool

    def __init__(
        self, *, soft_targets: bool = False, output: str = "", reduction: Reduction = "mean"
    ) -> None:
        self._set(output, reduction, soft_targets=bool(soft_targets))

    def _function(self) -> NativeFunction:
        return _core.BinaryCrossEntropy(self.soft_targets)


class LogLoss(Loss):
    """-t log p - (1 - t) log(1 - p) on probabilities, averaged over the columns of a row.

    p: [N] or [N, 1] with class numbers t: [N]; or p, t: [N, K]. Logarithms are of at least
    min_probability.

    Parameters
    ----------
    min_probability : float, default=0
        0 is the smallest normal number of the type of p.
    soft_targets : bool, default=False
        As for `BinaryCrossEntropy`.
    """

    min_probability: float
    soft_targets: bool

    def __init__(
        self,
        *,
        min_probability: float = 0.0,
        soft_targets: bool = False,
        output: str = "",
        reduction: Reduction = "mean",
    ) -> None:
        real_number("min_probability", min_probability, 0.0, 1.0)
        self._set(
            output, reduction, min_probability=min_probability, soft_targets=bool(soft_targets)
        )

    def _function(self) -> NativeFunction:
        return _core.LogLoss(self.min_probability, self.soft_targets)


class KlDivergence(Loss):
    """sum_c t[c] (log t[c] - log softmax(s)[c]).

    s: [N, C] before any Softmax, or logarithms of probabilities; t: [N, C] probabilities. With more
    axes, the mean over the places of a row.

    Parameters
    ----------
    axis : int, default=None
        As for `SoftmaxCrossEntropy`; t, of the shape of s, does not tell.
    """

    axis: int | None

    def __init__(
        self, *, axis: int | None = None, output: str = "", reduction: Reduction = "mean"
    ) -> None:
        self._set(output, reduction, axis=_axis(axis))

    def _function(self) -> NativeFunction:
        return _core.KlDivergence()


class NegativeLogLikelihood(Loss):
    """-log(max(p[t], min_probability)) on probabilities.

    p: [N, C] and t: [N] class numbers, or more axes as for `SoftmaxCrossEntropy`.

    Parameters
    ----------
    min_probability : float, default=0
        0 is the smallest normal number of the type of p.
    ignore_index : int, default=None
        Rows (or places) of this class count nothing.
    axis : int, default=None
        As for `SoftmaxCrossEntropy`.
    """

    min_probability: float
    ignore_index: int | None
    axis: int | None

    def __init__(
        self,
        *,
        min_probability: float = 0.0,
        ignore_index: int | None = None,
        axis: int | None = None,
        output: str = "",
        reduction: Reduction = "mean",
    ) -> None:
        real_number("min_probability", min_probability, 0.0, 1.0)
        self._set(
            output,
            reduction,
            min_probability=min_probability,
            ignore_index=ignore_index,
            axis=_axis(axis),
        )

    def _function(self) -> NativeFunction:
        return _core.NegativeLogLikelihood(self.min_probability, self.ignore_index)


class OneVsRest(Loss):
    """One problem "this class against the rest" per column, as scikit-learn's SGDClassifier.

    With y = +1 for the row's class and -1 otherwise, z = y*s, summed over the columns:
    ``"log"`` is log(1 + exp(-z)), ``"hinge"`` is max(0, 1 - z), ``"squared_hinge"`` is its square,
    and ``"modified_huber"`` is max(0, 1 - z)^2 for z >= -1, else -4z.

    s: [N, C] raw scores, or [N, 1] for two classes; t: [N] class numbers.
    """

    kind: Kind

    def __init__(
        self,
        *,
        kind: Kind = "log",
        output: str = "",
        reduction: Reduction = "mean",
    ) -> None:
        if kind not in KINDS:
            raise unknown_name("kind", kind, KINDS)
        self._set(output, reduction, kind=kind)

    def _function(self) -> NativeFunction:
        return _core.OneVsRest(getattr(_core.OneVsRest.Kind, self.kind))


LossLike: TypeAlias = "Loss | str | Mapping[str, Loss | str | tuple[Loss | str, float]]"
"""A loss or its name, or for several outputs a dictionary of losses or pairs (loss, factor)."""

_BY_NAME: dict[str, Loss] = {
    "absolute_error": AbsoluteError(),
    "auto": Auto(),
    "binary_cross_entropy": BinaryCrossEntropy(),
    "cosine": Cosine(),
    "elastic": Elastic(),
    "hinge": OneVsRest(kind="hinge"),
    "huber": Huber(),
    "kl_divergence": KlDivergence(),
    "log_loss": LogLoss(),
    "modified_huber": OneVsRest(kind="modified_huber"),
    "negative_log_likelihood": NegativeLogLikelihood(),
    "one_vs_rest_log": OneVsRest(kind="log"),
    "poisson": Poisson(),
    "smooth_l1": SmoothL1(),
    "softmax_cross_entropy": SoftmaxCrossEntropy(),
    "squared_error": SquaredError(),
    "squared_hinge": OneVsRest(kind="squared_hinge"),
}
_SHORT = {
    "bce": "binary_cross_entropy",
    "cross_entropy": "softmax_cross_entropy",
    "kl": "kl_divergence",
    "l1": "absolute_error",
    "l2": "squared_error",
    "mae": "absolute_error",
    "mse": "squared_error",
    "nll": "negative_log_likelihood",
}


def names() -> list[str]:
    """Return the names of all losses, sorted."""
    return sorted(_BY_NAME)


def from_name(name: str) -> Loss:
    """Return the loss of that name.

    Raises
    ------
    OptionError
        If there is none; names the nearest.

    Examples
    --------
    >>> from_name("hinge")
    OneVsRest(output='', reduction='mean', kind='hinge')
    """
    loss = _BY_NAME.get(_SHORT.get(name, name))
    if loss is None:
        raise unknown_name("loss", name, names())
    return loss


def name_of(function: NativeFunction) -> str:
    """Return the name of the extension's loss, whatever its options; empty if it has none."""
    kind = getattr(function, "kind", None)
    for name, loss in _BY_NAME.items():
        named = loss._function()
        if type(named) is type(function) and getattr(named, "kind", None) == kind:
            return name
    return ""


def as_loss(loss: Any) -> Loss:
    """Return a loss, or the loss of that name."""
    if isinstance(loss, str) and ":" in loss:  # with options, as the command line has them
        from onnxgrad._specs import loss_of

        return loss_of(loss)
    described = from_name(loss) if isinstance(loss, str) else loss
    if not isinstance(described, Loss):
        raise OptionError(
            what=f"loss: a {type(loss).__name__} is not a loss",
            value="loss",
            hint=f"Give an object of onnxgrad.losses or one of {', '.join(names())}.",
        )
    return described


def _terms(loss: Any) -> list[tuple[Loss, float]]:
    """Return the losses of a dictionary, each put on its output, and their factors."""
    if not loss:
        raise OptionError(
            what="loss: an empty dictionary",
            value="loss",
            hint="Give losses by the name of their outputs: {'Y': 'squared_error'}.",
        )
    terms = []
    for output, entry in loss.items():
        pair = entry if isinstance(entry, (tuple, list)) else (entry, 1.0)
        if len(pair) != 2:
            raise OptionError(
                what=f"loss: {len(pair)} entries for output '{output}', expected (loss, factor)",
                value="loss",
                hint="Give the loss alone, or (loss, factor).",
            )
        described = as_loss(pair[0]).replace(output=str(output))
        terms.append((described, real_number(f"factor of '{output}'", pair[1])))
    for (first, _), (other, _) in itertools.pairwise(terms):
        if first.reduction != other.reduction:
            raise OptionError(
                what="loss: different reductions",
                value="loss",
                hint="Give all of them the same reduction.",
            )
    return terms


def to_core_loss(
    loss: LossLike,
    target: str = "label",
    sample_weight: str = "",
    penalty: PenaltyLike | None = None,
) -> _core.Loss:
    """Return the extension's description of a loss."""
    terms = _terms(loss) if isinstance(loss, Mapping) else [(as_loss(loss), 1.0)]
    several = isinstance(loss, Mapping)
    natives: list[_core.Loss] = []
    for described, factor in reversed(terms):
        is_first = described is terms[0][0]
        own_target, own_weight = target, sample_weight
        if isinstance(described, Output):
            own_target, own_weight = described.target, described.sample_weight or sample_weight
        natives.append(
            _core.Loss(
                described._function(),
                described.output,
                several,
                f"{target}_{described.output}" if several else own_target,
                own_weight if is_first else "",
                getattr(_core.Reduction, described.reduction),
                [one._native() for one in as_penalties(penalty)] if is_first else [],
                factor,
                natives[::-1] if is_first else [],
                getattr(described, "axis", None),
            )
        )
    return natives[-1]
