"""Float TensorFlow Lite files of plain convolutional networks as PyTorch modules (``pip install tflite``)."""

from pathlib import Path
from typing import Any

import numpy as np
import tflite
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_OPERATORS = {code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}
_RELU = 1
_SAME = 0


class TfliteNetwork(nn.Module):
    """Takes images (B, C, H, W) and returns scores: the last softmax is left out."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
        self._graph = self._file.Subgraphs(0)
        (self._input,) = self._graph.InputsAsNumpy().tolist()
        self.input_size = self._size(self._input)
        self.layers = nn.ModuleDict()
        self._steps = [
            step
            for i in range(self._graph.OperatorsLength())
            if (step := self._step(self._graph.Operators(i)))
        ]
        del self._file, self._graph  # modules can be copied and pickled, files cannot

    def forward(self, images: Tensor) -> Tensor:
        values = {self._input: images}
        for name, inputs, output in self._steps:
            given = [values[place] for place in inputs]
            values[output] = self.layers[name](given[0]) if len(given) == 1 else given[0] + given[1]
            if name.startswith("add"):
                values[output] = self.layers[name](values[output])
        return values[self._steps[-1][2]]

    def _step(self, operator: Any) -> tuple[str, tuple[int, ...], int] | None:
        """The name of its module, the tensors it reads and the one it makes."""
        code = self._file.OperatorCodes(operator.OpcodeIndex())
        kind = _OPERATORS[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
        inputs, (output,) = operator.InputsAsNumpy().tolist(), operator.OutputsAsNumpy().tolist()
        if kind == "SOFTMAX":
            return None
        make = {
            "CONV_2D": self._convolution,
            "DEPTHWISE_CONV_2D": self._convolution,
            "FULLY_CONNECTED": self._linear,
            "ADD": self._activation,
            "AVERAGE_POOL_2D": lambda *_: nn.AdaptiveAvgPool2d(1),
            "RESHAPE": lambda *_: nn.Flatten(),
        }[kind]
        name = f"{kind.lower()}_{len(self.layers)}"
        self.layers[name] = make(operator, inputs, output)
        return name, tuple(inputs[:2] if kind == "ADD" else inputs[:1]), output

    def _convolution(self, operator: Any, inputs: list[int], output: int) -> nn.Module:
        weight, bias = (torch.from_numpy(self._values(place).copy()) for place in inputs[1:3])
        is_depthwise = weight.shape[0] == 1 and weight.shape[3] == bias.numel()
        options = tflite.DepthwiseConv2DOptions() if is_depthwise else tflite.Conv2DOptions()
        options.Init(operator.BuiltinOptions().Bytes, operator.BuiltinOptions().Pos)
        weight = weight.permute(3, 0, 1, 2) if is_depthwise else weight.permute(0, 3, 1, 2)
        stride, kernel = (options.StrideH(), options.StrideW()), tuple(weight.shape[2:])
        before, after = self._padding(self._size(inputs[0])[1:], kernel, stride, options.Padding() == _SAME)
        channels = self._size(inputs[0])[0]
        layer = nn.Conv2d(
            channels,
            bias.numel(),
            kernel,
            stride,
            padding=before if before == after else 0,
            groups=channels if is_depthwise else 1,
        )
        _fill(layer, weight.reshape(layer.weight.shape), bias)
        parts: list[nn.Module] = []
        if before != after:
            parts.append(nn.ZeroPad2d((before[1], after[1], before[0], after[0])))
        parts.append(layer)
        if options.FusedActivationFunction() == _RELU:
            parts.append(nn.ReLU())
        return nn.Sequential(*parts)

    def _linear(self, operator: Any, inputs: list[int], output: int) -> nn.Module:
        weight, bias = (torch.from_numpy(self._values(place).copy()) for place in inputs[1:3])
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        _fill(layer, weight, bias)
        return layer

    def _activation(self, operator: Any, inputs: list[int], output: int) -> nn.Module:
        options = tflite.AddOptions()
        options.Init(operator.BuiltinOptions().Bytes, operator.BuiltinOptions().Pos)
        return nn.ReLU() if options.FusedActivationFunction() == _RELU else nn.Identity()

    def _size(self, place: int) -> tuple[int, ...]:
        """Channels, height, width."""
        _, height, width, channels = self._graph.Tensors(place).ShapeAsNumpy().tolist()
        return (channels, height, width)

    @staticmethod
    def _padding(
        size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], same: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows and columns of zeros before and after; of an odd number, one more after."""
        if not same:
            return (0, 0), (0, 0)
        outputs = [-(-length // step) for length, step in zip(size, stride, strict=True)]
        total = [
            max(0, (count - 1) * step + reach - length)
            for count, step, reach, length in zip(outputs, stride, kernel, size, strict=True)
        ]
        return tuple(amount // 2 for amount in total), tuple(amount - amount // 2 for amount in total)

    def _values(self, place: int) -> NDArray[np.float32]:
        tensor = self._graph.Tensors(place)
        content, shape = self._file.Buffers(tensor.Buffer()).DataAsNumpy(), tensor.ShapeAsNumpy()
        if tensor.Type() == tflite.TensorType.FLOAT32:
            return content.view(np.float32).reshape(shape)  # type: ignore[no-any-return]
        assert tensor.Type() == tflite.TensorType.INT8, "weights are floats, or integers with scales"
        codes, found = content.view(np.int8).reshape(shape).astype(np.float32), tensor.Quantization()
        scale = found.ScaleAsNumpy().astype(np.float32)
        along = [1] * codes.ndim
        along[found.QuantizedDimension()] = len(scale)
        return codes * scale.reshape(along if len(scale) > 1 else [1])  # type: ignore[no-any-return]


@torch.no_grad()
def _fill(layer: nn.Conv2d | nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    assert layer.bias is not None
    layer.bias.copy_(bias)


def input_quantization(path: Path) -> tuple[float, int]:
    """Scale and zero point of an integer file's input."""
    graph = tflite.Model.GetRootAsModel(path.read_bytes(), 0).Subgraphs(0)
    found = graph.Tensors(graph.InputsAsNumpy()[0]).Quantization()
    return float(found.ScaleAsNumpy()[0]), int(found.ZeroPointAsNumpy()[0])
