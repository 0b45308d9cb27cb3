"""Names of the files in a run directory."""

CONFIG = "config.yaml"
FACTS = "facts.json"
"""What was known before training: network, device, costs, command."""
ALLOCATION = "allocation.json"
HISTORY = "history.jsonl"
CHECKPOINT = "checkpoint.pt"
PREVIOUS_CHECKPOINT = "checkpoint.previous.pt"
BEST = "best.pt"
PACKED = "model.safetensors"
PAGE = "report.html"
MOST_RECORD_BYTES = 1 << 25
"""Of a JSON file in a run directory that is read: about a thousand layers over three hundred epochs."""
