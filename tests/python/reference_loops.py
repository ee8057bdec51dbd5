"""ONNX's reference evaluator with Loop, Scan and operators of sequences as the standard has them.

Its own ones (onnx 1.23) run no iteration where a condition is absent, stack with vstack, know no
Scan from the last row on, no SequenceMap of an empty sequence, and insert before the first element
where the position is the end.
"""

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_sequence_map


def _stacked(rows: list[np.ndarray]) -> np.ndarray:
    return np.stack(rows) if rows else np.zeros((0,))


class Loop(OpRun):
    op_domain = ""

    def need_context(self) -> bool:
        return True

    def _run(  # type: ignore[override]
        self,
        count: Any,
        condition: Any,
        *initial: Any,
        context: Any = None,
        body: Any = None,
        attributes: Any = None,
    ) -> tuple:
        names = self.body.input_names
        states = list(initial)
        rows: list[list] = [[] for _ in self.body.output_names[1 + len(states) :]]
        goes_on = condition is None or bool(condition)
        i = 0
        while goes_on and (count is None or i < int(count)):
            formals = dict(zip(names, [np.array(i), np.array(goes_on), *states], strict=True))
            results = self.body.run(None, {**(context or {}), **formals})
            goes_on = bool(results[0])
            states = results[1 : 1 + len(states)]
            for kept, row in zip(rows, results[1 + len(states) :], strict=True):
                kept.append(row)
            i += 1
        return (*states, *map(_stacked, rows))


class Scan(OpRun):
    op_domain = ""

    def need_context(self) -> bool:
        return True

    def _run(  # type: ignore[override]
        self,
        *operands: Any,
        context: Any = None,
        num_scan_inputs: int = 0,
        scan_input_directions: Any = None,
        scan_output_directions: Any = None,
        **_attributes: Any,
    ) -> tuple:
        first = len(operands) - num_scan_inputs
        states = list(operands[:first])
        rows: list[list] = [[] for _ in self.body.output_names[first:]]
        turned = scan_input_directions or [0] * num_scan_inputs
        scanned = [x[::-1] if d else x for x, d in zip(operands[first:], turned, strict=True)]
        for row in zip(*scanned, strict=True):
            formals = dict(zip(self.body.input_names, [*states, *row], strict=True))
            results = self.body.run(None, {**(context or {}), **formals})
            states = results[:first]
            for kept, result in zip(rows, results[first:], strict=True):
                kept.append(result)
        turned = scan_output_directions or [0] * len(rows)
        stacked = [
            _stacked(kept[::-1] if d else kept) for kept, d in zip(rows, turned, strict=True)
        ]
        return (*states, *stacked)


class SequenceInsert(OpRun):
    op_domain = ""

    def _run(self, sequence: list, tensor: np.ndarray, position: Any = None) -> tuple:
        result = list(sequence)
        result.insert(len(result) if position is None else int(position), tensor)
        return (result,)


class SequenceMap(op_sequence_map.SequenceMap):
    op_domain = ""

    def _run(self, sequence: list, *others: Any, **attributes: Any) -> tuple:
        if sequence:
            return super()._run(sequence, *others, **attributes)
        return tuple([] for _ in self.onnx_node.output)


def run_reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Evaluate; `feeds` may hold more than the inputs."""
    names = {i.name for i in model.graph.input}
    evaluator = ReferenceEvaluator(model, new_ops=[Loop, Scan, SequenceInsert, SequenceMap])
    return evaluator.run(None, {k: v for k, v in feeds.items() if k in names})
