"""``model.safetensors``: a quantized network whose weights take the bits that they were given."""
