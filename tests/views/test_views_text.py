"""Foreign text: visible, literal, and unable to leave the script tag that holds it."""

from __future__ import annotations

import json

import pytest

from mechplateau.views.text import json_for_script, script_for_page, visible_token


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", "∅"),
        (" ", "␣"),
        (" a b ", "␣a b␣"),
        ("\n", "↵"),
        ("\t", "⇥"),
        ("\x00", "␀"),
        ("\u2028", "⟨U+2028⟩"),
        ("\u00a0", "⟨U+00A0⟩"),
        ("\u200b", "⟨U+200B⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("<b>&amp;\"'\\", "<b>&amp;\"'\\"),
        ("🙂", "🙂"),
    ],
)
def test_visible_token(token: str, shown: str) -> None:
    assert visible_token(token) == shown


def test_json_survives_a_script_tag() -> None:
    data = {"a": '</script><!-- & \u2028 🙂 \\ "', "b": [1.5, None]}
    text = json_for_script(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028") & set(text)
    assert text.isascii()


def test_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_for_script([float("nan")])


def test_script_cannot_end_its_own_tag() -> None:
    source = 'x = "</script>" + "</SCRIPT>" + "<!--" + "</div>"'
    safe = script_for_page(source)
    assert "</script" not in safe.lower()
    assert "<!--" not in safe
    assert "</div>" in safe
