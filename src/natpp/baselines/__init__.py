"""Methods: each turns input architectures into better ones, by a policy, a fixed map, chance or evolution."""

from natpp.baselines import constant, evolution, nat, random  # noqa: F401 (they register themselves)
