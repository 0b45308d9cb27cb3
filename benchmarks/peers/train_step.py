"""One training step at W4A4 against float, of each tool that can train quantized networks.

    python benchmarks/peers/train_step.py -o benchmarks/results/peers_train_step.json

All networks take turns inside one process, so that a noisy machine slows all alike; figures are medians of ratios to float in the
same round. A step is forward, backward and update; hwbmpq's includes reading the bit gradients. Every tool quantizes the weights and
the inputs of all convolutions and of the linear layer.
"""

import argparse
import copy
import json
import statistics
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from modelopt_search import modelopt_config
from tables import train_step
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hwbmpq
from hwbmpq.measure.kit_runner import machine_facts

BITS = 4
BATCH = 128
PACKAGES = ("torch", "hwbmpq", "brevitas", "nvidia-modelopt", "aimet-torch")
Step = Callable[[Tensor, Tensor], None]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")  # of torch.ao's deprecation, and the tools' own
    content = {
        "machine": machine_facts(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "threads": args.threads,
        "batch": BATCH,
        "rows": measure(args.rounds),
    }
    args.output.write_text(json.dumps(content, indent=1) + "\n")
    print("\n\n".join(train_step(content).values()))


def measure(rounds: int) -> list[dict[str, Any]]:
    hwbmpq.keep_freed_memory()
    from hwbmpq.data.torchvision_import import import_torchvision

    import_torchvision()
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    network = hwbmpq.models.load_model("hwbmpq:resnet20", seed=0).network.train()
    makers = {
        "float": lambda net: net,
        "hwbmpq, with bit gradients": None,
        "Brevitas": in_brevitas,
        "torch.ao": in_torch_ao,
        "ModelOpt": in_modelopt,
        "AIMET": in_aimet,
    }
    steps: dict[str, Step] = {}
    for name, make in makers.items():
        own = copy.deepcopy(network)
        steps[name] = _hwbmpq_step(own, images) if make is None else _step(make(own).train())
    for step in steps.values():
        for _ in range(hwbmpq.quant.CALIBRATION_BATCHES + 1):  # ranges are set in the first steps
            step(images, labels)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        names = list(steps)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            steps[name](images, labels)
            seconds[name].append(time.perf_counter() - start)
    return [
        {
            "tool": name,
            "step_ms": round(1e3 * statistics.median(found), 1),
            "ratio": round(statistics.median(a / b for a, b in zip(found, seconds["float"], strict=True)), 3),
        }
        for name, found in seconds.items()
    ]


def _step(network: nn.Module) -> Step:
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> None:
        cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _hwbmpq_step(network: nn.Module, images: Tensor) -> Step:
    allocator = hwbmpq.BitAllocator(
        network, images[:1], target="generic", bits=(2, BITS), activation_bits="same", epochs=2
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> None:
        cross_entropy(network(images), labels).backward()
        allocator.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


def in_brevitas(network: nn.Module, *, weight_bits: int = BITS, input_bits: int = BITS) -> nn.Module:
    from brevitas import nn as qnn
    from brevitas.quant import Int8ActPerTensorFloat

    more = {
        "weight_bit_width": weight_bits,
        "input_quant": Int8ActPerTensorFloat,
        "input_bit_width": input_bits,
    }
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Conv2d):
            shape = (module.in_channels, module.out_channels, module.kernel_size)
            new = qnn.QuantConv2d(
                *shape, stride=module.stride, padding=module.padding, bias=module.bias is not None, **more
            )
        elif isinstance(module, nn.Linear):
            new = qnn.QuantLinear(module.in_features, module.out_features, bias=True, **more)
        else:
            continue
        new.weight.data.copy_(module.weight)
        network.set_submodule(name, new)
    return network


def in_torch_ao(network: nn.Module) -> nn.Module:
    from torch.ao import quantization as ao

    weights, inputs = (
        ao.FakeQuantize.with_args(
            observer=ao.MovingAverageMinMaxObserver,
            quant_min=low,
            quant_max=high,
            dtype=dtype,
            qscheme=scheme,
        )
        for low, high, dtype, scheme in (
            (-(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1, torch.qint8, torch.per_tensor_symmetric),
            (0, 2**BITS - 1, torch.quint8, torch.per_tensor_affine),
        )
    )
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.qconfig = ao.QConfig(activation=inputs, weight=weights)  # type: ignore[assignment]
    return ao.prepare_qat(network)


def in_modelopt(network: nn.Module) -> nn.Module:
    import modelopt.torch.quantization as mtq

    return mtq.quantize(
        network, modelopt_config(BITS, BITS), lambda model: model(torch.randn(BATCH, 3, 32, 32))
    )


def in_aimet(network: nn.Module) -> nn.Module:
    from aimet_torch.model_preparer import prepare_model
    from aimet_torch.quantsim import QuantizationSimModel

    images = torch.randn(BATCH, 3, 32, 32)
    prepared = prepare_model(network.eval())
    simulation = QuantizationSimModel(prepared, images[:1], default_output_bw=BITS, default_param_bw=BITS)
    simulation.compute_encodings(lambda model: model(images))
    return simulation.model


if __name__ == "__main__":
    main()
