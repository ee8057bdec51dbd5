"""The files that describe a run: versions and options."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgrad.base.versions import show_versions
from onnxgrad.files import write_own_file


def write_description(folder: Path, options: Mapping[str, Any]) -> None:
    """Create `folder` with ``environment.txt`` and ``config.toml``.

    Raises
    ------
    OSError, CheckpointError
    """
    environment = io.StringIO()
    show_versions(environment)
    folder.mkdir(parents=True, exist_ok=True)
    write_own_file(folder / "environment.txt", environment.getvalue())
    # Last: this file marks the folder as that of a run.
    write_own_file(folder / "config.toml", to_toml(options))


def to_toml(options: Mapping[str, Any]) -> str:
    """Return strings, numbers, booleans, and lists of them as TOML; None is left out."""
    return "".join(
        f"{name} = {_toml_value(value)}\n" for name, value in options.items() if value is not None
    )


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # TOML has the escapes of JSON, but also requires one for the delete character.
    return json.dumps(str(value)).replace("\x7f", "\\u007f")
