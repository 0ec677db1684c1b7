"""Costs of hand-crafted networks beside published figures.

Needs: nothing; seconds
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch

import natpp
from experiments.lib.settings import HERE, Experiment, Settings
from natpp.core.measures import Cost
from natpp.files import write_whole
from natpp.registry import MODELS
from natpp.zoo import Model

HEAD = """# Hand-crafted networks

`natpp.zoo.network(name, classes=None)` builds one as a plain `nn.Module` with fresh weights; `natpp zoo`
lists them. Each is written from its paper and can be traced by `torch.fx`. To add one, put its code
into `src/natpp/zoo/networks` and an entry into `src/natpp/zoo/models.py`; `tests/zoo` then tests it too.
`resnet18`, `resnet50`, `vgg16_imagenet` and `mobilenetv2_imagenet` have the parameter names of torchvision:
weights published for it load with `load_state_dict`.

Parameters and multiply-adds (MAdds) of one image, in millions, as `natpp.cost` counts them: all parameters,
those of batch norms too; MAdds of convolutions and linear layers. Beside them the rows of the NAT++ paper,
and the network's own paper where it says. Written by `experiments/zoo.py`.

| network | input | outputs | params | NAT++ paper | own paper | MAdds | NAT++ paper | own paper |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Zoo(Settings):
    out: Path = HERE.parent / "docs" / "zoo.md"


def counted(model: Model) -> Cost:
    """The cost of a network for one image, from a run on the meta device."""
    with torch.device("meta"):
        return natpp.cost(model.build(), example_input=torch.empty(1, *model.input_shape))


def page() -> str:
    """The table as a page, with differences explained."""
    lines, notes = [], ["", "## Differences", ""]
    for model in MODELS.values():
        cost, row = counted(model), next(iter(model.published), None)
        cells = [
            f"`{model.name}`",
            " x ".join(str(side) for side in model.input_shape),
            str(model.outputs),
            f"{cost.params / 1e6:,.2f}",
            _figure(row.params_m if row else None),
            _figure(model.original_params_m),
            f"{cost.madds / 1e6:,.1f}",
            _figure(row.madds_m if row else None),
            _figure(model.original_madds_m),
        ]
        lines.append("| " + " | ".join(cells) + " |")
        exactly = f"{cost.params:,} parameters, {cost.madds:,} MAdds"
        notes += _wrapped(f"- `{model.name}` ({model.source}): {exactly}. {model.note}")
    return HEAD + "\n".join([*lines, *notes]) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 119, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def write(settings: Zoo) -> None:
    """Write the page."""
    write_whole(settings.out, page())


EXPERIMENT = Experiment(Zoo, (write,))
