"""The result of an optimization, and why: the same class for architectures and modules."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from natpp.core.decision import Change, Option, Plan
from natpp.core.learned import Learned
from natpp.core.measures import Cost
from natpp.core.subject import Subject
from natpp.errors import SettingError
from natpp.registry import LAYERS, WRITERS

FORMAT, VERSION = "natpp result", 2
SURE = 0.995  # probabilities from here on are not printed
ROWS = (
    ("parameters", "live_params", ",.0f"),
    ("multiply-adds", "live_madds", ",.0f"),
    ("peak memory, bytes", "peak_memory_bytes", ",.0f"),
    ("latency, ms", "latency_ms", ",.2f"),
)


@dataclass(frozen=True)
class Result:
    """An optimized architecture or module, and why each change was made.

    Examples:
        >>> result = natpp.optimize("darts")
        >>> change = result.changes[0]
        >>> change.name, change.before, change.after
        ('reduce 0 → 2', 'max_pool_3x3', 'avg_pool_3x3')
        >>> sorted(result.probabilities[change.name])
        ['avg_pool_3x3', 'max_pool_3x3', 'null']

        With a module:

        >>> model = natpp.zoo.network("resnet20")
        >>> result = natpp.optimize(model, example_input=torch.randn(1, 3, 32, 32), budget={"madds": 0.6})
        >>> [change.name for change in result.changes][:2]
        ['layer1.0.conv1', 'layer1.0.conv2']
        >>> sorted(path.name for path in result.save("better").iterdir())
        ['architecture.json', 'model.py', 'weights.safetensors']
    """

    subject: Subject = field(repr=False)
    plan: Plan
    """the option that was picked for every decision of the subject"""
    after: Any
    """the optimized architecture, or a plain module with the inputs and outputs of the original"""
    cost_before: Cost
    """in the chosen network, or on the example input"""
    cost_after: Cost
    """the same for the optimized one"""
    changes: tuple[Change, ...]
    """per place: its name, the option before and after, and the policy's probability"""
    log_prob: float | None
    """log-probability of the plan by the policy, if one chose it"""
    chances: Sequence[Sequence[float]] | None = field(repr=False)
    """the policy's probability of every option, per decision"""
    settings: dict[str, Any] = field(default_factory=dict)
    """how it was found: rule, budget, mode, seed, policy"""
    notes: tuple[str, ...] = ()
    """what you should know: for example, which parts were kept whole, and why"""
    learned: Learned | None = field(default=None, repr=False)
    """what was learned on the subject's own data, if any was given"""
    measured: tuple[dict[str, Any], ...] = ()
    """measurements before and after, with their spread and how they were taken"""

    @property
    def before(self) -> Any:
        """The architecture or module that was given."""
        return self.subject.given

    @property
    def module(self) -> Any:
        """The optimized module: a plain torch.nn.Module."""
        if not callable(self.after):
            raise SettingError("an architecture is not a module yet: natpp.build(result.after) makes one")
        return self.after

    @property
    def probabilities(self) -> dict[str, dict[str, float]]:
        """Per place, the options that the policy could choose and their probabilities; empty without a policy."""
        places = [] if self.chances is None else self.subject.places
        return {
            name: {str(option.value): chance for option, chance in self._chances(number) if option.allowed}
            for name, number in places
        }

    @property
    def masked(self) -> dict[str, dict[str, str]]:
        """Per place, the options that were not allowed, and why: rule, ops, shape, cost, connection or kept."""
        return {
            name: {str(option.value): option.why_not for option in self._options(number) if option.why_not}
            for name, number in self.subject.places
        }

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Per layer of a module, in network order: what it was and became, and its cost before and after."""
        return LAYERS[self.subject.name](self) if self.subject.name in LAYERS else []

    def _options(self, number: int) -> tuple[Option, ...]:
        return self.subject.decisions[number].options

    def _chances(self, number: int) -> list[tuple[Option, Any]]:
        """The options of a decision with their probabilities, None where there are none."""
        options = self._options(number)
        return list(zip(options, [None] * len(options) if self.chances is None else self.chances[number], strict=True))

    def save(self, path: str | Path) -> Path:
        """Save the optimized one: an architecture as a JSON file, a module as a folder.

        The folder has the weights, the graph, and a Python file that makes the module without natpp.
        """
        saved: Path = WRITERS[self.subject.name](self, Path(path))
        return saved

    def export(self, path: str | Path, tolerance: float = 1e-3) -> Any:
        """Write the module as an ONNX file and check it in onnxruntime: a `natpp.saved.onnx.Exported`.

        It may differ from the module by `tolerance` times its largest output, on the example and two random inputs.
        """
        return WRITERS["onnx"](self, Path(path), tolerance)

    def report(self, path: str | Path, trained: Sequence[str | Path] = ()) -> Path:
        """Write the result as one HTML page; `trained` are folders of trainings, which provide accuracies."""
        page: Path = WRITERS["page"](self, Path(path), *trained)
        return page

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the changes, the costs, the options at every place, and the settings."""
        from natpp import __version__

        told = self.subject.told(self.plan, self.changes)
        numbers = dict(self.subject.places)
        for place in (*(one for group in told["groups"] for one in group["decisions"]), *told.get("elsewhere", ())):
            place.update(self._told(numbers[place["name"]], place.pop("costs")))
        layers = self.layers
        return {
            "format": FORMAT,
            "version": VERSION,
            "subject": self.subject.name,
            **told,
            "changes": [vars(change) for change in self.changes],
            **({"layers": layers} if layers else {}),
            "cost_before": self.cost_before.to_dict(),
            "cost_after": self.cost_after.to_dict(),
            "log_prob": self.log_prob,
            "measured": [*([] if self.learned is None else [self.learned.measured]), *self.measured],
            "learned": None if self.learned is None else self.learned.to_dict(),
            "notes": list(self.notes),
            "settings": self.settings,
            "versions": {"natpp": __version__, "torch": importlib.metadata.version("torch")},
        }

    def _told(self, number: int, costs: dict[str, list[int]]) -> dict[str, Any]:
        """A decision at one place: its kind and options, each with its probability and cost, or why it is forbidden."""
        options: list[dict[str, Any]] = []
        for option, chance in self._chances(number):
            if option.allowed:
                cost = {"cost": costs[str(option.value)]} if str(option.value) in costs else {}
                options.append({"value": option.value} | ({} if chance is None else {"probability": chance}) | cost)
            else:
                options.append({"value": option.value, "why_not": option.why_not})
        return {"kind": self.subject.decisions[number].kind, "options": options}

    def __str__(self) -> str:
        lines = [] if self.changes else ["nothing changed"]
        for change in self.changes:
            sure = change.probability is None or change.probability >= SURE
            chance = "" if sure else f"  (probability {change.probability:.2f})"
            lines.append(f"{change.name}: {change.before} → {change.after}{chance}")
        for name, key, form in ROWS:
            before, after = getattr(self.cost_before, key), getattr(self.cost_after, key)
            if before is not None and after is not None:
                share = f"({after / before - 1:+.1%})" if before else ""
                lines.append(f"{name:<20} {before:>15{form}} → {after:>15{form}}  {share}")
        lines += [] if self.learned is None else [str(self.learned)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
