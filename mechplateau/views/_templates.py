"""The package's own page parts: templates with escaping on, scripts and style sheets to inline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.views.text import json_for_script, script_for_page

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

_FOLDER = Path(__file__).parent / "templates"


def render(template: str, **context: Any) -> str:
    """Fill a template; every value is escaped unless it is `Markup`.

    Raises:
        jinja2.UndefinedError: the template uses a name that is not in the context.
    """
    return _environment().get_template(template).render(**context)


def render_page(template: str, payload: dict[str, Any], scripts: Sequence[str], **context: Any) -> str:
    """Fill a template of a page with charts: our style, plotly's script once, our scripts, and the data they draw."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    return render(
        template,
        style=own_style("report.css"),
        plotly=Markup(script_for_page(get_plotlyjs())),
        script=own_script(*scripts),
        payload=Markup(json_for_script(payload)),
        **context,
    )


def own_style(name: str) -> Markup:
    """One of our style sheets, for a style tag."""
    from markupsafe import Markup

    return Markup(_text(name))


def own_script(*names: str) -> Markup:
    """Our scripts, one after the other, for a script tag."""
    from markupsafe import Markup

    return Markup(script_for_page("\n".join(map(_text, names))))


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
