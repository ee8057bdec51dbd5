"""Weights that patterns of `trainable=` and `unfreeze` select."""

import numpy as np
import onnx.parser
import pytest

import onnxgrad as og
from onnxgrad import optimizers as opt
from support import initializers


class TestPatternsSelectParameters:
    """A ratio, statistics and numbers of formulas are trained by their full names only."""

    MODEL = """
    <ir_version: 10, opset_import: ["" : 21]>
    dropped (float[N, 3] x) => (float[N, 2] y)
    <float[3] scale = {1, 2, 0.5}, float[3] shift = {0, 0.1, -0.2}, float[3] mean = {0.5, 0, 0},
     float[3] var = {1, 2, 1}, float p_drop = {0.3}, float two = {2},
     float[3, 2] w = {1, 0, 0, 1, 1, 1}>
    {
      n = BatchNormalization(x, scale, shift, mean, var)
      d = Dropout(n, p_drop)
      m = MatMul(d, w)
      y = Mul(m, two)
    }
    """
    PARAMETERS = ("scale", "shift", "w")

    def session(self, **options):
        model = onnx.parser.parse_model(self.MODEL)
        return og.TrainingSession(model, "squared_error", opt.SGD(0.5), threads=1, **options)

    def names(self, session):
        return {weight.name for weight in session.trained_weights}

    def test_all(self):
        for session in (self.session(), self.session(trainable="*"), self.session(frozen="s*")):
            session.unfreeze("*")
            session.unfreeze("*")  # all are trained already
            assert self.names(session) == set(self.PARAMETERS)
        feeds = {"x": np.ones((8, 3), np.float32), "label": np.ones((8, 2), np.float32)}
        for _ in range(20):
            session.step(feeds)
        assert initializers(session.trained_model())["p_drop"] == np.float32(0.3)

    def test_a_name_selects_any(self):
        session = self.session(trainable=["w", "two"])
        assert self.names(session) == {"w", "two"}
        session.freeze("two")
        session.unfreeze("*")  # it was trained before
        assert self.names(session) == {"two", *self.PARAMETERS}

    def test_nothing_but_statistics(self):
        with pytest.raises(og.ModelError, match=r"'mea\*' matches no parameter[^$]*statistics"):
            self.session().unfreeze("mea*")
        for pattern in ("t*", "p_*", "two*"):
            with pytest.raises(og.ModelError, match="matches no parameter"):
                self.session(trainable=pattern)
            with pytest.raises(og.ModelError, match="matches no parameter"):
                self.session().unfreeze(pattern)
