"""Steps of TENT, CreTTA and TEA written in the obvious way, without any optimization: what others are compared with.

The network as it came, batches as they came, everything computed again.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Textbook:
    """A deep copy whose normalization layers learn, BatchNorm with the batch's statistics, and Adam."""

    def __init__(self, net: nn.Module) -> None:
        self.model = copy.deepcopy(net)
        self.model.requires_grad_(False)
        parameters = []
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):
                module.track_running_stats = False
                module.running_mean = None
                module.running_var = None
            if isinstance(module, _BatchNorm | nn.GroupNorm | nn.LayerNorm):
                module.requires_grad_(True)
                parameters += [module.weight, module.bias]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def descend(self, loss: Tensor) -> None:
        """Take one step of the optimizer."""
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def networks(self) -> list[nn.Module]:
        """Return those whose operations count."""
        return [self.model]


class TextbookTent(Textbook):
    """Forward, mean entropy, step."""

    def __call__(self, x: Tensor) -> Tensor:
        """Take one step; return the batch's logits."""
        logits: Tensor = self.model(x)
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
        self.descend(entropy.mean(0))
        return logits.detach()


class TextbookCreTTA(Textbook):
    """Energies of both batches under both networks, Eq. 4, step, forward."""

    def __init__(self, net: nn.Module, source: Tensor) -> None:
        super().__init__(net)
        self.reference = copy.deepcopy(net).eval()
        self.source = source
        self.position = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Take one step; return the batch's logits."""
        index = torch.arange(self.position, self.position + len(x)) % len(self.source)
        self.position += len(x)
        source = self.source[index]
        with torch.no_grad():
            reference_target = -torch.logsumexp(self.reference(x), 1)
            reference_source = -torch.logsumexp(self.reference(source), 1)
        target_energy = -torch.logsumexp(self.model(x), 1)
        source_energy = -torch.logsumexp(self.model(source), 1)
        logit = (reference_target - reference_source) - (target_energy - source_energy)
        self.descend(-nn.functional.logsigmoid(logit).mean())
        with torch.no_grad():
            logits: Tensor = self.model(x)
        return logits

    def networks(self) -> list[nn.Module]:
        """Return both."""
        return [self.model, self.reference]


class TextbookTEA(Textbook):
    """Twenty steps of SGLD from a replay buffer, the difference of energies, step, forward."""

    def __init__(self, net: nn.Module, replay: Tensor) -> None:
        super().__init__(net)
        self.replay = replay.clone()

    def __call__(self, x: Tensor) -> Tensor:
        """Take one step; return the batch's logits."""
        index = torch.randint(len(self.replay), (len(x),), device=x.device)
        redrawn = (torch.rand(len(x), device=x.device) < 0.05).float()[:, None, None, None]
        samples = redrawn * torch.empty_like(x).uniform_(-1, 1) + (1 - redrawn) * self.replay[index]
        samples.requires_grad_(True)
        for _ in range(20):
            slope = torch.autograd.grad(torch.logsumexp(self.model(samples), 1).sum(), [samples])[0]
            samples.data += 0.1 * slope + 0.01 * torch.randn_like(samples)
        samples = samples.detach()
        self.replay[index] = samples
        real = -torch.logsumexp(self.model(x), 1).mean()
        fake = -torch.logsumexp(self.model(samples), 1).mean()
        self.descend(real - fake)
        with torch.no_grad():
            logits: Tensor = self.model(x)
        return logits
