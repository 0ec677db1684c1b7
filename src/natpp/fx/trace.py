"""A module as a graph with real shapes, in one symbolic pass that computes only shapes.

Each proxy carries a fake tensor of the example's shape, so that code that reads shapes works. A submodule that cannot
be traced stays whole, and the notes say so; for the module itself, `torch.export` is tried next (`export.py`).

A forward that reads its mode is traced in eval mode and again in training mode; a constant that differs between the two
becomes a `ByMode`. If a module given in eval mode takes a different path in training mode (auxiliary heads), or a part
with layers inside does (stochastic depth written into a block), the result always takes the eval-mode path there.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from natpp.errors import SettingError
from natpp.fx.layers import with_layers
from natpp.fx.modes import Difference, by_mode, differences_of, in_mode, switches_itself
from natpp.fx.patches import DRAWS, OwnGradient, own_gradients_stop, quiet_logs
from natpp.fx.traced import Traced, TraceError, part_at, some_of
from natpp.fx.tracer import Leaves, Stopped, Tracer, Unregistered, followed, states_of_chance


def trace(module: nn.Module, example_input: Any) -> Traced:
    """The graph of a module on inputs like the example: a tensor, a tuple of arguments or a dict of named ones."""
    _check_module(module)
    arguments = _bound(module, example_input)
    with quiet_logs():
        return _traced(module, example_input, arguments)


def _traced(module: nn.Module, example_input: Any, arguments: inspect.BoundArguments) -> Traced:
    from natpp.nets.measure import module_cost

    leaves = Leaves()
    by_name, left_out = isinstance(example_input, dict), ""  # left_out: where training mode takes a different path
    in_eval: set[nn.Module] = set()  # parts whose eval-mode path is taken
    kept_for_training: Stopped | None = None
    known: dict[Hashable, Any] = {}  # what calls made in any pass
    watched = False  # whether to check every step for random draws, which is slow
    while True:
        chance = states_of_chance()
        differences: list[Difference] = []
        try:
            with in_mode(module, training=False):
                tracer = Tracer(arguments, leaves, by_name=by_name, watched=watched, known=known)
                graph, extra = followed(module, tracer)
            if not left_out and (tracer.mode.asked or switches_itself(module)):
                with in_mode(module, training=True):
                    for part in in_eval:
                        part.training = False
                    twin = Tracer(arguments, leaves, list(graph.nodes), by_name=by_name, watched=watched)
                    differences = _compared(module, twin)
            if watched or chance == states_of_chance():
                break
            watched = True  # trace again, to find out where it was drawn
        except Stopped as stopped:
            if not watched and chance != states_of_chance():
                watched = True
                continue
            there = module.get_submodule(stopped.path)
            only_there = stopped.other_way and there not in {module, *tracer.visited}
            if stopped.other_way and stopped.path and not only_there and _has_layers(there) and there not in in_eval:
                if not module.training:
                    in_eval |= stopped.alike(module)
                    leaves.note(
                        f"in training mode {stopped.where} makes it take another path; "
                        "the result keeps the eval-mode path"
                    )
                    continue
                stopped.reason += "; call its eval() first, so that natpp can look inside"
            if not only_there and leaves.add(stopped, module):
                kept_for_training = kept_for_training or (stopped if stopped.other_way else None)
                continue
            if stopped.other_way and not module.training:
                left_out = stopped.where
                break
            if kept_for_training is not None and not module.training and not left_out:
                leaves, left_out = Leaves(), kept_for_training.where  # keeping the submodule whole does not help either
                continue
            module_cost(module, example_input)  # if it does not run at all, this says what is wrong
            if isinstance(stopped.__cause__, OwnGradient):
                raise _refused(module, stopped) from stopped
            if isinstance(stopped.__cause__, Unregistered):
                raise TraceError(
                    f"{type(module).__name__} calls a {stopped.__cause__} that is not registered: torch neither trains "
                    "nor saves it. Keep it as an attribute, or in an nn.ModuleList or nn.ModuleDict"
                ) from stopped
            return _second_way(module, example_input, stopped)
    if left_out:
        leaves.notes.append(
            f"in training mode {left_out} makes it take another path; the result keeps the eval-mode path"
        )
    extra |= by_mode(graph, differences)
    parts = {
        node.target: extra[node.target] if node.target in extra else part_at(module, node.target)
        for node in graph.nodes
        if node.op in ("call_module", "get_attr")
    }
    parts = with_layers(module, graph, parts)
    unread = [] if left_out else _unread(module, parts)
    return Traced(module, graph, parts, example_input, (*leaves.notes, *unread))


def _has_layers(part: nn.Module) -> bool:
    """Whether a part contains layers with matrices or kernels; norms do not count."""
    return any(one.dim() > 1 for child in part.children() for one in child.parameters())


def _unread(module: nn.Module, parts: Mapping[str, Any]) -> list[str]:
    """A note that names the parameters that the forward does not read, if any."""
    read = {id(part) for part in parts.values() if isinstance(part, Tensor)}
    read |= {id(held) for part in parts.values() if isinstance(part, nn.Module) for held in part.parameters()}
    found = [name for name, parameter in module.named_parameters() if id(parameter) not in read]
    return [f"{some_of(found)}: not read by the forward in eval mode, and left out of the result"] if found else []


def _compared(module: nn.Module, tracer: Tracer) -> list[Difference]:
    """Constants that differ in training mode."""
    try:
        followed(module, tracer)
    except Stopped as stopped:
        stopped.other_way = True
        raise
    return tracer.differences


def _check_module(module: nn.Module) -> None:
    """Reject kinds of modules that cannot be traced."""
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise TraceError(f"{kind} is compiled by torch.jit: give the module it was compiled from")
    if hasattr(module, "_orig_mod"):
        raise TraceError("the module is compiled by torch.compile: give its _orig_mod, and compile the result")
    held = ((path, (*part._parameters.values(), *part._buffers.values())) for path, part in module.named_modules())
    lazy = next((path for path, own in held if any(is_lazy(one) for one in own if one is not None)), None)
    if lazy is not None:
        raise TraceError(f"{lazy or kind} has no weights yet: call the module once to initialize its lazy layers")


def _bound(module: nn.Module, example_input: Any) -> inspect.BoundArguments:
    """The example as the arguments of the module's forward, including defaults."""
    signature = inspect.signature(module.forward)
    if not isinstance(example_input, Tensor | dict | tuple | list):
        raise SettingError(
            f"the example input is of type {type(example_input).__name__}, expected a tensor, a tuple of arguments "
            "or a dict of named ones"
        )
    if isinstance(example_input, tuple | list) and example_input and all(type(side) is int for side in example_input):
        sides = ", ".join(str(side) for side in example_input)
        raise SettingError(f"the example input is a shape, expected a tensor: torch.randn({sides})")
    named = example_input if isinstance(example_input, dict) else {}
    given = example_input if isinstance(example_input, tuple | list) else (example_input,)
    try:
        bound = signature.bind(**named) if named is example_input else signature.bind(*given)
    except TypeError as error:
        raise SettingError(
            f"the example input does not fit {type(module).__name__}.forward{signature}: {error}. "
            "Give a tensor, a tuple of arguments or a dict of named ones"
        ) from None
    bound.apply_defaults()
    return bound


