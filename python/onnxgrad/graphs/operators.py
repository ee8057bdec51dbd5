"""Operators and gradients of one's own, as functions of ONNX operators."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import checked_names
from onnxgrad.base.models import as_proto, is_model, to_core_model
from onnxgrad.errors import OptionError

if TYPE_CHECKING:
    import onnx

__all__ = ["Registration", "load_operators", "register_gradient", "register_operator"]

FunctionLike: TypeAlias = Any
"""An ``onnx.FunctionProto``, the text of one (``onnx.parser``), an ``onnxscript`` function, or a
model in any form but that of a path as a string, whose graph is the function."""

_RULES = "onnxgrad.rules"  # domain of gradients until they are registered


class Registration:
    """An operator, a gradient, or both, registered together; they stay until `unregister`.

    As a context manager it unregisters them at the end of the block. Models that were loaded, and
    sessions that were made before, keep them.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self._number = number

    def unregister(self) -> None:
        """Remove them; what they replaced counts again."""
        _core.unregister_operators(self._number)

    def __enter__(self) -> Registration:
        """Return the registration."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unregister."""
        self.unregister()

    def __repr__(self) -> str:
        """Return the name."""
        return f"Registration({self.name!r})"


@checked_names
def register_operator(
    function: FunctionLike,
    gradient: FunctionLike | None = None,
    *,
    name: str | None = None,
    overwrite: bool = False,
) -> Registration:
    """Register an operator that is made of others, and perhaps its gradient.

    Models that are loaded from then on may use the operator, in any domain but those of ONNX: in
    training, gradients, predictions and reports. Files that are written hold the function, or its
    expansion, so that other runtimes run them.

    Parameters
    ----------
    function : onnx.FunctionProto, str, onnxscript function or onnx.ModelProto
        What the operator computes; a text is in the syntax of ``onnx.parser.parse_function``. Of a
        model, the graph is the function, and `name` must be given.
    gradient : the same, default=None
        A function with the inputs of the operator, then its outputs if it reads them, then a
        cotangent for each output. It returns the gradients of the inputs, each of the shape and
        dtype of its input; those that are named "" or left out at the end are zero. None: the
        operator is differentiated through `function`.
    name : str, default=None
        ``"domain::Name"``; None is the name of the function.
    overwrite : bool, default=False
        Whether it may replace what is registered under this name.

    Returns
    -------
    Registration
        Can be used as a context manager, which unregisters at the end.

    Raises
    ------
    OptionError
        Not a function; an operator of ONNX; a name that is registered already; a gradient with a
        wrong number of inputs or outputs.
    ModelError
        A function that is no valid ONNX, or that calls itself.

    Examples
    --------
    >>> import onnxgrad as og
    >>> square = '''<opset_import: ["" : 21], domain: "own">
    ... Square (x) => (y) { y = Mul (x, x) }'''
    >>> rule = '''<opset_import: ["" : 21], domain: "own">
    ... SquareRule (x, dy) => (dx) { d = Add (x, x) dx = Mul (d, dy) }'''
    >>> with og.register_operator(square, rule) as registered:
    ...     print(registered.name)
    own::Square
    """
    main, helpers = _functions_of("function", function, name)
    operator = name or f"{main.domain}::{main.name}"
    functions, body = [main, *helpers], f"{main.domain}::{main.name}"
    specs = [_core.OperatorSpec(operator, body, "", [])]
    if gradient is not None:
        rule, inputs, more = _rule_of(gradient)
        functions += [rule, *(one for one in more if _key(one) not in map(_key, functions))]
        specs = [_core.OperatorSpec(operator, body, f"{rule.domain}::{rule.name}", inputs)]
    return _register(operator, functions, specs, overwrite)


@checked_names
def register_gradient(
    operator: str, gradient: FunctionLike, *, overwrite: bool = False
) -> Registration:
    """Register a gradient for an operator that there is already.

    It replaces the gradient of an operator of ONNX (say, Round with a straight-through gradient),
    of a function that a model has, or of an operator that was registered without one.

    Parameters
    ----------
    operator : str
        ``"Round"``, or with a domain ``"domain::Name"``. It may have no subgraphs (If, Loop, Scan):
        a function gets neither the gradient of a subgraph, for which ONNX has no operator, nor what
        a subgraph reads of the graph around it. Register an operator with a gradient that the
        subgraph calls.
    gradient : onnx.FunctionProto, str, onnxscript function or onnx.ModelProto
        As for `register_operator`. Its inputs are all that the operator can have, in the newest
        form of ONNX; optional ones that a node leaves out are absent in the function too.
    overwrite : bool, default=False
        Whether it may replace a registered gradient.

    Returns
    -------
    Registration

    Raises
    ------
    OptionError
        As for `register_operator`.

    Examples
    --------
    >>> import onnxgrad as og
    >>> straight_through = '''<opset_import: ["" : 21], domain: "own">
    ... RoundRule (x, dy) => (dx) { dx = Identity (dy) }'''
    >>> with og.register_gradient("Round", straight_through) as registered:
    ...     print(registered.name)
    Round
    """
    rule, inputs, helpers = _rule_of(gradient)
    spec = _core.OperatorSpec(operator, "", f"{rule.domain}::{rule.name}", inputs)
    return _register(operator, [rule, *helpers], [spec], overwrite)


