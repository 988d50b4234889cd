"""The sheet that the paper's figures are drawn on: matplotlib without pyplot, a display or global state."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mechplateau.files import file_path
from mechplateau.views._files import write_file

# Each differs from the others in lightness as well as in hue, so that a grey print keeps them apart.
COLORS = {
    "loss": "#20242b",
    "accuracy": "#12805c",
    "cos": "#5b2a86",
    "apm": "#1f5fbf",
    "repetition": "#b3450b",
    "entropy": "#6b5b00",
    "norm": "#3d4a5c",
    "rank": "#7a1f4b",
    "other": "#2f5d62",
}
DATA_COLOR = "#8a8f98"
PLATEAU_COLOR = "#ececec"

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    # Text stays text in the PDF (TrueType, which journals ask for), and no time stamp gets in.
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "mechplateau",
}

_NO_DATE = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def style() -> matplotlib.RcParams:
    """matplotlib's own defaults with ours over them, whatever the user's session has set."""
    # Setting the backend, even to what it is, makes matplotlib import pyplot.
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    return matplotlib.RcParams({**defaults, **_STYLE})


class PaperFigure(Figure):
    """A matplotlib figure that shows itself in a notebook and saves itself whole or not at all."""

    def __init__(self, width: float, height: float) -> None:
        """Width and height in inches."""
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)

    def entitle(self, text: str) -> None:
        """A heading over the whole sheet, in as many lines as its width needs."""
        room = int(self.get_figwidth() * 72 / (9 * 0.58))
        self.suptitle("\n".join(textwrap.wrap(text, max(12, room))), fontsize=9, x=0.01, ha="left")

    def save(self, path: str | Path) -> Path:
        """Write a file of the kind its name ends in: `.pdf` and `.svg` (vector), `.png` (300 dpi).

        Returns:
            The path written.

        Raises:
            ViewError: another ending, or the file cannot be written; nothing half-written is left.
        """
        path = file_path(path)
        kinds = (".pdf", ".png", ".svg")
        if path.suffix not in kinds:
            from mechplateau.views.data import ViewError

            raise ViewError(f"{path}: expected a name that ends in {', '.join(kinds)}, got {path.suffix!r}")
        return write_file(path, self._render(path.suffix, dpi=300))

    def png(self, dpi: float = 110) -> bytes:
        """The picture as a PNG file's bytes."""
        return self._render(".png", dpi)

    def _repr_png_(self) -> bytes:
        return self.png()

    def _render(self, suffix: str, dpi: float) -> bytes:
        buffer = io.BytesIO()
        with matplotlib.rc_context(style()):
            self.savefig(buffer, format=suffix[1:], dpi=dpi, metadata=_NO_DATE.get(suffix))
        return buffer.getvalue()
