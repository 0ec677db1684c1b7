"""What every module that natpp rewrites may rely on; each awkward module is put through it."""

import copy
import importlib.util
import io
import tempfile
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.fx import Graph
from torch.utils._pytree import tree_flatten

import natpp
from natpp.arch.decisions import Decisions
from natpp.core.decision import Plan
from natpp.core.result import Result
from natpp.fx.blocks import find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from natpp.fx.traced import Traced
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import Policy, PolicyConfig
from natpp.subjects.module import Module

TORCH_2_6 = torch.__version__.startswith("2.6.")  # its ONNX exporter fails on most networks, and exports fewer forwards


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


def changed_keeps_promises(module: nn.Module, example: Any, result: Result) -> None:
    before, after = result.cost_before, result.cost_after
    assert after.params <= before.params
    assert after.madds <= before.madds
    assert_alike(outputs(module, example), outputs(result.module, example))
    replaced = {change.name for change in result.changes}
    narrowed = any(change.kind == "width" for change in result.changes)  # of other layers, too
    original = {} if narrowed else module.state_dict()
    for name, tensor in result.module.state_dict().items():
        if name in original and not any(name.startswith(f"{path}.") for path in replaced):
            assert torch.equal(tensor, original[name]), name
    nodes = [node for block in result.subject.blocks for item in block.items for node in item.nodes]
    inside = {str(read.target) for node in nodes for read in (node, *node.all_input_nodes)}
    untouched = {
        name for name, _ in module.named_parameters() if name not in inside and name.rpartition(".")[0] not in inside
    }
    assert untouched & read_by(result.subject.traced.graph, module) <= result.module.state_dict().keys()
    trained = result.module.train()
    found, _ = tree_flatten(call(trained, copy.deepcopy(example)))
    sum(tensor.float().pow(2).sum() for tensor in found if tensor.is_floating_point()).backward()
    assert any(parameter.grad is not None for parameter in trained.parameters())


def read_by(graph: Graph, module: nn.Module) -> set[str]:
    """The parameters that a forward reads."""
    targets = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    names = [name for name, _ in module.named_parameters()]
    return {name for name in names if any(name == target or name.startswith(f"{target}.") for target in targets)}


def counted_is_built(traced: Traced, *, plans: int = 3, share: bool = False, rule: str = "nat++") -> None:
    """Parameters and multiply-adds of random plans are, to the digit, those of what is built."""
    module = Module(traced, Decisions(rule=rule, share_blocks=share, strict=False))
    generator = np.random.default_rng(0)
    for _ in range(plans):
        module.apply(random_plan(module, generator))  # it asserts that


def random_plan(module: Module, generator: np.random.Generator, changed: float = 1.0) -> Plan:
    """A plan that is connected, with about so much of it drawn at random."""
    drawn = [int(generator.choice(one.allowed)) if generator.random() < changed else 0 for one in module.decisions]
    return module.repaired(tuple(drawn), generator.random(len(drawn)).tolist())


def written_module(folder: Path) -> ModuleType:
    """The Python file of a saved result, imported."""
    spec = importlib.util.spec_from_file_location("written", folder / "model.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def assert_same_module(made: nn.Module, module: nn.Module, example: Any) -> None:
    """Both give the same to the bit in both modes, with the same tensors, modes and what learns."""
    assert made.training == module.training
    first, second = made.state_dict(), module.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    learning = {name: tensor.requires_grad for name, tensor in module.named_parameters()}
    assert {name: tensor.requires_grad for name, tensor in made.named_parameters()} == learning
    for training in (False, True):
        one, other = copy.deepcopy(made).train(training), copy.deepcopy(module).train(training)
        assert_same(outputs(one, example), outputs(other, example))
        buffers = dict(other.named_buffers())
        assert all(torch.equal(tensor, buffers[name]) for name, tensor in one.named_buffers())


def saved_is_the_same(result: Result, example: Any, original: nn.Module | None = None) -> None:
    """A saved result comes back as it was, by natpp and by its own Python file."""
    with tempfile.TemporaryDirectory() as place:
        folder = result.save(Path(place) / "saved")
        assert_same_module(natpp.restore(folder, original), result.module, example)
        given = () if original is None else (original,)
        assert_same_module(written_module(folder).load(*given), result.module, example)


def deployed_is_the_same(module: nn.Module, example: Any, *, backend: str = "eager") -> None:
    """`torch.export`, ONNX in onnxruntime and `torch.compile` give what the module gives."""
    module = copy.deepcopy(module).eval()
    expected = outputs(module, example)
    args, kwargs = (example if isinstance(example, tuple) else (example,)), {}
    if isinstance(example, dict):
        args, kwargs = (), example
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes of torch about itself
        program = torch.export.export(module, args, kwargs)
        exported = tree_flatten(program.module()(*args, **kwargs))
        written = None if TORCH_2_6 else torch.onnx.export(program, dynamo=True, verbose=False)
    assert_near(exported, expected, 1e-6)
    if written is not None:
        buffer = io.BytesIO()
        written.save(buffer)
        session = onnxruntime.InferenceSession(buffer.getvalue(), providers=["CPUExecutionProvider"])
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        feeds = {place.name: leaf.numpy() for place, leaf in zip(session.get_inputs(), given, strict=True)}
        found = session.run(None, feeds)
        assert_near(([torch.from_numpy(np.asarray(one)) for one in found], expected[1]), expected, 1e-4)
    torch.compiler.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = tree_flatten(call(torch.compile(module, backend=backend), copy.deepcopy(example)))
    assert_near(compiled, expected, 1e-5)


def assert_near(first: tuple[list[Any], Any], second: tuple[list[Any], Any], tolerance: float) -> None:
    """The same tensors within a tolerance; a dict may have become one of torch's own kind."""
    for one, other in zip(first[0], second[0], strict=True):
        assert one.shape == other.shape
        scale = max(1.0, float(other.abs().max()))
        assert float((one.detach() - other).abs().max()) <= tolerance * scale


def keeps_promises(
    module: nn.Module, example: Any, *, seeds: int = 4, changes: bool = True, deploys: bool = True
) -> Traced:
    """All of it, over random policies, of which every other one decides block by block; returns the trace.

    `changes=False`: there is nothing to change.
    """
    module = warmed(module, example)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    given = outputs(module, example)
    traced = no_change_is_no_change(module, example)
    changed = 0
    for seed in range(seeds):
        method = PolicyMethod(learned=random_policy(seed), mode="sample" if seed else "greedy")
        options = {"decisions": natpp.Decisions(share_blocks=seed % 2 == 0), "run": natpp.Run(seed=seed)}
        result = natpp.optimize(module, method, "strict", example_input=example, **options)
        changed += bool(result.changes)
        if seed == seeds - 1:
            saved_is_the_same(result, example)
            if deploys:
                deployed_is_the_same(result.module, example)
        changed_keeps_promises(module, example, result)
    for share in (True, False):
        counted_is_built(traced, share=share)
    assert bool(changed) == changes
    assert bool(find_blocks(traced)) >= changes
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert_same(given, outputs(module, example))
    return traced
