"""ONNX files that could run without end."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hwbmpq.errors import HwbmpqError
from hwbmpq.export import OnnxNetwork

INFOS = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]


def looping(turns: int) -> onnx.ModelProto:
    """A graph that adds x to itself so many times."""
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [1]),
        ],
    )
    count = helper.make_tensor("n", TensorProto.INT64, [], [turns])
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    return model_of(helper.make_graph([loop], "g", INFOS[:1], INFOS[1:], [count]))


def model_of(graph: onnx.GraphProto, functions: list[onnx.FunctionProto] | None = None) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions or [])


def with_functions(levels: int) -> onnx.ModelProto:
    """Each function calls the next one twice."""
    plain = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    names = [f"F{n}" for n in range(levels)]
    functions = [
        helper.make_function(
            "own",
            name,
            ["a"],
            ["c"],
            [
                helper.make_node(called, ["a"], ["b"], domain=domain),
                helper.make_node(called, ["b"], ["c"], domain=domain),
            ],
            plain,
        )
        for name, (called, domain) in zip(
            names, [*((n, "own") for n in names[1:]), ("Identity", "")], strict=True
        )
    ]
    node = helper.make_node("F0", ["x"], ["y"], domain="own")
    return model_of(helper.make_graph([node], "g", INFOS[:1], INFOS[1:]), functions)


@pytest.mark.parametrize(
    ("model", "named"), [(looping(1 << 62), "Loop"), (with_functions(40), "F0")], ids=["loop", "functions"]
)
def test_they_are_not_run(model: onnx.ModelProto, named: str, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        HwbmpqError, match=rf"net.onnx has loops, branches or functions \({named}\)"
    ) as caught:
        OnnxNetwork(tmp_path / "net.onnx")
    assert "--trust" in caught.value.hint


def test_they_are_run_if_they_are_trusted(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(looping(3).SerializeToString())
    found = OnnxNetwork(tmp_path / "net.onnx", trust=True)(np.ones(1, np.float32))
    assert found.tolist() == [8.0]
