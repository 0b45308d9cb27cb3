"""Float checkpoints load into quantized networks."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn


class LoadsFloatCheckpoints(nn.Module):
    """A module that adds entries to the state_dict which a float checkpoint does not have."""

    added_entries: ClassVar[tuple[str, ...]]
    """Either all of them are in a checkpoint, or none."""

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        *others: Any,
    ) -> None:
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, *others)
        added = [prefix + entry for entry in self.added_entries]
        if not any(key in state_dict for key in added):
            missing = [key for key in missing if key not in added]
        missing_keys.extend(missing)
