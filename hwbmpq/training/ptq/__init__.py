"""Post-training quantization: measure, allocate, round well, evaluate; no training."""
