"""Time of one training step: float against W4A4, what collecting bit gradients adds, and what the data add.

Everything runs in turn inside one process, so that a noisy machine slows all alike; figures are medians of the
per-round ratios. ``enbg`` is ``BitAllocator.step`` against a whole quantized step (forward, backward, update);
``data`` is a step whose batch is fetched, augmented and normalised first against one with a batch at hand.

``from weights`` is a step of training from given weights with all its parts (learned steps, frozen norms, a teacher, bit
gradients, clipped gradients, Adam) less the teacher's forward pass, against a step in float with the same optimizer.

    python benchmarks/train_step.py [--rounds 15] [--threads 2] [--json FILE]
"""

import argparse
import copy
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import nn

import hwbmpq
from hwbmpq.data.inputs import ModelInputs
from hwbmpq.training.distillation import Teacher

CASES = (
    # model, input, batch size
    ("hwbmpq:resnet20", (3, 32, 32), 128),
    ("timm:resnet18", (3, 224, 224), 8),
    ("timm:resnet18", (3, 32, 32), 64),  # what the README's command trains
)


def step_seconds(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    start = time.perf_counter()
    loss = nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    seconds = time.perf_counter() - start
    network.zero_grad(set_to_none=True)
    return seconds


def measure_enbg(spec: str, size: tuple[int, ...], batch: int, rounds: int) -> dict[str, object]:
    """How much of a training step reading the bit gradients takes."""
    network = hwbmpq.models.load_model(spec, num_classes=10, input_size=size).network.train()
    images, labels = torch.randn(batch, *size), torch.randint(10, (batch,))
    allocator = hwbmpq.BitAllocator(network, images[:1], target="mpic", epochs=2)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    pairs = []
    for turn in range(rounds + hwbmpq.quant.CALIBRATION_BATCHES + 1):
        start = time.perf_counter()
        nn.functional.cross_entropy(network(images), labels).backward()
        before = time.perf_counter()
        allocator.step()
        after = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        if turn > hwbmpq.quant.CALIBRATION_BATCHES:  # past the initialisation of α
            pairs.append((after - before, (end - start) - (after - before)))
    return {
        "model": spec,
        "input": list(size),
        "batch": batch,
        "step_ms": round(1e3 * statistics.median(step for _, step in pairs), 2),
        "enbg_ms": round(1e3 * statistics.median(enbg for enbg, _ in pairs), 2),
        "share": round(statistics.median(enbg / step for enbg, step in pairs), 4),
    }


def measure_data(spec: str, size: tuple[int, ...], batch: int, rounds: int) -> dict[str, object]:
    """A step with the data pipeline in front of it, against one with its batch at hand."""
    network = hwbmpq.models.load_model(spec, num_classes=10, input_size=size).network.train()
    graph = hwbmpq.describe(network, torch.randn(1, *size))
    hwbmpq.quant.prepare(network, graph, precision=4)
    data = hwbmpq.data.load_data("fake", input_size=size, train_limit=None)
    batches = hwbmpq.data.TrainingBatches(data.train, batch_size=batch, augment="flip-crop")
    at_hand = next(batches.epoch(0))
    pairs, epoch, source = [], 0, iter(())
    for turn in range(rounds + hwbmpq.quant.CALIBRATION_BATCHES + 1):
        start = time.perf_counter()
        fetched = next(source, None)
        if fetched is None:
            epoch, source = epoch + 1, batches.epoch(epoch)
            start = time.perf_counter()
            fetched = next(source)
        with_data = time.perf_counter() - start + step_seconds(network, *fetched)
        without = step_seconds(network, *at_hand)
        if turn > hwbmpq.quant.CALIBRATION_BATCHES:
            pairs.append((with_data, without))
    return {
        "model": spec,
        "input": list(size),
        "batch": batch,
        "without_ms": round(1e3 * statistics.median(w for _, w in pairs), 2),
        "with_ms": round(1e3 * statistics.median(w for w, _ in pairs), 2),
        "ratio": round(statistics.median(a / b for a, b in pairs), 4),
    }


def measure(spec: str, size: tuple[int, ...], batch: int, rounds: int) -> dict[str, object]:
    model = hwbmpq.models.load_model(spec, num_classes=10, input_size=size)
    images, labels = torch.randn(batch, *size), torch.randint(10, (batch,))
    plain = model.network.train()
    quantized = copy.deepcopy(plain)
    graph = hwbmpq.describe(quantized, images)
    hwbmpq.quant.prepare(quantized, graph, precision=4, first_last_precision=None)
    for _ in range(hwbmpq.quant.CALIBRATION_BATCHES + 1):  # past the initialisation of α
        step_seconds(quantized, images, labels)
    step_seconds(plain, images, labels)
    pairs = []
    for turn in range(rounds):
        order = (plain, quantized) if turn % 2 else (quantized, plain)
        seconds = {id(network): step_seconds(network, images, labels) for network in order}
        pairs.append((seconds[id(plain)], seconds[id(quantized)]))
    return {
        "model": spec,
        "input": list(size),
        "batch": batch,
        "float_ms": round(1e3 * statistics.median(p for p, _ in pairs), 2),
        "w4a4_ms": round(1e3 * statistics.median(q for _, q in pairs), 2),
        "ratio": round(statistics.median(q / p for p, q in pairs), 3),
    }


def measure_from_weights(spec: str, size: tuple[int, ...], batch: int, rounds: int) -> dict[str, object]:
    """A step of training from given weights with all its parts, against one in float."""
    plain = hwbmpq.models.load_model(spec, num_classes=10, input_size=size).network.train()
    teacher, quantized = Teacher(copy.deepcopy(plain), share=1.0), copy.deepcopy(plain)
    images, labels = torch.randn(batch, *size), torch.randint(10, (batch,))
    options = {"target": "mpic", "bits": (2, 4, 8), "activation_bits": 8, "objective": "error"}
    allocator = hwbmpq.BitAllocator(
        quantized, images[:1], quantizer="learned", per_channel=True, epochs=2, **options
    )
    for module in quantized.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    optimizers = [torch.optim.Adam(network.parameters(), lr=1e-6) for network in (plain, quantized)]

    def in_float() -> None:
        nn.functional.cross_entropy(plain(images), labels).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()

    def whole() -> None:
        outputs = quantized(images)
        teacher.loss(outputs, ModelInputs.of(images), outputs.sum() * 0).backward()
        allocator.step()
        nn.utils.clip_grad_norm_(quantized.parameters(), 1.0)
        optimizers[1].step()
        optimizers[1].zero_grad()

    def taught() -> None:
        with torch.no_grad():
            teacher.network(images)

    found = []
    for turn in range(rounds + hwbmpq.quant.CALIBRATION_BATCHES + 1):
        seconds = []
        for work in (in_float, whole, taught):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        if turn > hwbmpq.quant.CALIBRATION_BATCHES:
            found.append(seconds)
    return {
        "model": spec,
        "input": list(size),
        "batch": batch,
        "float_ms": round(1e3 * statistics.median(one[0] for one in found), 2),
        "whole_ms": round(1e3 * statistics.median(one[1] for one in found), 2),
        "teacher_ms": round(1e3 * statistics.median(one[2] for one in found), 2),
        "ratio": round(statistics.median((one[1] - one[2]) / one[0] for one in found), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--default-malloc", action="store_true", help="do not ask the C library to keep freed memory"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    keeps = not args.default_malloc and hwbmpq.keep_freed_memory()
    print(f"freed memory is {'kept' if keeps else 'returned to the system'}, {args.threads} threads")
    results = []
    for spec, size, batch in CASES:
        result = measure(spec, size, batch, args.rounds)
        results.append(result)
        print(
            f"{result['model']} batch {batch}: float {result['float_ms']} ms, W4A4 {result['w4a4_ms']} ms, "
            f"median ratio {result['ratio']}"
        )
    enbg = [measure_enbg(*case, args.rounds) for case in CASES]
    for result in enbg:
        print(
            f"{result['model']}: bit gradients {result['enbg_ms']} ms beside a step of {result['step_ms']} ms, "
            f"{result['share']:.2%}"
        )
    whole = [measure_from_weights(*case, args.rounds) for case in CASES]
    for result in whole:
        print(
            f"{result['model']} batch {result['batch']}: from weights {result['whole_ms']} ms, of which the teacher "
            f"{result['teacher_ms']} ms, float {result['float_ms']} ms, ratio without the teacher {result['ratio']}"
        )
    data = [measure_data(*case, args.rounds) for case in CASES]
    for result in data:
        print(
            f"{result['model']}: a step {result['without_ms']} ms, with its batch loaded and augmented "
            f"{result['with_ms']} ms, ratio {result['ratio']}"
        )
    if args.json:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "threads": args.threads,
            "keeps_freed_memory": keeps,
            "torch": torch.__version__,
        }
        args.json.write_text(
            json.dumps(
                {
                    "machine": machine,
                    "rounds": args.rounds,
                    "results": results,
                    "enbg": enbg,
                    "from_weights": whole,
                    "data": data,
                },
                indent=2,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
