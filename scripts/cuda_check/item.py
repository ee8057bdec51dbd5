"""Runs one item of the check, in a process of its own; the last line is its result as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main() -> None:
    """Run the function that `module` has for the item."""
    module, name, root, out = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    sys.path.append(str(out / "site"))
    sys.path.append(str(root / "peers"))
    values = importlib.import_module(module).run(name, root, out)
    print(json.dumps(values))


if __name__ == "__main__":
    main()
