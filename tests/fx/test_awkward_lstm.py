"""A convolutional front with an LSTM head that reads columns as time."""

import torch
from torch import Tensor, nn

from tests.fx.promises import keeps_promises


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d((2, 1))),
        )
        self.lstm = nn.LSTM(16, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.features(x)
        columns = x.permute(0, 3, 1, 2).flatten(2)
        out, (hidden, _) = self.lstm(columns)
        return self.head(out), hidden


def test_lstm_head() -> None:
    keeps_promises(Reader(), torch.randn(2, 1, 8, 12))