def load_operators(source: str) -> None:
    """Register what a library has, for the command line.

    `source` is an ``.onnx`` file, all of whose functions are registered (``Name_grad`` as the
    gradient of ``Name``), or a Python file or module, which registers by itself.
    """
    import importlib
    import runpy

    if source.endswith(".onnx"):
        _core.register_operators(to_core_model(source), [], True)
    elif source.endswith(".py"):
        try:
            runpy.run_path(source)
        except OSError as error:
            raise OptionError(
                what=f"operators: {source} cannot be read: {error.strerror}",
                value="operators",
                hint="Give an .onnx file, a .py file, or the name of a module.",
            ) from None
    else:
        try:
            importlib.import_module(source)
        except ImportError as error:
            raise OptionError(
                what=f"operators: there is no module '{source}': {error}",
                value="operators",
                hint="Give an .onnx file, a .py file, or the name of a module.",
            ) from None


def _register(
    name: str,
    functions: Sequence[onnx.FunctionProto],
    specs: list[_core.OperatorSpec],
    overwrite: bool,
) -> Registration:
    import onnx

    versions = {"": 1}
    for function in functions:
        versions.setdefault(function.domain, 1)
        for opset in function.opset_import:
            versions[opset.domain] = max(opset.version, versions.get(opset.domain, 1))
    library = onnx.helper.make_model(
        onnx.helper.make_graph([], "operators", [], []),
        functions=list(functions),
        opset_imports=[onnx.helper.make_opsetid(*item) for item in versions.items()],
        ir_version=10,
    )
    number = _core.register_operators(to_core_model(library), specs, bool(overwrite))
    return Registration(name, number)


def _key(function: onnx.FunctionProto) -> tuple[str, str]:
    return function.domain, function.name


def _rule_of(
    source: FunctionLike,
) -> tuple[onnx.FunctionProto, list[int], list[onnx.FunctionProto]]:
    """Return a gradient, the inputs that its outputs are for, and the functions that it calls."""
    rule, helpers = _functions_of("gradient", source, f"{_RULES}::Rule")
    inputs = [place for place, name in enumerate(rule.output) if name]
    kept = [name for name in rule.output if name]
    del rule.output[:]
    rule.output.extend(kept)
    rule.domain, rule.name = _RULES, f"{rule.name}_rule"  # not to be taken for an operator
    return rule, inputs, helpers


def _functions_of(
    option: str, source: FunctionLike, name: str | None
) -> tuple[onnx.FunctionProto, list[onnx.FunctionProto]]:
    """Return a function in any form as a FunctionProto, and further ones that it calls."""
    import onnx

    if hasattr(source, "to_function_proto"):  # a function of onnxscript
        return source.to_function_proto(), _called_by(source)
    if isinstance(source, str):
        try:
            source = onnx.parser.parse_function(source)
        except onnx.parser.ParseError as error:
            raise OptionError(
                what=f"{option}: this text is not an ONNX function",
                value=option,
                detail=str(error).strip().splitlines()[0],
                hint='Write <opset_import: ["" : 21], domain: "own"> Name (x) => (y) { ... }.',
            ) from None
    if isinstance(source, onnx.FunctionProto):
        copy = onnx.FunctionProto()
        copy.CopyFrom(source)
        return copy, []
    if is_model(source):
        source = as_proto(source)
        return _function_of_model(option, source, name), list(source.functions)
    raise OptionError(
        what=f"{option}: a {type(source).__name__} is not a function",
        value=option,
        hint="Give an onnx.FunctionProto, its text, an onnxscript function, or a model.",
    )


def _called_by(source: Any) -> list[onnx.FunctionProto]:
    """Return the onnxscript functions that one calls, directly or not, but is not registered."""
    registered = {one.name for one in _core.registered_operators() if one.has_body}
    found: dict[str, Any] = {}
    waiting = [source]
    while waiting:
        calls = getattr(getattr(waiting.pop(), "function_ir", None), "get_called_functions", dict)
        for one in calls().values():
            proto = one.to_function_proto()
            name = f"{proto.domain}::{proto.name}"
            if one is not source and name not in found and name not in registered:
                found[name] = proto
                waiting.append(one)
    return list(found.values())


def _function_of_model(option: str, model: onnx.ModelProto, name: str | None) -> onnx.FunctionProto:
    import onnx

    if name is None or "::" not in name:
        raise OptionError(
            what=f"{option}: a model as an operator has no domain",
            value=option,
            hint="Name the operator with name='domain::Name'.",
        )
    domain, short = name.rsplit("::", 1)
    constants = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    own = {tensor.name for tensor in model.graph.initializer}
    return onnx.helper.make_function(
        domain,
        short,
        [value.name for value in model.graph.input if value.name not in own],
        [value.name for value in model.graph.output],
        [*constants, *model.graph.node],
        list(model.opset_import),
    )
