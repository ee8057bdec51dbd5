"""Models whose matrices are integers of few bits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onnxgrad import _core
from onnxgrad.base.checks import checked_names
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model
from onnxgrad.base.quantized_weights import core_quantize_weights

if TYPE_CHECKING:
    import onnx

__all__ = ["dequantize_weights", "quantize_weights"]


@checked_names
def quantize_weights(
    model: ModelLike,
    kind: str = "int4",
    *,
    block_size: int = 32,
    symmetric: bool = True,
    operators: str = "MatMulNBits",
    targets: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
) -> onnx.ModelProto:
    """Return a model with packed weights in its linear layers, each rounded to the nearest code.

    They stay packed in memory, and an adapter trained on them is QLoRA. Stock onnxruntime runs the
    file.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    kind : {"int4", "int8", "nf4"}, default="int4"
        ``"nf4"`` is NormalFloat (Dettmers et al., QLoRA, arXiv:2305.14314), written as Gather from
        its table, Mul and Reshape.
    block_size : int, default=32
        Inputs that share a scale: a power of two from 16 on.
    symmetric : bool, default=True
        Whether blocks have no zero points.
    operators : {"MatMulNBits", "DequantizeLinear"}, default="MatMulNBits"
        How integers are written; `DequantizeLinear` of blocks needs opset 21.
    targets : str or list of str, default=None
        Layers, as for `adapters.LoRA`; None means all linear layers but the head.
    exclude : str or list of str, default=()
        Layers to leave out, in the same forms.
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.

    Raises
    ------
    ModelError
        The model has no such layer, or has adapters, which come after.

    Examples
    --------
    >>> import onnxgrad as og
    >>> packed = og.quantize_weights(linear_model, "int8", targets="coef", block_size=16)
    >>> packed.graph.node[0].op_type
    'MatMulNBits'
    """
    form = kind_if(like, model, path)
    made = core_quantize_weights(
        to_core_model(model),
        kind,
        block_size=block_size,
        symmetric=symmetric,
        operators=operators,
        targets=targets,
        exclude=exclude,
    )
    return deliver(made, path, form)


@checked_names
def dequantize_weights(
    model: ModelLike, *, path: str | os.PathLike[str] | None = None, like: bool = False
) -> onnx.ModelProto:
    """Return the model with float weights in its linear layers instead of packed ones.

    It computes the same, and adapters can be merged into it. Weights of `MatMulNBits`,
    `DequantizeLinear` and NF4 are replaced, whoever wrote them.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.

    Raises
    ------
    ModelError
        The model has no such layer.
    """
    kind = kind_if(like, model, path)
    return deliver(_core.dequantize_weights(to_core_model(model)), path, kind)
