"""Attention and token views as text: what is sent to the browser, what is refused, what never happens."""

from __future__ import annotations

import base64
import json
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mechplateau.views import (
    View,
    ViewError,
    attention_heads,
    attention_on_target,
    attention_pattern,
    attention_phases,
    gallery,
    tokens_by_accuracy,
    tokens_by_loss,
    tokens_by_value,
)

TOKENS = ["a", "b", "c"]
MAP = np.array([[1.0, 0, 0], [-2.0, 0.5, 0], [np.nan, 0.25, 0.125]], dtype=np.float32)


def sent(view: View) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', str(view), re.DOTALL)
    return [json.loads(text) for text in found]


def maps_of(picture: dict[str, Any]) -> dict[str, np.ndarray]:
    n = len(picture["tokens"])
    return {
        each["name"]: np.frombuffer(base64.b64decode(each["data"]), "<f4").reshape(n, n)
        for each in picture["maps"]
    }


def test_pattern_is_sent_as_it_is() -> None:
    (picture,) = sent(attention_pattern(MAP, TOKENS, outlines={"Ω": np.eye(3, dtype=bool)}))
    np.testing.assert_array_equal(maps_of(picture)[""], MAP)
    assert picture["limit"] == 2.0  # symmetric, from the data, NaN left out
    assert picture["tokens"] == TOKENS
    assert picture["causal"] is True
    assert [outline["name"] for outline in picture["outlines"]] == ["Ω"]


def test_what_is_above_the_diagonal_is_never_hidden() -> None:
    for above in (0.1, np.nan):
        full = MAP.copy()
        full[0, 2] = above
        (picture,) = sent(attention_pattern(full, TOKENS))
        assert picture["causal"] is False


def test_phases_share_one_scale() -> None:
    (picture,) = sent(attention_phases({"before": MAP, "after": 3 * MAP}, TOKENS))
    assert picture["limit"] == 6.0
    assert list(maps_of(picture)) == ["before", "after"]
    (chosen,) = sent(attention_phases({"before": MAP}, TOKENS, limit=10))
    assert chosen["limit"] == 10.0


def test_heads_have_names() -> None:
    heads = torch.tensor(np.stack([MAP, MAP]), dtype=torch.bfloat16).requires_grad_()
    (picture,) = sent(attention_heads(heads, TOKENS))
    assert list(maps_of(picture)) == ["head 0", "head 1"]
    with pytest.raises(ViewError, match=r"expected 2 different names.*\['L0H0'\]"):
        attention_heads(heads, TOKENS, names=["L0H0"])
    with pytest.raises(ViewError, match="different names"):
        attention_heads(heads, TOKENS, names=["x", "x"])


def test_share_on_target_by_hand() -> None:
    pattern = np.array([[9.0, 0, 0], [-1.0, 3.0, 0], [0, 2.0, -2.0]])
    target = np.zeros((3, 3), dtype=bool)
    target[1, 1] = target[2, 2] = True
    # Rows 1 and 2 have a target: |A| sums to 8, of which 3 + 2 lie on it; row 0 does not count.
    (picture,) = sent(attention_on_target(pattern, target, TOKENS))
    maps = maps_of(picture)
    assert list(maps) == ["attention", "on Ω: 62.5%", "off Ω: 37.5%"]
    np.testing.assert_array_equal(maps["on Ω: 62.5%"], np.diag([0.0, 3, -2]))
    np.testing.assert_array_equal(maps["on Ω: 62.5%"] + maps["off Ω: 37.5%"], pattern)


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_share_without_attention_is_undefined(value: float) -> None:
    (picture,) = sent(attention_on_target(np.tril(np.full((3, 3), value)), np.eye(3, dtype=bool), TOKENS))
    assert list(maps_of(picture))[1:] == ["on Ω: share undefined", "off Ω: share undefined"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: attention_pattern(MAP, TOKENS[:2]), r"\(2, 2\) for 2 tokens, got \(3, 3\)"),
        (lambda: attention_pattern(MAP[0], TOKENS), r"\[query, key\], got shape \(3,\)"),
        (lambda: attention_heads(MAP, TOKENS), r"\[head, query, key\], got shape \(3, 3\)"),
        (lambda: attention_pattern(MAP, TOKENS, outlines={"Ω": np.eye(2)}), r"outlines\['Ω'\].*\(2, 2\)"),
        (lambda: attention_pattern(MAP, TOKENS, limit=0), "positive number, got 0"),
        (lambda: attention_phases({}, TOKENS), "at least one map"),
        (lambda: attention_on_target(MAP, np.eye(2), TOKENS), r"\(3, 3\), got \(2, 2\)"),
        (lambda: tokens_by_loss("abc", [1, 2, 3]), "list of tokens"),
        (lambda: tokens_by_loss(TOKENS, [1, 2]), r"\[3\] numbers, got shapes \[\(2,\)\]"),
        (lambda: tokens_by_loss([TOKENS], [1, 2, 3]), "one number a token"),
        (lambda: tokens_by_loss(TOKENS, [0, -1, 2]), "from 0 on, got -1"),
        (lambda: tokens_by_accuracy(TOKENS, [0, 1.5, 1]), "from 0 to 1, got 1.5"),
        (lambda: tokens_by_value(TOKENS, [0, 1, 2], label="x", limit=-1), "positive number, got -1"),
        (lambda: gallery([]), "at least one view"),
    ],
)
def test_refusals_name_both_sides(build: Any, message: str) -> None:
    with pytest.raises(ViewError, match=message):
        build()


