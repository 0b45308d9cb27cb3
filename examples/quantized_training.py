"""Quantize a network in place inside an ordinary training loop, and switch widths on the way.

    python examples/quantized_training.py

The data are made on the spot: noisy stripes in four directions. Takes a few seconds on a CPU.
"""

import torch
from torch import Tensor, nn

import hwbmpq

EPOCHS = 6


def stripes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 16, 16) of noisy stripes, and which of four directions they run in."""
    labels = torch.randint(4, (count,), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    directions = torch.stack([rows, columns, rows + columns, rows - columns])  # (4, 16, 16)
    phases = torch.rand(count, 1, 1, generator=generator) * 6.28
    images = torch.sin(directions[labels] * 1.2 + phases)[:, None].repeat(1, 3, 1, 1)
    return images + 0.8 * torch.randn(images.shape, generator=generator), labels


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> float:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images, labels = stripes(2048, generator)
    test_images, test_labels = stripes(512, generator)

    model = hwbmpq.models.load_model("hwbmpq:resnet8_b", num_classes=4).network
    graph = hwbmpq.describe(model, images)
    hwbmpq.quant.prepare(model, graph, precision=4)  # first and last layer get 16 bits
    optimizer = torch.optim.SGD(
        hwbmpq.quant.parameter_groups(model, weight_decay=5e-4, alpha_weight_decay=5e-4),
        lr=0.05,
        momentum=0.9,
    )
    for epoch in range(EPOCHS):
        if epoch == EPOCHS // 2:
            # Half-way, the widest stage goes down to ternary weights. Momentum and parameters stay.
            hwbmpq.quant.assign(model, {"layer3.0.conv1": (2, 4), "layer3.0.conv2": (2, 4)})
        model.train()
        for batch in torch.randperm(len(images), generator=generator).split(128):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: accuracy {accuracy(model, test_images, test_labels):.1%}")
    for name, layer in hwbmpq.quant.quantized_layers(model):
        print(f"{name:22} {layer.precision}")
    return accuracy(model, test_images, test_labels)


if __name__ == "__main__":
    main()
