"""A small convolutional net on images of digits, and the rows that a site holds."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from sottovoce.adapters.record_gradients import ModuleGradients

TRAINED = 1500


def images(which):
    found, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(found))[which]
    return torch.from_numpy(found[order].astype(np.float32) / 16).view(-1, 1, 8, 8), torch.from_numpy(labels[order])


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10))


def start():
    return {name: part.detach().numpy() for name, part in net().named_parameters()}


def gradients_of(site, sites):
    return ModuleGradients(net(), nn.functional.cross_entropy, *images(slice(site, TRAINED, sites)))


def held(sites):
    return [len(range(site, TRAINED, sites)) for site in range(sites)]


def accuracy(model):
    module, (inputs, labels) = net(), images(slice(TRAINED, None))
    module.load_state_dict({name: torch.as_tensor(part) for name, part in model.items()})
    return float((module(inputs).argmax(1) == labels).float().mean())
