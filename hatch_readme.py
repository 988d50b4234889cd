"""The package's long description: the README as it can be read away from its repository (PyPI, `pip show`).

Hatchling calls this at each build. Pictures and links to files of the repository become addresses below
`[project.urls] Source`. While the project has no such address, links become their text and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://|#|mailto:)[^)\s]+)\)")
_NO_ADDRESS = "*The pictures, and the pages that are named here, are in the project's repository.*\n\n"


class ReadmeHook(MetadataHookInterface):
    """Hatchling's hook."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": elsewhere(text, source)}


def elsewhere(text: str, source: str | None) -> str:
    """A README whose links work without the files beside it.

    Args:
        text: Markdown.
        source: address of the repository on GitHub or a forge with the same addresses; None: there is none.
    """

    def absolute(link: re.Match[str]) -> str:
        if source is not None:
            kind = "raw" if link["picture"] else "blob"
            target = f"{source.rstrip('/')}/{kind}/HEAD/{link['target']}"
            return f"{link['picture']}[{link['text']}]({target})"
        return "" if link["picture"] else link["text"]

    title, _, rest = text.partition("\n\n")
    told = _NO_ADDRESS if source is None else ""
    return re.sub(r"\n{3,}", "\n\n", f"{title}\n\n{told}{_LINK.sub(absolute, rest)}")
