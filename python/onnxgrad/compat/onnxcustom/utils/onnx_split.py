"""Cutting a model into parts that run one after the other; see `onnxgrad.compat.graphs.tools`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx

from onnxgrad.compat.graphs import tools

__all__ = ["OnnxSegment", "OnnxSplitting", "split_onnx"]


class OnnxSegment:
    """The nodes of a model between two neighbouring places to cut.

    Attributes
    ----------
    parent : OnnxSplitting
    begin, end : str or None
        Names of the values; None means the beginning or the end of the model.
    size : int
        Bytes of the initializers that it reads.
    involved, nodes : list of onnx.NodeProto
    shape_results : list
        Empty: a segment needs nothing but its value.
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
    """A model and the places where it can be cut.

    Parameters
    ----------
    onnx_model : onnx.ModelProto
    verbose : int, default=0
        Above 0 it prints what it does.
    doc_string : bool, default=False
        Whether the parts say in their doc_string which ones they are.
    fLOG : callable, default=None
        Takes the messages of `verbose`; None prints them.

    Attributes
    ----------
    cutting_points : list of str
        Values that everything after them depends on alone.
    segments : list of OnnxSegment
        One more than there are places to cut.
    """

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
        """Return the places of the first segment of each part, and the number of segments.

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
        places = sorted(self.cutting_points.index(name) + 1 for name in cut_points)
        return [0, *places, len(self.segments)]

    def make_onnx(self, extremities: Sequence[int]) -> list[onnx.ModelProto]:
        """Return a model for each part that `split_segment` has chosen."""
        cuts = [self.cutting_points[place - 1] for place in extremities[1:-1]]
        self._log(f"splits {[*extremities]} at {cuts}")
        parts = tools.split(self.onnx_model, cuts)
        if self.doc_string:
            for place, part in enumerate(parts):
                part.doc_string += f"\nsegments {extremities[place]}:{extremities[place + 1]}"
        return parts


def split_onnx(
    onnx_model: onnx.ModelProto,
    n_parts: int | None = None,
    cut_points: Sequence[str] | None = None,
    verbose: int = 0,
    stats: bool = False,
    doc_string: bool = False,
    fLOG: Callable[..., Any] | None = None,
) -> Any:
    """Return parts of a model; the outputs of each are the inputs of the next.

    Parameters
    ----------
    onnx_model : onnx.ModelProto
    n_parts : int, default=None
        Number of parts; they are cut where they have about the same number of nodes.
    cut_points : list of str, default=None
        In place of `n_parts`, names of values where all of the computation goes through.
    verbose, doc_string, fLOG
        Of `OnnxSplitting`.
    stats : bool, default=False
        True returns the parts and a dictionary: ``split``, ``segments``, ``cutting_points``,
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
        "split_points": [splitting.segments[place].begin for place in extremities[1:-1]],
    }
