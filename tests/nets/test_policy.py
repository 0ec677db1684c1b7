"""The policy: sees its own edge, masks exactly, knows no names, and travels in a file."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import natpp
from natpp.arch.graph import Architecture, Graph
from natpp.arch.networks import setting
from natpp.arch.rules import masks
from natpp.errors import FormatError, SettingError
from natpp.nets.policy import (
    GraphBatch,
    Policy,
    PolicyConfig,
    Transitions,
    collate,
    edge_masks,
    encode,
    load_policy,
    masked_log_softmax,
)
from natpp.registry import OPS, ZOO
from natpp.verbs import samples

FORMS = ("edges", "paper")


def batch_of(archs: list[Architecture], rule: str = "nat++", ops: tuple[str, ...] | None = None) -> GraphBatch:
    encoded = [encode(arch, ops) for arch in archs]
    rows = [edge_masks(masks(arch, rule, setting()), one) for arch, one in zip(archs, encoded, strict=True)]
    return collate(encoded, rows)


def new_policy(form: str = "edges", **options: int) -> Policy:
    torch.manual_seed(0)
    return Policy(PolicyConfig(form=form, **options)).eval()


def test_binary_masked_softmax_by_hand() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, -1.0]], requires_grad=True)
    mask = torch.tensor([[True, False, True, True]])
    log_probs = masked_log_softmax(logits, mask)
    weights = np.exp([1.0, 3.0, -1.0])
    expected = [weights[0] / weights.sum(), 0, weights[1] / weights.sum(), weights[2] / weights.sum()]
    np.testing.assert_allclose(log_probs.exp().detach().numpy()[0], expected, rtol=1e-6)
    assert log_probs.exp()[0, 1] == 0
    entropy = -(log_probs.exp() * log_probs).sum()
    positive = np.array([p for p in expected if p])
    assert entropy.item() == pytest.approx(-(positive * np.log(positive)).sum(), rel=1e-5)
    entropy.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 1] == 0


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 3e38]], requires_grad=True)
    log_probs = masked_log_softmax(logits, torch.tensor([[True, True, False]]))
    (log_probs.exp() * log_probs).sum().backward()
    assert log_probs.exp().tolist() == [[1, 0, 0]]
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("depth", [1, 2, 5, 10])
def test_every_edge_sees_its_own_operation(form: str, depth: int) -> None:
    """The authors' released code fails this: its policy is blind to what it decides about."""
    policy = new_policy(form, depth=depth)
    arch = natpp.sample(nodes=4, seed=1)
    encoded = encode(arch)
    free = [np.ones((len(encoded.ops), len(OPS)), dtype=bool)]
    with torch.no_grad():
        before = policy(collate([encoded], free)).log_probs
        for edge in range(len(encoded.ops)):
            ops = encoded.ops.copy()
            ops[edge] = (ops[edge] + 1) % 13
            after = policy(collate([encoded._replace(ops=ops)], free)).log_probs
            assert not torch.equal(before[edge], after[edge])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_every_edge_sees_where_it_is(form: str, depth: int) -> None:
    """Also in a complete graph, where an adjacency of both directions would tell all edges the same."""
    arch = natpp.load("|nor_conv_3x3~0|+|none~0|nor_conv_1x1~1|+|skip_connect~0|avg_pool_3x3~1|nor_conv_3x3~2|")
    encoded = encode(arch)
    free = [np.ones((len(encoded.ops), len(OPS)), dtype=bool)]
    with torch.no_grad():
        found = new_policy(form, depth=depth)(collate([encoded], free)).log_probs
    assert all(not torch.allclose(found[i], found[j]) for i in range(6) for j in range(i))


@pytest.mark.parametrize("form", FORMS)
def test_masked_transitions_have_probability_zero(form: str) -> None:
    archs = [entry.arch for entry in ZOO.values()] + samples(20, nodes=5)
    batch = batch_of(archs)
    transitions = new_policy(form)(batch)
    assert (transitions.probs[~batch.mask] == 0).all()
    torch.testing.assert_close(transitions.probs.sum(dim=-1), torch.ones(len(batch.ops)))
    assert batch.mask[torch.arange(len(batch.ops)), transitions.greedy()].all()
    drawn = transitions.sample(50, torch.Generator().manual_seed(0))
    assert batch.mask[torch.arange(len(batch.ops)), drawn].all()


@pytest.mark.parametrize("form", FORMS)
def test_architectures_of_a_batch_do_not_touch_each_other(form: str) -> None:
    archs = [natpp.sample(nodes=nodes, seed=nodes) for nodes in (2, 4, 7)] + [natpp.load("|none~0|+|none~0|none~1|")]
    policy = new_policy(form)
    together = policy(batch_of(archs))
    alone = [policy(batch_of([arch])) for arch in archs]
    torch.testing.assert_close(together.log_probs, torch.cat([one.log_probs for one in alone]))
    torch.testing.assert_close(together.entropy(), torch.cat([one.entropy() for one in alone]))


