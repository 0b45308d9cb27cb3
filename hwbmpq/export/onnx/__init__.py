"""A quantized network as an ONNX graph, in the forms that runtimes take."""
