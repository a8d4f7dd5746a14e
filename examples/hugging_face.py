"""An image classifier of Hugging Face. Needs `pip install 'cretta[hf]'`."""

from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

import cretta

# A small vision transformer without trained weights, so that the example needs no network. Trained ones, with the
# normalization of their images: net = cretta.models.load("hf:google/vit-base-patch16-224")
config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8)
net = ViTForImageClassification(config)

# It has LayerNorm only, so batches of any size work. SAR is made for transformers.
model = cretta.adapt(net, "sar", entropy_margin=10.0)

for x in torch.rand(3, 4, 3, 32, 32):
    logits = model(pixel_values=x)  # a tensor, where the network itself returns an object with .logits
    print(tuple(logits.shape), "adapted" if model.last.adapted else model.last.reason)

plain: Any = model.export()  # a ViTForImageClassification again, with the adapted LayerNorms
plain.save_pretrained("adapted-vit")
