"""What differs between the configurations of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from mechplateau.errors import ConfigError
from mechplateau.schema import read_yaml

_ABSENT = "–"


def differing_settings(configs: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Dotted settings whose values are not the same everywhere.

    Args:
        configs: YAML texts, one a run. A text that is not a YAML mapping counts as one setting, `config`.

    Returns:
        (setting, its value in each run; "–" where a run lacks it), in the order they first occur.
    """
    flat = [_flatten(text) for text in configs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    rows = [(name, [settings.get(name, _ABSENT) for settings in flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def told_apart(names: Sequence[str], configs: Sequence[str], *, room: int = 44) -> list[str]:
    """A short label for each run: the settings in which it differs from the others, where these fit, else its name."""
    settings = differing_settings(configs)
    labels = [
        ", ".join(f"{name.rpartition('.')[2]} {values[index]}" for name, values in settings)
        for index in range(len(names))
    ]
    clear = all(0 < len(label) <= room for label in labels) and len(set(labels)) == len(labels)
    return labels if clear else list(names)


def _flatten(text: str) -> dict[str, str]:
    try:
        loaded = read_yaml(text, "config")
    except ConfigError:
        return {"config": text}
    found: dict[str, str] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            found[prefix] = yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()

    walk("", loaded)
    return found
