"""Recurrent heads: ReLU features into an LSTM or GRU, a ReLU network behind it; a recurrence written out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .blocks import UNIT, dead, killing, net, tokens, uniform


class LstmHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(6, 10)
        self.lstm = nn.LSTM(10, 8, batch_first=True)
        self.fc1 = nn.Linear(8, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(self.features(x).relu())
        return self.fc2(self.fc1(x[:, -1]).relu())


class GruHead(nn.Module):
    """Convolutional features along time, a two-way GRU, its mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 10, 3, padding=1)
        self.bn = nn.BatchNorm1d(10)
        self.gru = nn.GRU(10, 6, bidirectional=True)
        self.fc1 = nn.Linear(12, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.gru(self.bn(self.conv(x)).relu().permute(2, 0, 1))
        return self.fc2(self.fc1(x.mean(0)).relu())


class WordLstm(nn.Module):
    """Tokens, a dense ReLU layer on each, two stacked LSTM layers, per-token output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.fc1 = nn.Linear(6, 10)
        self.lstm = nn.LSTM(10, 6, num_layers=2, batch_first=True)
        self.fc2 = nn.Linear(6, 8)
        self.out = nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.lstm(self.fc1(self.embed(ids)).relu())
        return self.out(self.fc2(x).relu())


class ReluRecurrence(nn.Module):
    """hₜ = relu(W·xₜ + U·hₜ₋₁): U is used at every step, and its inputs are its own outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(5, 8)
        self.step = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.read(x[:, 0]))
        for t in range(1, x.shape[1]):
            hidden = torch.relu(self.read(x[:, t]) + self.step(hidden))
        return self.out(hidden)


ENTRIES = (
    net("lstm_head", LstmHead, uniform(2, 4, 6), UNIT,
        dead("features", at=(0, 3, 8), how="bound"),
        dead("fc1", at=(2, 5)),
        pinned=("fc2",), tags="recurrent"),
    net("gru_head", GruHead, uniform(2, 3, 6, lo=-1.0), (-1.0, 1.0),
        killing("bn", removes="conv", at=(1, 9)),
        dead("fc1", at=(0, 7, 10)),
        pinned=("fc2",), tags="recurrent conv1d batchnorm negative-domain", gain=1.5),
    net("lstm_tokens", WordLstm, tokens(20, 2, 5), None,
        dead("fc1", at=(4, 6)),
        dead("fc2", at=(1, 3)),
        pinned=("out",), tags="recurrent tokens"),
    net("relu_recurrence", ReluRecurrence, uniform(2, 4, 5), UNIT,
        dead("read", at=(2, 5), how="bound"), dead("step", at=(2, 5), how="nonpositive"),
        pinned=("out",), tags="recurrent shared-module"),
)  # fmt: skip
