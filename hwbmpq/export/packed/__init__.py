"""``model.safetensors``: a quantized network, each weight stored at exactly its bits."""
