"""Random numbers by name: every stream and step has a generator of its own.

Nothing depends on what was drawn before, so measuring cannot change training, and a resumed run draws what an
uninterrupted one does.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import torch

Stream = Literal["init", "train", "eval"]


def generator_for(seed: int, stream: Stream, step: int, device: torch.device) -> torch.Generator:
    """A generator for one stream at one step: seeded with the first 8 bytes of SHA-256("seed/stream/step")."""
    digest = hashlib.sha256(f"{seed}/{stream}/{step}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
