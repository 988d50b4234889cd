"""Which TransformerLens this package works with; imported before any of its names are."""

from __future__ import annotations

from importlib import metadata

from mechplateau.errors import UserError

SUPPORTED = "transformer-lens>=3.9,<4"


def check_transformer_lens() -> None:
    """Raise unless the installed TransformerLens is of the 3.9 line; 4 has no HookedTransformer any more.

    Raises:
        UserError: says what is installed and the command that mends it.
    """
    mend = f"run: pip install '{SUPPORTED}'"
    try:
        version = metadata.version("transformer-lens")
    except metadata.PackageNotFoundError:
        raise UserError(f"mechplateau needs {SUPPORTED}, which is not installed; {mend}") from None
    major, minor = (int(part) for part in (*version.split("."), "0")[:2])
    if not (major == 3 and minor >= 9):
        raise UserError(
            f"mechplateau needs {SUPPORTED} (4 has no HookedTransformer), but {version} is installed; {mend}"
        )


check_transformer_lens()
