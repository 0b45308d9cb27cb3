"""Your own network, data and training loop: widths learned on the way, then files that others can run.

    python examples/own_training_loop.py

The network is a plain module, the data are made on the spot: a bright square in one of nine places. A
``BitAllocator`` decides the widths within a memory budget while an ordinary loop trains. At the end the
network is packed into a file, read back, and exported to ONNX, and both answer as the network does. Takes a few
seconds on a CPU.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import hwbmpq

EPOCHS, BATCH, SIDE = 6, 64, 12


class SmallNet(nn.Module):
    """Nothing here knows of quantization."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *block(1, 8),
            *block(8, 16, stride=2),
            *block(16, 16),
            *block(16, 32, stride=2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(nn.Linear(32 * 3 * 3, 32), nn.ReLU(), nn.Linear(32, 9))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def squares(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise (count, 1, 12, 12) with a bright 4 x 4 square, and which of nine places it is at."""
    labels = torch.randint(9, (count,), generator=generator)
    images = torch.randn(count, 1, SIDE, SIDE, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 4 * (label // 3), 4 * (label % 3)
        image[:, top : top + 4, left : left + 4] += 1
    return images, labels


def train(model: nn.Module, images: Tensor, labels: Tensor) -> hwbmpq.BitAllocator:
    allocator = hwbmpq.BitAllocator(  # prepares the model in place
        model,
        images[:1],
        target="generic",
        budgets={"memory": "10x"},  # a tenth of the weights' size in float
        bits=(2, 3, 4, 8),
        epochs=EPOCHS,
        warmup_epochs=2,
        interval_epochs=1,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # after the allocator
    for epoch in range(EPOCHS):
        model.train()
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            allocator.step()  # gradients are complete, and not yet clipped
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        decision = allocator.epoch_end()
        decided = "" if decision is None else f", widths decided: {len(decision.moves)} layers moved"
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}{decided}")
    return allocator


def share_of_hits(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((model.eval()(images).argmax(1) == labels).float().mean())


def main() -> dict[str, float]:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more would mostly wait for each other over a network as small as this
    generator = torch.Generator().manual_seed(0)
    images, labels = squares(1024, generator)
    test_images, test_labels = squares(256, generator)
    model = SmallNet()

    allocator = train(model, images, labels)
    for name, precision in allocator.bits.items():
        print(f"{name:14} {precision}")
    accuracy = share_of_hits(model, test_images, test_labels)
    allocation = allocator.allocation
    print(
        f"{allocation.costs['memory'] / 8:.0f} of {allocation.budgets['memory'] / 8:.0f} bytes, accuracy {accuracy:.1%}"
    )

    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "small.safetensors"
        account = hwbmpq.export.save_packed(model, packed, example_input=images[:1])
        print(f"packed: {account.actual_bytes} bytes, scales, norms and names with them")
        again = hwbmpq.load(packed, model=SmallNet())  # a file holds no code: the module is yours
        assert torch.equal(again.eval()(test_images), model.eval()(test_images))

        onnx = Path(folder) / "small.onnx"
        hwbmpq.export.write_onnx(hwbmpq.export.onnx_graph(model, images[:1]), onnx)
        agreement = hwbmpq.export.compare(model, hwbmpq.export.OnnxNetwork(onnx), test_images.split(BATCH))
        print(f"ONNX: {onnx.stat().st_size} bytes, same answers for {agreement.top1_agreement:.1%}")
    return {
        "accuracy": accuracy,
        "agreement": agreement.top1_agreement,
        "memory_left": allocation.slack["memory"],
    }


if __name__ == "__main__":
    main()
