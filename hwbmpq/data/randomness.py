"""Random numbers that depend on what they are for, not on what was drawn before."""

from hashlib import blake2b

import torch


def generator_for(*key: int | str) -> torch.Generator:
    """A generator of its own for each key."""
    # Hashed: seeds that are sums or products of small numbers would meet again under other keys.
    digest = blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
