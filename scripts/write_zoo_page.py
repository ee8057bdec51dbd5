"""Writes docs/zoo.md, the page about the exported models of tests/data/zoo."""

import sys

from source_files import ROOT

sys.path.append(str(ROOT / "tests" / "python"))
from zoo_page import PAGE, page

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
