"""jyquickhelper's menu at the top of notebooks."""

from __future__ import annotations

from typing import Any

__all__ = ["add_notebook_menu"]

# The release that this module reproduces.
__version__ = "0.4.220"

# Lists the headings of the page with links to them; runs in the browser.
_SCRIPT = """
<div id="{menu_id}"><b>{title}</b></div>
<script>
(function () {{
  const menu = document.getElementById("{menu_id}");
  const names = "{levels}".split(" ");
  document.querySelectorAll(names.join(",")).forEach(function (heading, index) {{
    if (!heading.id) heading.id = "{menu_id}-" + index;
    const line = document.createElement("div");
    line.style.marginLeft = (names.indexOf(heading.tagName.toLowerCase()) * 1.5) + "em";
    const link = document.createElement("a");
    link.href = "#" + heading.id;
    link.textContent = heading.textContent.replace("\\u00b6", "");
    line.appendChild(link);
    menu.appendChild(line);
  }});
}})();
</script>
"""


def add_notebook_menu(
    menu_id: str = "my_menu_id", first_level: int = 2, last_level: int = 4, header: str = ""
) -> Any:
    """Return a menu of a notebook's headings, to display in a cell.

    Parameters
    ----------
    menu_id : str, default="my_menu_id"
        Identifier of the element on the page.
    first_level, last_level : int, default=2 and 4
        Levels of the headings to list.
    header : str, default=""
        Text above the menu.

    Returns
    -------
    IPython.display.HTML
    """
    try:
        from IPython.display import HTML
    except ImportError as error:
        raise ImportError("the menu is for notebooks: pip install ipython") from error
    levels = " ".join(f"h{level}" for level in range(first_level, last_level + 1))
    return HTML(_SCRIPT.format(menu_id=menu_id, title=header, levels=levels))
