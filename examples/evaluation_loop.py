"""Adaptation in an evaluation loop that you already have: one line changes."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cretta


def evaluate(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> tuple[float, float]:
    """Return accuracy and calibration error. Nothing here knows of adaptation."""
    net.eval()  # of no effect on an adapter: it always adapts
    probabilities, labels = [], []
    for x, y in loader:
        with torch.no_grad():  # an adapter enables gradients itself, for its own step
            probabilities.append(net(x).softmax(1))
        labels.append(y)
    p, y = torch.cat(probabilities), torch.cat(labels)
    return float((p.argmax(1) == y).float().mean()), float(cretta.metrics.calibration_error(p, y))


test = cretta.data.embedded("test")
pixels = cretta.data.corrupt(test.images[:100], "contrast", severity=5, seed=0)
images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
loader = DataLoader(TensorDataset(images, torch.from_numpy(test.labels[:100])), batch_size=50)

net = cretta.models.load("wrn-40-2-cifar10")
accuracy, error = evaluate(net, loader)
print(f"as it is:  accuracy {accuracy:.0%}, ECE {error:.1%}")

net = cretta.adapt(net, "tent")  # the line that changes
accuracy, error = evaluate(net, loader)
print(f"adapted:   accuracy {accuracy:.0%}, ECE {error:.1%}")
