"""CircuitsVis's own pictures in a notebook or a file, without its network: the frame around attention and token views.

CircuitsVis draws (its bundled script, read from the installed package and packed into the view), this frame does what
it leaves out: tokens are escaped (CircuitsVis sets them as HTML and writes them into a script tag), the scale is
signed, fits the data and has a legend, cells that are not a number are marked. Its `str()`, its notebook display and
its check for an internet connection are never used.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mechplateau.errors import counted
from mechplateau.files import file_path
from mechplateau.views._files import write_file
from mechplateau.views._templates import own_script, own_style, render
from mechplateau.views.data import ViewError
from mechplateau.views.text import json_for_script, visible_token


class View:
    """One or more pictures that show themselves in a notebook and save themselves as one HTML file.

    `str(view)` is the same HTML that a notebook shows: it needs nothing but a browser, also inside an iframe. Each
    carries CircuitsVis's script (480 kB, packed); to show many on one page, make one view of them with `gallery`, which
    carries it once.
    """

    def __init__(self, title: str, pictures: Sequence[dict[str, Any]]) -> None:
        """A title for people, and what the frame's script draws: JSON-able, one entry a picture."""
        self._title = title
        self._pictures = tuple(pictures)

    def save(self, path: str | Path) -> Path:
        """Write one HTML file that opens without a network, whole or not at all.

        Returns:
            The path written.

        Raises:
            ViewError: the file cannot be written.
        """
        page = render("view_page.html.j2", title=visible_token(self._title or "view"), view=self._markup())
        return write_file(file_path(path), page.encode("utf-8"))

    def _markup(self) -> Any:
        from markupsafe import Markup

        return Markup(
            render(
                "view.html.j2",
                style=own_style("view.css"),
                pictures=[Markup(json_for_script(picture)) for picture in self._pictures],
                library=_circuitsvis(),
                script=own_script("view.js"),
            )
        )

    def __str__(self) -> str:
        return str(self._markup())

    def _repr_html_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<View {self._title!r}: {counted(len(self._pictures), 'picture')}>"


def gallery(views: Sequence[View], *, title: str = "") -> View:
    """Several views as one: below each other on one page, CircuitsVis's script embedded once.

    Raises:
        ViewError: no view given.
    """
    if not views:
        raise ViewError("gallery: expected at least one view, got none")
    return View(title, [picture for view in views for picture in view._pictures])


@cache
def _circuitsvis() -> str:
    """CircuitsVis's bundled script, gzip in base64; equal for equal scripts."""
    # Looked up, not imported: importing circuitsvis takes torch with it.
    package = find_spec("circuitsvis")
    if package is None or not package.submodule_search_locations:
        raise ViewError("circuitsvis is not installed; run: pip install 'circuitsvis>=1.43'")
    script = Path(package.submodule_search_locations[0]) / "dist" / "cdn" / "iife.js"
    try:
        source = script.read_bytes()
    except OSError as error:
        raise ViewError(
            f"expected CircuitsVis's script at {script}, found none; run: pip install 'circuitsvis>=1.43'"
        ) from error
    # A browser with its developer tools open would ask for the source map.
    code = source.split(b"//# sourceMappingURL=")[0]
    return base64.b64encode(gzip.compress(code, 9, mtime=0)).decode("ascii")
