"""Your own module: trained, cut to 0.6 of its multiply-adds on its own data, fine-tuned, saved and restored."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import natpp
from natpp.data.sets import load_images

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--small", action="store_true", help="a few seconds: fewer epochs and candidates")
small = arguments.parse_args().small


class Net(nn.Module):
    """A residual network that natpp has never seen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU())
        self.first, self.second = (
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(2)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.stem(images)
        features = features + self.second(self.first(features))
        return self.head(features.mean((2, 3)))


digits = load_images("digits")
images, labels = torch.tensor(digits.train) / 255, torch.tensor(digits.train_labels)
train = DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=64, shuffle=True)
val = DataLoader(TensorDataset(images[:360], labels[:360]), batch_size=64)

torch.manual_seed(0)
trained = natpp.finetune(Net(), train, val, epochs=1 if small else 10, learning_rate=0.1)
print(f"the original: {trained.validation_accuracy:.1f} % of the validation images")

result = natpp.optimize(
    trained.module,
    example_input=images[:1],
    train=train,
    val=val,
    budget={"madds": 0.6},
    evaluations=3 if small else 16,
)
print(result)
tuned = natpp.finetune(result, train, val, epochs=1 if small else 5)
print(f"the better one: {tuned.validation_accuracy:.1f} % of the validation images")

result.save("better")  # weights, architecture, and a Python file that needs no natpp
assert torch.equal(natpp.restore("better").eval()(images[:8]), result.module.eval()(images[:8]))