def test_token_views() -> None:
    (loss,) = sent(tokens_by_loss(TOKENS, [None, 1.5, float("nan")]))
    assert loss["rows"] == [{"tokens": TOKENS, "values": [None, 1.5, None]}]
    assert (loss["limit"], loss["signed"]) == (1.5, False)
    (accuracy,) = sent(tokens_by_accuracy([TOKENS, ["x"]], [[0, 0.5, 1], [0.25]]))
    assert [row["values"] for row in accuracy["rows"]] == [[0, 0.5, 1], [0.25]]
    assert accuracy["limit"] == 1.0
    (signed,) = sent(tokens_by_value(TOKENS, torch.tensor([-3.0, 1, 0]), label="logit"))
    assert (signed["limit"], signed["signed"], signed["label"]) == (3.0, True, "logit")


def test_hostile_text_cannot_leave_its_place(hostile: tuple[str, ...]) -> None:
    pattern = np.eye(len(hostile))
    view = attention_phases({hostile[0]: pattern}, hostile, title=hostile[0], outlines={hostile[0]: pattern})
    html = str(gallery([view, tokens_by_accuracy(hostile, [0.5] * len(hostile), title=hostile[0])]))
    assert html.lower().count("</script>") == 4  # two pictures, the packed library, the frame's script
    assert "window.x" not in re.sub(
        r'<script type="application/json">.*?</script>', "", html, flags=re.DOTALL
    )
    assert sent(view)[0]["tokens"][0] == hostile[0]


def test_a_page_of_many_views_carries_the_script_once(tmp_path: Path) -> None:
    views = [attention_pattern(MAP, TOKENS, title=f"view {i}") for i in range(40)]
    page = gallery(views, title="all").save(tmp_path / "all.html").read_text(encoding="utf-8")
    assert page.count("mpv-library") == 1 + page.count('"script.mpv-library"')
    assert len(page) < 700_000
    assert len(sent(gallery(views))) == 40


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a view opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    view = attention_pattern(MAP, TOKENS)
    for html in (
        str(view),
        view._repr_html_(),
        view.save(tmp_path / "view.html").read_text(encoding="utf-8"),
    ):
        assert not re.search(r"(src|href)\s*=\s*[\"']?https?:", html)
        assert "unpkg" not in html
    assert "default-src 'none'" in (tmp_path / "view.html").read_text(encoding="utf-8")
    assert repr(view) == "<View '': 1 picture>"
    assert str(view) == str(attention_pattern(MAP, TOKENS))


def test_tokens_must_be_strings_and_limits_finite() -> None:
    for build in (
        lambda: attention_pattern(np.eye(2), [1, 2]),
        lambda: attention_pattern(np.eye(2), "ab"),
        lambda: tokens_by_loss([1, 2], [1, 2]),
        lambda: tokens_by_loss([["a"], [1]], [[1], [1]]),
    ):
        with pytest.raises(ViewError, match="tokens: expected"):
            build()
    with pytest.raises(ViewError, match="limit: expected a positive number, got inf"):
        attention_pattern(np.eye(2), ["a", "b"], limit=np.inf)
    with pytest.raises(ViewError, match=r"expected an array \[query, key\], got str"):
        attention_pattern("map", ["a"])