@pytest.mark.parametrize("form", FORMS)
def test_names_and_order_do_not_matter(form: str) -> None:
    """Renaming nodes and swapping the edges of a node permutes the probabilities and changes nothing else."""
    a, b, c, d = ("conv_3x3", 0), ("null", 1), ("sep_conv_3x3", 1), ("max_pool_3x3", 0)
    first = [[a, b], [c, d], [("conv_5x5", 2), ("null", 3)]]
    second = [[d, c], [a, b], [("null", 2), ("conv_5x5", 3)]]
    policy = new_policy(form)
    found = []
    for nodes in (first, second):
        arch = Architecture(Graph.from_inputs(nodes, [2, 3, 4]))
        assert arch.isomorphic(Architecture(Graph.from_inputs(first, [2, 3, 4])))
        found.append(policy(batch_of([arch])).probs.detach())
    permutation = [2, 3, 1, 0, 5, 4]
    torch.testing.assert_close(found[0], found[1][permutation])


def test_the_kind_of_cell_matters() -> None:
    graph = natpp.load("darts").normal
    transitions = new_policy()(batch_of([Architecture(graph, graph)]))
    assert not torch.allclose(transitions.log_probs[:8], transitions.log_probs[8:])


def test_a_chain_is_one_node() -> None:
    encoded = encode(natpp.load("|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"))
    assert encoded.sources.tolist() == [1, 1, 2, 1, 2, 3]
    assert encoded.targets.tolist() == [2, 3, 3, 4, 4, 4]
    assert encoded.nodes[:, 1].tolist() == [0, 1, 2, 2, 2]


def test_log_prob_and_entropy_by_hand() -> None:
    batch = batch_of([natpp.sample(seed=1), natpp.sample(seed=2)])
    transitions = new_policy()(batch)
    choices = transitions.sample(3, torch.Generator().manual_seed(0))
    assert choices.shape == (3, 32)
    probs = transitions.probs.detach().double()
    by_hand = [[probs[range(a, a + 16), row[a : a + 16]].log().sum().item() for a in (0, 16)] for row in choices]
    np.testing.assert_allclose(transitions.log_prob(choices).detach().numpy(), by_hand, rtol=1e-4)
    plogp = torch.where(probs > 0, probs * probs.clamp_min(1e-300).log(), 0.0)
    expected = -torch.stack([plogp[:16].sum(), plogp[16:].sum()])
    torch.testing.assert_close(transitions.entropy().double(), expected, rtol=1e-4, atol=1e-4)
    assert transitions.probabilities(choices)[1, 5] == pytest.approx(probs[5, choices[1, 5]].item())


def test_samples_follow_the_probabilities() -> None:
    batch = batch_of([natpp.sample(seed=3)])
    transitions = Transitions(batch, new_policy()(batch).log_probs.detach())
    drawn = transitions.sample(20_000, torch.Generator().manual_seed(0))
    for edge, op in itertools.product(range(16), range(len(OPS))):
        share = (drawn[:, edge] == op).float().mean().item()
        assert share == pytest.approx(transitions.probs[edge, op].item(), abs=0.02)


def test_a_policy_file_carries_its_operations(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ops = ("conv_3x3", "skip_connect", "null")
    policy = Policy(PolicyConfig(depth=3, width=8), ops).eval()
    policy.save(tmp_path / "policy.safetensors", {"trained on": "nothing"})
    again, notes = load_policy(tmp_path / "policy.safetensors")
    assert (again.ops, again.config, notes) == (ops, policy.config, {"trained on": "nothing"})
    arch = Architecture(Graph.from_inputs([[("conv_3x3", 1), ("null", 0)]], [2]))
    encoded = encode(arch, ops)
    batch = collate([encoded], [np.ones((2, 3), dtype=bool)])
    assert torch.equal(again(batch).log_probs, policy(batch).log_probs)
    with pytest.raises(FormatError, match="does not know the operation sep_conv_3x3"):
        encode(natpp.load("darts"), ops)


def test_damaged_policy_files_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "policy.safetensors"
    with pytest.raises(FormatError, match="cannot read the policy"):
        Policy.load(file)
    file.write_bytes(b"no policy")
    with pytest.raises(FormatError, match="damaged"):
        Policy.load(file)
    new_policy().save(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="damaged"):
        Policy.load(file)
    save_file({"a": torch.zeros(1)}, file)
    with pytest.raises(FormatError, match="not those of a natpp policy"):
        Policy.load(file)
    broken = new_policy()
    broken.op.weight.data[0, 0] = float("nan")
    broken.save(file)
    with pytest.raises(FormatError, match="a weight is not a number"):
        Policy.load(file)
    save_file({"a": torch.zeros(1)}, file, {"natpp": json.dumps({"natpp": "policy", "config": {}, "ops": ["null"]})})
    with pytest.raises(FormatError, match="damaged"):
        Policy.load(file)


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(SettingError, match="unknown form 'gat'"):
        PolicyConfig(form="gat")
    with pytest.raises(SettingError, match="from 1 up"):
        PolicyConfig(depth=0)
    with pytest.raises(SettingError, match="distinct names"):
        Policy(ops=["null", "null"])
