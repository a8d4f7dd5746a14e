"""A network of your own, in ten lines."""

import torch
from torch import nn

import cretta

# Any network with normalization layers; yours would have its trained weights.
net = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(3600, 10))

source = torch.rand(100, 3, 32, 32)  # images like those of its training
buffer = cretta.SourceBuffer(source)
model = cretta.adapt(net, "cretta", buffer=buffer)

for x in torch.rand(5, 20, 3, 32, 32) * 0.5:  # a stream of darker images
    logits = model(x)  # predicts and adapts
    print(f"loss {model.last.loss:.3f}, energy {model.last.energy:.2f}, predicted {logits.argmax(1)[:5].tolist()}")
