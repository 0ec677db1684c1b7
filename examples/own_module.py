"""Your own module: train it, cut it to 0.6 of its multiply-adds on its own data, fine-tune, save and restore."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import natpp
from natpp.data.sets import load_images

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--small", action="store_true", help="takes seconds: fewer epochs and candidates")
small = arguments.parse_args().small


# --- the model
def layer(channels: int, kernel: int, to: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, to, kernel, padding=kernel // 2), nn.BatchNorm2d(to), nn.ReLU())


class Net(nn.Module):
    """An ordinary residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = layer(3, 5, 16)
        self.blocks = nn.ModuleList(nn.Sequential(layer(16, 3, 16), layer(16, 3, 16)) for _ in range(3))
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.stem(images)
        for block in self.blocks:
            features = features + block(features)
        return self.head(features.mean((2, 3)))


# --- the data
digits = load_images("digits")
images, labels = torch.tensor(digits.train) / 255, torch.tensor(digits.train_labels)
train = DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=64, shuffle=True)
val = DataLoader(TensorDataset(images[:360], labels[:360]), batch_size=64)
task = natpp.Task(train, val)

torch.manual_seed(0)
trained = natpp.finetune(Net(), task, "tune:learning_rate=0.1,epochs=1" if small else "tune:learning_rate=0.1")
print(f"the original: {trained.validation_accuracy:.1f} % of the validation images")

# --- learned on its data
result = natpp.optimize(
    trained.module,
    "tuned:evaluations=3" if small else "tuned:evaluations=16",
    budget={"madds": 0.6},
    example_input=images[:1],
    task=task,
)
print(result)
tuned = natpp.finetune(result, task, "tune:epochs=1" if small else "tune:epochs=5")
print(f"the better one: {tuned.validation_accuracy:.1f} % of the validation images")

# --- kept
result.save("better")  # weights, architecture, and a Python file that does not need natpp
assert torch.equal(natpp.restore("better").eval()(images[:8]), result.module.eval()(images[:8]))