def _second_way(module: nn.Module, example_input: Any, stopped: Stopped) -> Traced:
    """The module traced by `torch.export`; raises an error that names the place if that fails, too."""
    from natpp.fx.export import evaluate, exported

    arguments = _bound(module, example_input)
    chance = states_of_chance()
    try:
        with in_mode(module, training=False), own_gradients_stop(lambda: True):
            graph, parts = exported(module, arguments)
            evaluate(graph, parts, arguments)
        with in_mode(module, training=True), own_gradients_stop(lambda: True):
            twin, _ = exported(module, arguments)
        differences = differences_of(graph, twin)
        if chance != states_of_chance():
            raise TraceError(DRAWS)
    except Exception as error:  # whatever torch.export or the user's forward raises
        raise _refused(module, stopped) from error
    parts |= by_mode(graph, differences)
    note = f"{stopped.where} could not be followed by torch.fx ({stopped.reason}): it was traced by torch.export"
    return Traced(module, graph, parts, example_input, (note, *_unread(module, parts)))


def _refused(module: nn.Module, stopped: Stopped) -> TraceError:
    """An error that names the place and a workaround."""
    why = "; ".join(said for said in (stopped.reason.rstrip("."), stopped.line) if said)
    leave = "Mark the part that does it with natpp.leaf, or move that code into a submodule and mark it"
    way = "Call its eval() first: the result then follows the eval-mode path" if stopped.other_way else leave
    return TraceError(f"{type(module).__name__} cannot be traced: {stopped.where} stops it ({why}). {way}")
