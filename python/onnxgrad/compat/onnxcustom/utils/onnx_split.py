"""Splitting a model into parts that run one after the other; see `onnxgrad.compat.graphs.tools`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx

from onnxgrad.compat.graphs import tools
from onnxgrad.compat.models import takes_models

__all__ = ["OnnxSegment", "OnnxSplitting", "split_onnx"]


class OnnxSegment:
    """The nodes of a model between two adjacent cut points.

    Attributes
    ----------
    parent : OnnxSplitting
    begin, end : str or None
        Names of the cut points; None means the beginning or the end of the model.
    size : int
        Bytes of the initializers that it reads.
    involved, nodes : list of onnx.NodeProto
    shape_results : list
        Empty: a segment only needs the value at its beginning.
    """

    def __init__(
        self,
        parent: OnnxSplitting,
        begin: str | None,
        end: str | None,
        size: int = 0,
        involved: Any = None,
        nodes: Any = None,
        shape_results: Any = None,
    ) -> None:
        self.parent, self.begin, self.end, self.size = parent, begin, end, size
        self.involved = involved or []
        self.nodes = nodes or []
        self.shape_results = shape_results or []

    def __repr__(self) -> str:
        return f"OnnxSegment({self.begin!r}, {self.end!r}, size={self.size})"


class OnnxSplitting:
    """A model and its cut points.

    Parameters
    ----------
    onnx_model : onnx.ModelProto
    verbose : int, default=0
        Whether to log progress.
    doc_string : bool, default=False
        Whether to add the segments of a part to its doc_string.
    fLOG : callable, default=None
        Function that logs messages; None prints them.

    Attributes
    ----------
    cutting_points : list of str
        Values that all later nodes depend on exclusively.
    segments : list of OnnxSegment
        The segments between the cut points.
    """

    @takes_models("onnx_model")
    def __init__(
        self,
        onnx_model: onnx.ModelProto,
        verbose: int = 0,
        doc_string: bool = False,
        fLOG: Callable[..., Any] | None = None,
    ) -> None:
        self.onnx_model = onnx_model
        self.verbose = verbose
        self.doc_string = doc_string
        self.fLOG = fLOG or print
        self.cutting_points = [*tools.cut_points(onnx_model)]
        parts = tools.split(onnx_model, self.cutting_points)
        begins, ends = [None, *self.cutting_points], [*self.cutting_points, None]
        self.segments = [
            OnnxSegment(
                self,
                begin,
                end,
                sum(i.ByteSize() for i in part.graph.initializer),
                involved=[*part.graph.node],
                nodes=[*part.graph.node],
            )
            for begin, end, part in zip(begins, ends, parts, strict=True)
        ]
        self._log(f"{len(onnx_model.graph.node)} nodes, {len(self.segments)} segments")

    def _log(self, text: str) -> None:
        if self.verbose > 0:
            self.fLOG(f"[OnnxSplitting] {text}")

    def split_segment(
        self, n_parts: int | None = None, cut_points: Sequence[str] | None = None
    ) -> list[int]:
        """Return the index of the first segment of each part, and the number of segments.

        Raises
        ------
        ValueError
            Neither or both are given, or the model cannot be cut there.
        """
        if (n_parts is None) == (cut_points is None):
            raise ValueError("Give either n_parts or cut_points.")
        if cut_points is None:
            assert n_parts is not None
            cut_points = tools.choose_cut_points(self.onnx_model, n_parts)
        for name in cut_points:
            if name not in self.cutting_points:
                raise ValueError(f"Unable to split at {name!r}, only at {self.cutting_points}.")
        indices = sorted(self.cutting_points.index(name) + 1 for name in cut_points)
        return [0, *indices, len(self.segments)]

    def make_onnx(self, extremities: Sequence[int]) -> list[onnx.ModelProto]:
        """Return a model for each part chosen by `split_segment`."""
        cuts = [self.cutting_points[i - 1] for i in extremities[1:-1]]
        self._log(f"splits {[*extremities]} at {cuts}")
        parts = tools.split(self.onnx_model, cuts)
        if self.doc_string:
            for i, part in enumerate(parts):
                part.doc_string += f"\nsegments {extremities[i]}:{extremities[i + 1]}"
        return parts


@takes_models("onnx_model")
def split_onnx(
    onnx_model: onnx.ModelProto,
    n_parts: int | None = None,
    cut_points: Sequence[str] | None = None,
    verbose: int = 0,
    stats: bool = False,
    doc_string: bool = False,
    fLOG: Callable[..., Any] | None = None,
) -> Any:
    """Split a model into parts; the outputs of each are the inputs of the next.

    Parameters
    ----------
    onnx_model : onnx.ModelProto
    n_parts : int, default=None
        Number of parts, which have about the same number of nodes.
    cut_points : list of str, default=None
        Names of cut points, instead of `n_parts`.
    verbose, doc_string, fLOG
        As for `OnnxSplitting`.
    stats : bool, default=False
        Whether to return a dictionary too: ``split``, ``segments``, ``cutting_points``,
        ``extremities``, ``split_points``.

    Raises
    ------
    ValueError
        Neither or both are given, or the model cannot be cut there.
    """
    splitting = OnnxSplitting(onnx_model, verbose, doc_string, fLOG)
    extremities = splitting.split_segment(n_parts, cut_points)
    parts = splitting.make_onnx(extremities)
    if not stats:
        return parts
    return parts, {
        "split": splitting,
        "segments": [
            {"size": s.size, "nodes": len(s.nodes), "involved": s.involved}
            for s in splitting.segments
        ],
        "cutting_points": splitting.cutting_points,
        "extremities": extremities,
        "split_points": [splitting.segments[i].begin for i in extremities[1:-1]],
    }
