"""A new rule: like nat++, but edges are never removed."""

import natpp
from natpp.arch.ops import Op, Place
from natpp.arch.rules import two_level
from natpp.registry import RULES
from natpp.testing import check_rule


def no_drops(source: Op, target: Op, place: Place) -> bool:
    """Whether an operation may become another one at this place."""
    return two_level(source, target, place) and (target.family != "null" or source is target)


RULES.add("no_drops", no_drops)
check_rule("no_drops")  # every operation may stay; none leads outside the search space

result = natpp.optimize("darts", budget={"madds": 0.8}, decisions=natpp.Decisions("no_drops"))
assert all(change.after != "null" for change in result.changes)
print(result)
