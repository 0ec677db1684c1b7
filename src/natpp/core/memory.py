"""Peak memory of a plan: the steps of its blueprint in order, with sizes in place of tensors."""

from __future__ import annotations

from collections import Counter

from natpp.core.blueprint import Blueprint, Room, Step
from natpp.core.decision import Plan


def peak_memory(blueprint: Blueprint, plan: Plan) -> int:
    """Peak bytes of values held at once: each is freed after its last reader; the caller holds the inputs."""
    steps, flow = blueprint.steps, blueprint.flow(plan)
    stands = [alive or step.fixed or not step.reads for step, alive in zip(steps, flow.alive, strict=True)]
    freed = _freed(steps, stands)
    held = peak = 0
    sizes, tensors, names = [0] * len(steps), dict[int, int](), Counter[int]()  # value → its tensor; values of a tensor
    for number, step in enumerate(steps):
        if stands[number]:
            reads = [tensors[read] for read in step.reads if read in tensors]
            made, most = _room(step, plan) if flow.reached[number] else step.silent
            if step.join == "sum" and len(reads) == 1:
                made = most = 0  # a sum of one term is that term
            elif step.join == "concat" and len(reads) == len(step.reads):
                most = made  # no zeros are needed
            peak = max(peak, held + most)
            if made or reads:
                tensors[number] = tensor = number if made else reads[0]
                names[tensor] += 1
                sizes[number] = made
                held += made
        for value in freed[number]:
            if (tensor := tensors.pop(value, -1)) >= 0:
                names[tensor] -= 1
                held -= 0 if names[tensor] else sizes[tensor]
    return peak


def _freed(steps: tuple[Step, ...], stands: list[int | bool]) -> list[list[int]]:
    """Per step, the values that nothing reads after it."""
    last = list(range(len(steps)))
    for number, step in enumerate(steps):
        for read in step.reads if stands[number] else ():
            last[read] = max(last[read], number if step.until is None else step.until)
    found: list[list[int]] = [[] for _ in steps]
    for value, number in enumerate(last):
        if steps[value].reads:
            found[number].append(value)
    return found


def _room(step: Step, plan: Plan) -> Room:
    return (0, 0) if step.room is None else step.room[tuple([plan[one] for one in step.by])]
