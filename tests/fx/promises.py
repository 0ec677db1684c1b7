"""What every module that natpp rewrites may rely on; each awkward module is put through it."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from natpp.fx.blocks import find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import Traced, trace
from natpp.fx.transform import ModuleResult, optimize_module
from natpp.nets.policy import Policy, PolicyConfig


def call(module: nn.Module, example: Any) -> Any:
    if isinstance(example, dict):
        return module(**example)
    return module(*example) if isinstance(example, tuple) else module(example)


def outputs(module: nn.Module, example: Any, *, seed: int = 0) -> tuple[list[Any], Any]:
    """What a module gives, as a flat list and its structure; chance begins at the same seed."""
    torch.manual_seed(seed)
    with torch.no_grad():
        return tree_flatten(call(module, copy.deepcopy(example)))


def random_policy(seed: int) -> Policy:
    torch.manual_seed(seed)
    return Policy(PolicyConfig(width=8)).eval()


def warmed(module: nn.Module, example: Any) -> nn.Module:
    """The module in eval mode with statistics that are not the initial ones."""
    module.train()
    outputs(module, example)
    return module.eval()


def assert_same(first: tuple[list[Any], Any], second: tuple[list[Any], Any]) -> None:
    assert first[1] == second[1]
    for one, other in zip(first[0], second[0], strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def assert_alike(first: tuple[list[Any], Any], second: tuple[list[Any], Any]) -> None:
    assert first[1] == second[1]
    for one, other in zip(first[0], second[0], strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.isfinite().all()


def no_change_is_no_change(module: nn.Module, example: Any) -> Traced:
    """With nothing changed the copy gives the same to the bit in both modes, and shares nothing."""
    traced = trace(module, example)
    same = rewrite(traced)
    assert same.state_dict().keys() == module.state_dict().keys()
    pointers = {tensor.data_ptr() for tensor in module.state_dict().values() if tensor.numel()}
    for name, tensor in same.state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name])
        assert not tensor.numel() or tensor.data_ptr() not in pointers
    for training in (False, True):
        first, second = copy.deepcopy(module).train(training), copy.deepcopy(same).train(training)
        assert_same(outputs(first, example), outputs(second, example))
        buffers = dict(first.named_buffers())
        assert all(torch.equal(tensor, buffers[name]) for name, tensor in second.named_buffers())
    return traced


def changed_keeps_promises(module: nn.Module, example: Any, result: ModuleResult) -> None:
    before, after = result.cost_before, result.cost_after
    assert after.params <= before.params
    assert after.madds <= before.madds
    assert_alike(outputs(module, example), outputs(result.module, example))
    replaced = {change.name for change in result.changes}
    original = module.state_dict()
    for name, tensor in result.module.state_dict().items():
        if name in original and not any(name.startswith(f"{path}.") for path in replaced):
            assert torch.equal(tensor, original[name]), name
    trained = result.module.train()
    found, _ = tree_flatten(call(trained, copy.deepcopy(example)))
    sum(tensor.float().pow(2).sum() for tensor in found if tensor.is_floating_point()).backward()
    assert any(parameter.grad is not None for parameter in trained.parameters())


def keeps_promises(module: nn.Module, example: Any, *, seeds: int = 4, changes: bool = True) -> Traced:
    """All of it, over random policies; returns the trace. `changes=False`: there is nothing to change."""
    module = warmed(module, example)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    given = outputs(module, example)
    traced = no_change_is_no_change(module, example)
    changed = 0
    for seed in range(seeds):
        for share in (True, False):
            mode = "greedy" if seed == 0 else "sample"
            result = optimize_module(
                module, example, random_policy(seed), mode=mode, seed=seed, share_blocks=share, rule="nat++"
            )
            changed += bool(result.changes)
            changed_keeps_promises(module, example, result)
    assert bool(changed) == changes
    assert bool(find_blocks(traced)) >= changes
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert_same(given, outputs(module, example))
    return traced
