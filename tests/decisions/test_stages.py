"""Fits in stages: the same as in one where memory allows, later layers on more inputs where it does not."""

import torch
from torch import Tensor, nn

from natpp.arch.decisions import Decisions
from natpp.decisions.refit import refit
from natpp.decisions.stages import Stage, refit_in_stages, stages_of
from natpp.fx.trace import trace
from natpp.subjects.module import Module
from tests.fx.fx_models import SMALL
from tests.fx.promises import warmed

X = torch.randn(2, 3, 8, 8)
PLENTY = 1 << 40


def inputs(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(16, 3, 8, 8, generator=generator) for _ in range(count)]


def pair(name: str, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """A small network with half of the channels inside of its blocks, and the original."""
    torch.manual_seed(seed)
    subject = Module(trace(warmed(SMALL[name](), X).eval(), X), Decisions(kinds=("width",)))
    plan = tuple(one.allowed[len(one.allowed) // 2] for one in subject.decisions)
    return subject.rewritten(plan), subject.rewritten((0,) * len(plan))


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_stages_begin_where_more_inputs_fit() -> None:
    needed, reached = [100.0, 100.0, 50.0, 30.0, 10.0], [0, 1, 1, 2, 3, 4]
    assert stages_of(needed, reached, 1000, 2000, 4) == [Stage(0, 20), Stage(3, 40), Stage(4, 66), Stage(5, 200)]
    assert stages_of(needed, reached, 50, 2000, 4) == [Stage(0, 20), Stage(3, 40), Stage(4, 50)]
    assert stages_of(needed, reached, 1000, 2000, 90) == [Stage(0, 90), Stage(5, 200)]
    assert stages_of(needed, reached, 15, 2000, 4) == [Stage(0, 15)]


def test_with_enough_memory_it_is_one_fit() -> None:
    for name in ("resnet", "mobilenet"):
        made, original = pair(name)
        once, _ = pair(name)
        wanted = refit(once, original, inputs(8))
        found, counts = refit_in_stages(made, original, inputs(8), PLENTY, 16)
        assert found == wanted
        assert counts == [128]
        assert all(torch.equal(tensor, once.state_dict()[key]) for key, tensor in made.state_dict().items())


def test_later_layers_are_fitted_on_more_inputs() -> None:
    for name in ("resnet", "mobilenet"):
        made, original = pair(name)
        few, _ = pair(name)
        wanted = refit(few, original, inputs(8)[:1])
        before, kept = weights(original), weights(made)
        found, counts = refit_in_stages(made, original, inputs(8), 16 * 10_000, 16)
        assert counts[0] < counts[-1] == 128
        assert counts == sorted(set(counts))
        assert [one.name for one in found] == [one.name for one in wanted]  # each of them once
        assert any(not torch.equal(tensor, kept[key]) for key, tensor in made.state_dict().items())
        assert all(torch.equal(tensor, before[key]) for key, tensor in original.state_dict().items())
        new = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(9))
        with torch.no_grad():
            goal = original.eval()(new)
            losses = [float((one.eval()(new) - goal).square().mean()) for one in (made, few)]
        assert losses[0] < losses[1]
