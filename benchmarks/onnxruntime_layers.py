"""Times the layers of networks in ONNX Runtime on this machine and writes a lookup table.

One kernel per distinct layer: float and int8 (QLinearConv, QLinearMatMul), and for linear layers 8 and 4-bit weights
beside float activations (MatMulNBits). Kernels take turns, round by round; a value is the median over rounds. Needs
only numpy, onnx and onnxruntime; networks come as JSON:

    hwbmpq inspect --model timm:resnet18 --json > resnet18.json
    python benchmarks/onnxruntime_layers.py resnet18.json -o table.json
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSET = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
BLOCK = 32  # weights per scale in MatMulNBits
KEY = (
    "op",
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "groups",
    "out_h",
    "out_w",
    "positions",
    "w_bits",
    "a_bits",
)


def geometry(layer: dict[str, Any]) -> dict[str, Any] | None:
    """What tells layers apart, or None for a kind that is not measured."""
    if layer["kind"] == "linear":
        positions = int(np.prod(layer["output_shape"])) // layer["out_channels"]
        sizes = {"kernel_size": [1, 1], "stride": [1, 1], "groups": 1, "out_h": 1, "out_w": 1}
        return {"op": "linear", **channels(layer), **sizes, "positions": positions}
    if layer["kind"] != "conv2d" or layer["dilation"] != [1, 1]:
        return None
    height, width = layer["output_shape"][-2:]
    depthwise = layer["groups"] > 1 and layer["groups"] == layer["in_channels"]
    return {
        "op": "dwconv2d" if depthwise else "conv2d",
        **channels(layer),
        **{name: layer[name] for name in ("kernel_size", "stride", "groups")},
        "out_h": height,
        "out_w": width,
        "positions": height * width,
    }


def channels(layer: dict[str, Any]) -> dict[str, int]:
    return {name: layer[name] for name in ("in_channels", "out_channels")}


def build(layer: dict[str, Any], shape: dict[str, Any], w_bits: int, a_bits: int) -> onnx.ModelProto:
    """A graph of the one kernel."""
    random = np.random.default_rng(0)
    is_int8 = a_bits == 8
    is_linear = shape["op"] == "linear"
    input_shape = [shape["positions"], shape["in_channels"]] if is_linear else layer["input_shape"]
    output_shape = [shape["positions"], shape["out_channels"]] if is_linear else layer["output_shape"]
    weight_shape = [shape["in_channels"], shape["out_channels"]] if is_linear else layer["weight_shape"]
    kind = TensorProto.UINT8 if is_int8 else TensorProto.FLOAT
    initializers = {}
    if w_bits in (4, 8) and not is_int8:
        return _matmul_nbits(shape, w_bits, random)
    weight = random.normal(size=weight_shape).astype(np.float32)
    attributes: dict[str, Any] = {}
    if not is_linear:
        attributes = {"strides": shape["stride"], "group": shape["groups"], "pads": _pads(layer)}
    if is_int8:
        scale, zero = np.float32(0.02), np.uint8(128)
        initializers = {
            "x_scale": scale,
            "x_zero": zero,
            "w": np.clip(weight * 30, -127, 127).astype(np.int8),
            "w_scale": scale,
            "w_zero": np.int8(0),
            "y_scale": scale,
            "y_zero": zero,
        }
        inputs = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]
        node = helper.make_node("QLinearMatMul" if is_linear else "QLinearConv", inputs, ["y"], **attributes)
    else:
        initializers = {"w": weight}
        node = helper.make_node("MatMul" if is_linear else "Conv", ["x", "w"], ["y"], **attributes)
    return _model(node, initializers, (kind, input_shape), (kind, output_shape))


def _pads(layer: dict[str, Any]) -> list[int]:
    padding = layer["padding"]
    if isinstance(padding, str):
        raise ValueError(f"{layer['name']}: padding {padding!r} is not measured")
    return [*padding, *padding]


def _matmul_nbits(shape: dict[str, Any], bits: int, random: np.random.Generator) -> onnx.ModelProto:
    inputs, outputs = shape["in_channels"], shape["out_channels"]
    blocks = -(-inputs // BLOCK)
    initializers = {
        "w": random.integers(0, 255, (outputs, blocks, BLOCK * bits // 8), dtype=np.uint8),
        "w_scale": np.full(outputs * blocks, 0.02, np.float32),
    }
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "w_scale"],
        ["y"],
        domain="com.microsoft",
        K=inputs,
        N=outputs,
        bits=bits,
        block_size=BLOCK,
        accuracy_level=4,
    )
    rows = shape["positions"]
    return _model(
        node, initializers, (TensorProto.FLOAT, [rows, inputs]), (TensorProto.FLOAT, [rows, outputs])
    )


def _model(node: Any, initializers: dict[str, Any], given: Any, made: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", *given)],
        [helper.make_tensor_value_info("y", *made)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=OPSET, ir_version=10)


def timer(model: onnx.ModelProto, threads: int) -> Callable[[], float]:
    """A function that runs the kernel a few times and returns seconds per run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    dtype = np.uint8 if "uint8" in given.type else np.float32
    feed = {"x": np.random.default_rng(1).integers(0, 255, given.shape).astype(dtype)}
    session.run(None, feed)
    start = time.perf_counter()
    session.run(None, feed)
    runs = max(1, min(200, int(2e-3 / (time.perf_counter() - start))))

    def run() -> float:
        start = time.perf_counter()
        for _ in range(runs):
            session.run(None, feed)
        return (time.perf_counter() - start) / runs

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="+", help="files of `hwbmpq inspect --json`")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    timers: dict[str, tuple[dict[str, Any], Callable[[], float]]] = {}
    models = []
    for file in args.networks:
        content = json.loads(Path(file).read_text())
        models.append(f"{content['model']} at {'x'.join(map(str, content['input_size']))}")
        for layer in content["layers"]:
            shape = geometry(layer)
            if shape is None or layer["calls"] != 1:
                continue
            widths = [(32, 32), (8, 8)] + ([(8, 32), (4, 32)] if shape["op"] == "linear" else [])
            for w_bits, a_bits in widths:
                entry = {**shape, "w_bits": w_bits, "a_bits": a_bits, "macs": layer["macs"]}
                key = json.dumps([entry[name] for name in KEY])
                if key not in timers:
                    timers[key] = (entry, timer(build(layer, shape, w_bits, a_bits), args.threads))
    print(f"{len(timers)} kernels, {args.rounds} rounds")
    times: dict[str, list[float]] = {key: [] for key in timers}
    for done in range(args.rounds):
        for key, (_, run) in timers.items():
            times[key].append(run() * 1e6)
        print(f"round {done + 1} of {args.rounds}", flush=True)
    entries = [
        {
            **entry,
            "value": round(statistics.median(times[key]), 3),
            "std": round(statistics.stdev(times[key]), 3),
            "count": args.rounds,
        }
        for key, (entry, _) in timers.items()
    ]
    Path(args.output).write_text(table_text(entries, models, args))


def table_text(entries: list[dict[str, Any]], models: list[str], args: argparse.Namespace) -> str:
    head = {
        "schema": "hwbmpq/lut/v1",
        "device": processor(),
        "runtime": f"ONNX Runtime {onnxruntime.__version__}, CPU, {args.threads} thread(s)",
        "source": {"title": "benchmarks/onnxruntime_layers.py of hwbmpq", "licence": "Apache-2.0"},
        "measurement": {
            "date": time.strftime("%Y-%m-%d"),
            "machine": platform.machine(),
            "threads": args.threads,
            "rounds": args.rounds,
            "models": models,
        },
        "batch": 1,
        "unit": "us",
        "key": list(KEY),
        "notes": ["kernels alone, median over rounds in which all kernels take turns; no graph around them"],
    }
    rows = ",\n  ".join(json.dumps(entry) for entry in entries)
    return json.dumps(head, indent=1)[:-2] + f',\n "entries": [\n  {rows}\n ]\n}}\n'


def processor() -> str:
    facts = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = set(facts.get("flags", "").split())
    named = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI"}
    has = [name if flag in flags else f"no {name}" for flag, name in named.items()]
    return f"{facts.get('model name', platform.processor())} ({', '.join(has)})"


if __name__ == "__main__":
    main()
