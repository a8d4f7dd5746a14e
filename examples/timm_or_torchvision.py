"""A network of timm or torchvision, whichever is installed."""

import importlib.util

import torch

import cretta

if importlib.util.find_spec("timm"):
    import timm

    net = timm.create_model("resnet18", num_classes=10)  # pretrained=True downloads its weights
else:
    import torchvision

    net = torchvision.models.resnet18(num_classes=10)  # weights="DEFAULT" downloads its weights

# By name, both are loaded with weights and normalization: cretta.models.load("timm:resnet18.a1_in1k")
buffer = cretta.SourceBuffer(torch.rand(32, 3, 64, 64))
model = cretta.adapt(net, "cretta", buffer=buffer, preset="imagenet")

for x in torch.rand(3, 8, 3, 64, 64):
    print(model(x).argmax(1).tolist(), model.backend)
