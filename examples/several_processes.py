"""Several processes adapt one model: each has a part of every batch, and all learn the same.

Start it by `torchrun --nproc-per-node 2 examples/several_processes.py`: two processes on one machine.
"""

import torch

import cretta

group = cretta.distributed.join()  # what torchrun started: gloo on processors, NCCL on GPUs
device = f"cuda:{torch.cuda.current_device()}" if torch.distributed.get_backend() == "nccl" else "cpu"

net = cretta.models.load("wrn-40-2-cifar10").to(device)
buffer = cretta.SourceBuffer.sample(cretta.data.embedded("train"), size=15)
model = cretta.adapt(net, "cretta", buffer=buffer).distribute(group)

test = cretta.data.embedded("test")
labels = torch.from_numpy(test.labels[:20])
correct = torch.zeros(1, device=device)
for start in range(0, 20, 10):
    own = torch.arange(start, start + 10)[group.part(10)]  # this process reads its own images only
    images = cretta.data.corrupt(test.images[own.numpy()], "fog", severity=5, seed=0)
    logits = model(torch.from_numpy(images).permute(0, 3, 1, 2).to(device) / 255)
    correct += (logits.argmax(1).cpu() == labels[own]).sum()
model.save("several.safetensors")  # rank 0 writes, the others wait; one process can restore it, too
total = int(group.sum(correct))
if group.rank == 0:
    print(f"{group.size} processes: {total} of 20 correct")
