"""Which TransformerLens this package works with; checked before any of its names are imported."""

from __future__ import annotations

from importlib import metadata

from mechplateau.errors import UserError

SUPPORTED = "transformer-lens>=3.9,<5"
HOOKED = "transformer-lens>=3.9,<4"
"""Those with a HookedTransformer."""


def check_transformer_lens() -> None:
    """Raise unless the installed TransformerLens is 3.9 or later of 3, or 4.

    Raises:
        UserError: says what is installed and the command that mends it.
    """
    major, minor, version = _installed()
    if not (major == 4 or (major == 3 and minor >= 9)):
        raise UserError(
            f"mechplateau needs {SUPPORTED}, but {version} is installed; run: pip install '{SUPPORTED}'"
        )


def check_hooked_transformer(what: str) -> None:
    """Raise unless the installed TransformerLens has a HookedTransformer, which 4 has not.

    Args:
        what: what needs it, for the message.

    Raises:
        UserError: says what is installed, the command that mends it, and what works without.
    """
    check_transformer_lens()
    major, _, version = _installed()
    if major >= 4:
        raise UserError(
            f"{what} needs HookedTransformer, which transformer-lens {version} no longer has; run: pip install "
            f"'{HOOKED}'; with 4, run.bridge(...) opens a checkpoint of kind gpt as a TransformerBridge"
        )


def _installed() -> tuple[int, int, str]:
    try:
        version = metadata.version("transformer-lens")
    except metadata.PackageNotFoundError:
        raise UserError(
            f"mechplateau needs {SUPPORTED}, which is not installed; run: pip install '{SUPPORTED}'"
        ) from None
    major, minor = (int(part) for part in (*version.split("."), "0")[:2])
    return major, minor, version
