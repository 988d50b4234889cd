"""Text that came from outside, made safe to embed: tokens, titles, data in a script tag, scripts in a page."""

from __future__ import annotations

import json
import re

_MARKS = {"\n": "↵", "\t": "⇥"}


def visible_token(token: str) -> str:
    """A token as people should see it: literal, except that what has no ink gets a mark.

    The empty string becomes `∅`; spaces at the ends (and all of an all-space token) `␣`; line breaks, tabs and
    control characters a sign of their own. Markup stays as it is: escaping is the page's business.
    """
    if not token:
        return "∅"
    body = token.strip(" ")
    left = len(token) - len(token.lstrip(" "))
    right = len(token) - len(body) - left
    return "␣" * left + "".join(map(_visible_character, body)) + "␣" * right


def _visible_character(character: str) -> str:
    if character in _MARKS:
        return _MARKS[character]
    if ord(character) < 32:
        return chr(0x2400 + ord(character))
    if not character.isprintable():
        return f"⟨U+{ord(character):04X}⟩"
    return character


def json_for_script(data: object) -> str:
    """JSON that is safe inside a script tag, whatever strings it holds.

    `<`, `>` and `&` are written as escapes, so no tag or entity can begin or end inside; everything beyond ASCII
    (U+2028, emoji) too. NaN is refused: undefined is null.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_for_page(source: str) -> str:
    """A trusted script, changed so that it is safe inside a script tag: the tag's own end cannot occur in it.

    Both replacements mean the same inside a JavaScript string or regular expression, where alone they occur.
    """
    return re.sub(r"</(?=script)", r"<\\/", source, flags=re.IGNORECASE).replace("<!--", "<\\!--")
