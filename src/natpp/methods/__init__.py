"""Methods: each turns input architectures into better ones, by a policy, a fixed map, random choice or evolution."""

from natpp.methods import constant, evolution, knapsack, policy, random, tuned  # noqa: F401 (importing registers them)
