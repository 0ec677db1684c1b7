"""What became of a module, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import fx, nn

from natpp.arch.graph import NULL
from natpp.core.learned import Learned
from natpp.core.measures import Cost
from natpp.fx.blocks import Block
from natpp.fx.traced import Traced


@dataclass(frozen=True)
class SiteChange:
    """One operation that became another, or a shortcut that was put in or taken out."""

    name: str
    """the site's name; for a shortcut, its block and the two nodes it joins"""
    before: str
    after: str
    probability: float
    """of this transition, by the policy; of something that went because nothing reads it any more: 1"""


@dataclass(frozen=True)
class ModuleResult:
    """What became of a module, and why.

    Examples:
        >>> model = natpp.zoo.network("resnet20")
        >>> result = natpp.optimize(model, example_input=torch.randn(1, 3, 32, 32), budget={"madds": 0.6})
        >>> [change.name for change in result.changes][:2]
        ['layer1.0.conv1', 'layer1.0.conv2']
        >>> sorted(path.name for path in result.save("better").iterdir())
        ['architecture.json', 'model.py', 'weights.safetensors']
    """

    module: nn.Module
    """a plain module that takes and gives what the original did"""
    changes: list[SiteChange]
    """site by site: its name, the operation before and after, how likely the policy found it"""
    cost_before: Cost
    """on the example input"""
    cost_after: Cost
    """the same of what came out"""
    log_prob: float
    """log-probability of the decisions that are returned"""
    probabilities: dict[str, dict[str, float]]
    """per site or shortcut, the operations the policy could choose and how likely each was"""
    masked: dict[str, dict[str, str]]
    """per site or shortcut, the operations it could not choose, and why"""
    traced: Traced = field(repr=False)
    blocks: list[Block] = field(repr=False)
    ops: list[tuple[str, ...]] = field(repr=False)
    """per block, the operation of every term"""
    settings: dict[str, Any] = field(default_factory=dict)
    """how it was found: rule, budget, mode, seed, policy"""
    notes: tuple[str, ...] = ()
    """what was kept whole because it could not be looked into"""
    learned: Learned | None = field(default=None, repr=False)
    """what was learned on the module's data, where some was given"""
    measured: tuple[dict[str, Any], ...] = ()
    """what else was measured before and after, for the report"""

    def save(self, folder: str | Path) -> Path:
        """Write the module into a folder: weights, architecture, and a Python file that makes it without natpp."""
        from natpp.saved.save import save_result

        return save_result(self, folder)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what changed, block by block, what it costs, and what the policy could choose."""
        from natpp.saved.save import result_data

        return result_data(self)

    def report(self, path: str | Path) -> Path:
        """Write a page that shows all of it, one HTML file."""
        from natpp.report.page import write_report

        return write_report(self.to_dict(), path)

    def __str__(self) -> str:
        lines = [
            f"{change.name}: {change.before} → {change.after}"
            + (f"  (probability {change.probability:.2f})" if change.probability < 1 else "")
            for change in self.changes
        ] or ["nothing changed"]
        rows: list[tuple[str, float | None, float | None, str]] = [
            ("parameters", self.cost_before.params, self.cost_after.params, ",.0f"),
            ("multiply-adds", self.cost_before.madds, self.cost_after.madds, ",.0f"),
            ("peak memory, bytes", self.cost_before.peak_memory_bytes, self.cost_after.peak_memory_bytes, ",.0f"),
            ("latency, ms", self.cost_before.latency_ms, self.cost_after.latency_ms, ",.2f"),
        ]
        for name, before, after, form in rows:
            if before is not None and after is not None:
                share = f"({after / before - 1:+.1%})" if before else ""
                lines.append(f"{name:<20} {before:>15{form}} → {after:>15{form}}  {share}")
        lines += [] if self.learned is None else [str(self.learned)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def vanished(blocks: Sequence[Block], ops: Sequence[Sequence[str]], made: fx.GraphModule) -> list[SiteChange]:
    """Sites that are alive in their own block but went, since no other block reads it any more."""
    present = {node.name for node in made.graph.nodes}
    found = []
    for block, row in zip(blocks, ops, strict=True):
        live, _ = block.alive(row)
        for (_, term), op, alive in zip(block.terms, row, live, strict=True):
            if term.site is not None and alive and op == term.op and term.site.main[0].name not in present:
                found.append(SiteChange(term.site.name, term.op, NULL, 1.0))
    return found
