"""Sampling on the device."""

from torch import Tensor

from flyweight.wire import SampleBatch, Sampled


def sample(logits: Tensor, s: SampleBatch) -> Sampled:
    raise NotImplementedError
