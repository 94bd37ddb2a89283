"""Batch norm without a largest batch has hardly a bound in train mode, which is said where nothing goes."""

import warnings

import pytest
import torch
from torch import nn

import nodedrop as nd


def network() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        model[1].weight.fill_(1e-3)
        model[1].bias[:3] = -1e-2
    return model


def test_a_look_that_finds_nothing_says_what_helps() -> None:
    drop = nd.NodeDrop(network(), None, torch.rand(4, 4))
    with pytest.warns(UserWarning, match="give batch_size=, the largest batch you train with"):
        assert drop.drop() is None


def test_what_it_says_helps_and_is_not_said_again() -> None:
    drop = nd.NodeDrop(network(), None, torch.rand(4, 4), batch_size=32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        event = drop.drop()
        assert event is not None
        assert len(event.removed) == 3
        assert drop.drop() is None
