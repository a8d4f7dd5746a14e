"""A camera whose view gets foggy: frames one at a time, a guard against collapse, and a snapshot for the next day."""

import torch

import cretta

frames = cretta.data.embedded("test")
net = cretta.models.load("wrn-40-2-cifar10")
buffer = cretta.SourceBuffer.sample(cretta.data.embedded("train"), size=50)

# A single frame has no usable statistics: take those of the stream, as a moving average. Learn from every tenth frame
# only, which costs less; the others are predicted with the statistics so far.
model = cretta.adapt(net, "cretta", buffer=buffer, statistics="moving", adapt_every=10, guard="rollback")

correct = 0
for number in range(30):
    severity = 1 + number // 6  # the fog gets thicker
    pixels = cretta.data.corrupt(frames.images[number : number + 1], "fog", severity=severity, seed=number)
    frame = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    logits = model(frame)
    correct += int(logits.argmax(1) == frames.labels[number])
    if model.last.reason:
        print(f"frame {number}, fog {severity}: {model.last.reason}")

print(f"{correct} of 30 frames were classified correctly")
model.save("camera.safetensors")  # tomorrow: model.restore("camera.safetensors")
