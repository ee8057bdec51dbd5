"""AdamW as onnxruntime-training computes it: a model of one update of one weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser

__all__ = ["adamw_update"]

# AdamW of transformers and, with decay before the step and corrected roots, of PyTorch.
_ADAMW = """
<ir_version: 8, opset_import: ["" : 18]>
adamw (%(type)s[] w, %(type)s[] g, %(type)s lr, %(type)s step,
       %(type)s[] momentum0, %(type)s[] momentum1)
  => (%(type)s[] next_w, %(type)s[] m, %(type)s[] v)
<%(type)s b1 = {%(alpha)r}, %(type)s c1 = {%(rest1)r}, %(type)s b2 = {%(beta)r},
 %(type)s c2 = {%(rest2)r}, %(type)s eps = {%(epsilon)r}, %(type)s decay = {%(weight_decay)r},
 %(type)s one = {1}>
{ mb = Mul(b1, momentum0)
  gc = Mul(c1, g)
  m = Add(mb, gc)
  vb = Mul(b2, momentum1)
  gg = Mul(g, g)
  ggc = Mul(c2, gg)
  v = Add(vb, ggc)
  rate = Mul(lr, decay)
  kept = Sub(one, rate)
  %(body)s }
"""
_CORRECTION = """p1 = Pow(b1, step)
  q1 = Sub(one, p1)
  p2 = Pow(b2, step)
  q2 = Sub(one, p2)
  r2 = Sqrt(q2)
"""
_TRANSFORMERS = """root = Sqrt(v)
  below = Add(root, eps)
  %s
  sm = Mul(size, m)
  move = Div(sm, below)
  moved = Sub(w, move)
  next_w = Mul(moved, kept)"""
_PYTORCH = """root = Sqrt(v)
  %s
  sm = Mul(size, m)
  move = Div(sm, below)
  shrunk = Mul(w, kept)
  next_w = Sub(shrunk, move)"""


def adamw_update(attributes: dict[str, Any], dtype: np.dtype[Any]) -> onnx.ModelProto:
    """Return the update for the attributes of an AdamWOptimizer node, for weights of `dtype`."""
    options = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "weight_decay": 0.0} | attributes
    corrects = bool(options.get("correct_bias", 1))
    if options.get("adam_mode", 0) == 1:
        size = _CORRECTION + "lr2 = Mul(lr, r2)\n  size = Div(lr2, q1)"
        body = _TRANSFORMERS % (size if corrects else "size = Identity(lr)")
    else:
        below = _CORRECTION + "corrected = Div(root, r2)\n  below = Add(corrected, eps)\n"
        size = below + "  size = Div(lr, q1)"
        body = _PYTORCH % (size if corrects else "below = Add(root, eps)\n  size = Identity(lr)")
    numbers = {name: float(options[name]) for name in ("alpha", "beta", "epsilon", "weight_decay")}
    numbers |= {"rest1": 1 - numbers["alpha"], "rest2": 1 - numbers["beta"]}
    kind = {"float64": "double"}.get(dtype.name, "float")
    text = _ADAMW % {**numbers, "body": body, "type": kind}
    return onnx.parser.parse_model(text)
