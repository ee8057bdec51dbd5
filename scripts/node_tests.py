"""Records which of ONNX's node tests pass: `python scripts/node_tests.py [OPERATOR...]`.

The lists in tests/data/node_tests, of these operators or of all, and docs/operators.md, which
follows from them. With --page that page alone; with --show nothing is written, and what the tests
give is printed.
"""

import sys

from source_files import ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))
import node_records


def main(arguments: list[str]) -> int:
    """Run the tests; return 1 if one gives a wrong result."""
    if arguments == ["--page"]:
        node_records.PAGE.write_text(node_records.page(), encoding="utf-8")
        return 0
    known = node_records.operators()
    chosen = [name for name in arguments if not name.startswith("--")] or known
    if unknown := set(chosen) - set(known):
        sys.exit(f"no tests of {', '.join(sorted(unknown))}")
    found = {operator: node_records.find(operator) for operator in chosen}
    wrong = [text for one in found.values() for text in one.wrong]
    if "--show" in arguments:
        for one in found.values():
            print(*("\t".join(row) for row in [*one.not_run, *one.pairs]), sep="\n")
    else:
        node_records.write(found)
    print(*wrong, sep="\n", file=sys.stderr)
    for what, (count, total) in node_records.counts().items():
        print(f"{what}: {count} of {total}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
