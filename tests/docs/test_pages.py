"""README and docs hold what they promise: their commands print what they show, their figures are those measured."""

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

import natpp
from experiments import __main__ as experiments
from experiments import page as results_page
from experiments import pictures
from experiments.pages.words import gathered, measured
from natpp.arch.ops import PAPER_OPS
from natpp.cli import VERBS, main
from natpp.cli.flags import flag_names
from natpp.config import fields_of
from natpp.data.images import Images
from natpp.registry import NETWORKS, RECIPES
from natpp.training.recipe import Recipe, ShortConfig
from natpp.training.scratch import make_setting
from natpp.training.task import Task

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
RESULTS = ROOT / "experiments" / "results"
NASBENCH201 = "|nor_conv_3x3~0|+|skip_connect~0|none~1|+|none~0|none~1|nor_conv_3x3~2|"
BLOCK = re.compile(r"(?:<!-- (?P<how>small|not run): (?P<what>.*?) -->\n)?```console\n(?P<lines>.*?)```", re.DOTALL)


class Command(NamedTuple):
    """A command of a page, with what the page says it prints."""

    given: str
    shown: list[str]
    less: str  # flags that make it small
    left_out: str  # why it is not run


def commands(page: Path) -> Iterator[Command]:
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        how, what = block["how"], block["what"] or ""
        for part in re.split(r"^\$ ", block["lines"], flags=re.MULTILINE)[1:]:
            given, *shown = part.splitlines()
            long = how == "small" and given.startswith(("natpp search", "natpp train"))
            yield Command(given, shown, what if long else "", what if how == "not run" else "")


def run(given: str) -> None:
    """A command of a page in this process, printing what it prints."""
    words = shlex.split(given)
    match words:
        case ["natpp", *arguments]:
            main(arguments)
        case ["make", target]:  # what it makes once .venv is there
            recipe = re.search(rf"^{target}: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
            assert recipe
            for line in recipe[1].replace("$(NATPP)", "natpp").splitlines():
                run(line.strip("\t@"))
        case ["echo", text]:
            print(text)
        case ["mkdir", "-p", folder]:
            Path(folder).mkdir(parents=True, exist_ok=True)
        case ["ls", pattern]:
            print(*sorted(str(path) for path in Path().glob(pattern)), sep="\n")
        case [".", _]:  # only makes the command known
            pass
        case _:
            raise AssertionError(f"a command that the test does not know: {given}")


def plain(lines: list[str]) -> str:
    """Lines with single spaces, without empty ones."""
    kept = (" ".join(line.split()) for line in lines)
    return "".join(f"{line}\n" for line in kept if line)


def as_pattern(shown: list[str]) -> str:
    """What is shown as a regular expression: … is any number of lines, or the rest of one."""
    parts = [r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in shown]
    return "".join(parts)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/index.md", "docs/training.md"])
def test_commands_print_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(commands(ROOT / page))
    assert found
    for command in found:
        if command.left_out:
            continue
        run(f"{command.given} {command.less}")
        captured = capsys.readouterr()
        printed = plain((captured.err + captured.out).splitlines())  # progress comes first
        shown = plain(command.shown).splitlines()
        assert re.fullmatch(as_pattern(shown), printed), f"{command.given} printed\n{printed}"


def test_what_is_shown_is_compared() -> None:
    assert re.fullmatch(as_pattern(["a", "…", "c 1 …"]), plain(["a", "", "b", "c   1 2"]))
    for printed in (["a", "b", "c 2"], ["a", "c 1", "d"], ["b", "c 1 2"], []):
        assert not re.fullmatch(as_pattern(["a", "…", "c 1 …"]), plain(printed))


def test_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102
    assert "multiply-adds" in capsys.readouterr().out


def test_python_of_the_page_about_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = natpp.Run(out="run")  # by a command on the page
    natpp.train("darts", "digits", "quick:epochs=1,channels=4,cells=3", run=run)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "training.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    exec(compile("\n".join(blocks), "training.md", "exec"), {})  # noqa: S102


SMALL_FORM = {"224": "16", "0.01,": "1e-6,", "epochs=10": "epochs=1", "--epochs 10": "--epochs 1"}


def test_the_page_about_a_trained_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a small network in place of torchvision's, and small images."""
    torch.manual_seed(0)
    make = lambda weights: nn.Sequential(  # noqa: E731
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)),
    )
    models = SimpleNamespace(resnet18=make, ResNet18_Weights=SimpleNamespace(DEFAULT="those"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for folder in ("photos", *(f"images/{part}/{name}" for part in ("train", "val") for name in ("cat", "dog"))):
        Path(folder).mkdir(parents=True)
        for number in range(16):
            Image.fromarray(generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(f"{folder}/{number}.png")
    text = (DOCS / "smaller.md").read_text(encoding="utf-8")
    for whole, small in SMALL_FORM.items():
        assert whole in text
        text = text.replace(whole, small)
    batches = [(torch.randn(8, 3, 16, 16), torch.arange(8) % 2) for _ in range(2)]
    known = {"train_loader": batches, "val_loader": batches}
    blocks = re.findall(r"(?:<!-- file: (\S+) -->\n)?```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 5
    for file, block in blocks:
        if file:
            Path(file).write_text(block)
        else:
            exec(compile(block, "smaller.md", "exec"), known)  # noqa: S102
    assert Path("report.html").is_file()
    assert Path("smaller.onnx").stat().st_size > 0
    Path("page.md").write_text(text)
    found = list(commands(Path("page.md")))
    assert [shlex.split(one.given)[1] for one in found] == ["optimize", "evaluate", "finetune", "export"]
    for command in found:
        run(command.given)
    assert "multiply-adds" in capsys.readouterr().out


def test_the_table_of_recipes_is_that_of_the_code() -> None:
    text = (DOCS / "training.md").read_text(encoding="utf-8")
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text[text.index("| setting |") :].split("\n\n")[0].splitlines()
    )
    assert head == ["setting", *(f"`{name}`" for name in RECIPES), "flag"]
    words = {"auto": None, "yes": True, "no": False}
    for place, name in enumerate(RECIPES, start=1):
        told = {row[0].split("`")[1]: row[place] for row in rows}
        for setting, value in asdict(RECIPES[name]).items():
            said = told.pop(setting)
            read = words[said] if said in words else float(said) if said[0].isdigit() else said
            assert read == value, (name, setting)
        assert not told
    flags = flag_names(VERBS["train"])
    settings = {row[0].split("`")[1] for row in rows if row[-1]}
    assert settings == {name for name in fields_of(Recipe) if name.replace("_", "-") in flags}
    assert [row[-1] for row in rows if row[-1]] == [
        f"`--{row[0].split('`')[1].replace('_', '-')}`" for row in rows if row[-1]
    ]
    assert [flag for flag in flags if f"--{flag}" not in text] == []


@pytest.mark.parametrize(
    ("arch", "size", "expected"),
    [
        ("darts", 24, ("cifar", 16, 8, 16)),
        ("darts", 23, ("cifar", 8, 3, 0)),
        (NASBENCH201, 24, ("nasbench201", 16, 2, 16)),
        (NASBENCH201, 23, ("nasbench201", 8, 1, 0)),
    ],
)
def test_what_is_auto_in_a_recipe_is_what_the_page_says(
    arch: str, size: int, expected: tuple[str, int, int, int]
) -> None:
    pixels, labels = np.zeros((8, 3, size, size), dtype=np.uint8), np.arange(8) % 2
    images = Task(Images("grey", 2, pixels, labels, pixels, labels)).batches("cpu", RECIPES["quick"], validation=0)
    where = make_setting(natpp.load(arch), RECIPES["quick"], images)
    assert (where.network, where.channels, where.cells, images.augment.cutout) == expected
    text = " ".join((DOCS / "training.md").read_text(encoding="utf-8").split())
    assert "from 24 pixels up get 16 channels, 8 cells (`nasbench201`: 2 a stage) and a cutout of 16" in text
    assert "smaller ones get 8 channels, 3 cells (1 a stage) and no cutout" in text


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 130
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_table_of_the_readme_is_up_to_date() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert results_page.readme(text) == text


def test_the_table_of_the_readme_follows_the_results(tmp_path: Path) -> None:
    found = json.loads((RESULTS / "images_nasbench201.json").read_text())
    found |= {"share_of_oracle": {"mean": 0.123, "sd": 0.0}, "seconds": {"mean": 45.6, "sd": 0.0}}
    (tmp_path / "images_nasbench201.json").write_text(json.dumps(found))
    table = results_page.summary(tmp_path)
    assert "**0.123** in 46 s" in table
    assert "ResNet-20" not in table  # there are no results of it


def test_pictures_are_up_to_date() -> None:
    for name, draw in pictures.PICTURES.items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == draw(), name


def test_figures_of_the_differences_are_those_measured() -> None:
    text = " ".join((DOCS / "differences.md").read_text(encoding="utf-8").split())
    table, truth, resnet = (
        json.loads((RESULTS / f"{name}.json").read_text())
        for name in ("nasbench201", "images_nasbench201", "resnet20_digits")
    )
    true, strict = (table[name]["found"] for name in ("val_200", "val_200, strict budget"))
    expected = [
        f"natpp {true['methods']['nat++']['share_of_oracle']:.3f}",
        f"the paper's settings {table['val_200, preset paper']['found']['methods']['nat++']['share_of_oracle']:.3f}",
        f"natpp reaches {true['methods']['nat++']['one_shot']['mean']:.2f} with"
        f" {true['methods']['nat++']['madds_change']:.0%}".replace("%", " %"),
        f"the strict budget {strict['methods']['nat++']['one_shot']['mean']:.2f} with"
        f" {-strict['methods']['nat++']['madds_change']:.0%}".replace("%", " %"),
        f"The best possible there is {strict['oracle_by_reward']:.2f}",
        measured(table["val_200, 30 evaluations"]["found"]["methods"]["nat++"]["one_shot"], 2),
        f"{measured(truth['seconds'], 0)} s",
        *(
            measured(truth[name], 3)
            for name in (
                "direct_spearman",
                "direct_spearman_val_12",
                "spearman",
                "within_equal_madds",
                "share_of_oracle",
            )
        ),
        measured(truth["rivals"]["live MAdds"]["share_of_oracle"], 3),
        *(
            measured(gathered([run["test_accuracy"] for run in resnet["pieces"][name]]), 2)
            for name in ("original", "learned", "scratch", "long")
        ),
        *(
            measured(gathered([run["spearman"][name] for run in resnet["pieces"]["agreement"]]), 2)
            for name in ("short", "supernet")
        ),
    ]
    assert [one for one in expected if one not in text] == []


def test_figures_of_the_page_about_training_are_those_measured() -> None:
    text = " ".join((DOCS / "training.md").read_text(encoding="utf-8").split())
    newest = sorted((ROOT / "benchmarks" / "results").glob("*-training.json"))[-1]
    quick, speed = (json.loads(file.read_text()) for file in (RESULTS / "quick_cifar10.json", newest))
    darts, cell = quick["darts"], quick["a ResNet-like cell of NAS-Bench-201"]
    usual, large = speed["train"]
    hours = 600 * 50_000 / usual["natpp_images_per_second"] / 3600
    expected = [
        f"DARTS reached {darts['test_accuracy']:.2f} % test accuracy in {darts['seconds']:.0f} s",
        f"({cell['network']['cells']} cells a stage) {cell['test_accuracy']:.2f} % in {cell['seconds']:.0f} s",
        f"{usual['natpp_images_per_second']:,.0f} images a second with batches of {usual['batch']}",
        f"{usual['ratio']:.2f} times as many as a plain loop",
        f"{large['natpp_images_per_second']:,.0f} with batches of {large['batch']}, {large['ratio']:.2f} times as many",
        f"about {['no', 'one', 'two', 'three', 'four'][round(hours)]} hours",
    ]
    assert [one for one in expected if one not in text] == []
    for one in (darts, cell):  # the first epoch took about half of it
        assert 0.4 < one["curve"][0]["seconds"] / one["seconds"] < 0.6


def test_figures_of_searches_are_those_measured() -> None:
    truth = json.loads((RESULTS / "images_nasbench201.json").read_text())

    runs = truth["runs"]["seed"]
    (together,) = {run["settings"]["schedule"]["together"] for run in runs}
    training = [run["phases"]["training"] / run["evaluations"] for run in runs]
    scoring = [
        sum(run["phases"][one] for one in ("training", "capture", "judging")) / run["evaluations"] for run in runs
    ]
    (trained,) = {f"{value:.1f}" for value in training}
    for page, expected in {
        "own_data": [
            f"{truth['evaluations']['mean']:.0f} short training runs, {together} of them side by side",
            f"{measured(truth['seconds'], 0)} s on one NVIDIA H200",
            f"in one CUDA graph: {ShortConfig().together}, or",
        ],
        "search": [
            f"{measured(truth['direct_spearman'], 3)} with `test_200` (three seeds; {trained} seconds each",
            f"with {together} side by side, {min(scoring):.1f} to {max(scoring):.1f} with capturing and judging",
        ],
    }.items():
        text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
        assert [one for one in expected if one not in text] == []
    assert len(runs) == 3


def test_what_the_readme_says_of_trained_answers_was_measured() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    learned, worth, table = (
        json.loads((RESULTS / f"{name}.json").read_text())
        for name in ("ship_policies", "judge_policies", "table_random")
    )
    learned, other = learned["cifar10"], learned["cifar10_accurate"]
    one = worth["rounds"][str(learned["round"])]
    over, ours, fixed = one["methods"]["nat++"]["over_input"], one["methods"]["nat++"], one["methods"]["constant"]
    changes = [kinds["ours"]["change"] for kinds in one["harm"].values()]
    expected = [
        f"from {learned['cheap_scores']} short and {learned['dear_scores']} longer training runs",
        f"{over['value']:.2f} points of validation accuracy (95 % CI {over['low']:.2f} to {over['high']:.2f})",
        f"with {-ours['live_madds_change']:.0%} fewer multiply-adds".replace("%", " %"),
        f"did equally well with {-fixed['live_madds_change']:.0%} fewer".replace("%", " %"),
        f"Four published cells changed by {min(changes):.2f} to {max(changes):+.2f} points",
    ]
    (tested,) = (some for some in table["rounds"].values() if some["policies"] == other["round"])
    gained, saved = tested["methods"]["nat++"]["over_input"], -tested["methods"]["nat++"]["live_madds_change"]
    over = f"{gained['value']:.2f} points of test accuracy (95 % CI {gained['low']:.2f} to {gained['high']:.2f})"
    mapped = tested["methods"]["constant"]["over_input"]["value"]

    def difference(found: dict[str, float]) -> str:
        return f"(difference {found['value']:.2f}, {found['low']:.2f} to {found['high']:.2f})"

    expected.append(
        f"twenty new random cells gained {over} with {100 * saved:.0f} % fewer multiply-adds; a fixed map"
        f" gained {mapped:.2f} points {difference(tested['differences']['`nat++` over `constant`'])}"
    )
    same, default = tested["default"], "nat++ by cifar10"
    gains = {name: f"{of['over_input']['value']:.2f}" for name, of in same["methods"].items() if name != "input"}
    saved = {name: f"{-100 * of['live_madds_change']:.0f} %" for name, of in same["methods"].items()}
    over, between = (same["differences"][f"`{default}` over {one}"] for one in ("the inputs", "`nat++`"))
    expected.append(
        f"Head to head on twelve of the twenty cells, one seed: `cifar10` gained {gains[default]} points with"
        f" {saved[default]} fewer multiply-adds, `cifar10_accurate` {gains['nat++']} with {saved['nat++']}"
        f" {difference(between)}, the map {gains['constant']} with {saved['constant']}."
    )
    assert (same["inputs"], same["asked"], same["seeds"]) == (12, 20, [0])
    told = (
        f"{gains[default]} points over the inputs (95 % CI {over['low']:.2f} to {over['high']:.2f}) with"
        f" {saved[default]} fewer multiply-adds, `cifar10_accurate` on the same cells {gains['nat++']} with"
        f" {saved['nat++']}, the difference {between['value']:.2f} (−{-between['low']:.2f} to {between['high']:.2f})."
    )
    assert told in " ".join((DOCS / "policy.md").read_text(encoding="utf-8").split())
    published = list(json.loads((RESULTS / "table_cells.json").read_text())["rounds"].values())[-1]["cells"].values()
    others = [kinds["ours, `nat++`"]["change"] for kinds in published]
    expected.append(
        f"Four published cells, which were part of its training data, changed by {min(others):.2f} to"
        f" {max(others):+.2f}."
    )
    assert [one for one in expected if one not in text] == []
    assert (one["inputs"], len(changes), tested["inputs"], len(others)) == (12, 4, 20, 4)
    spread = max(kinds[kind]["accuracy"]["sd"] for kinds in one["harm"].values() for kind in ("input", "ours"))
    assert spread > max(map(abs, changes))  # of seeds
    between = one["differences"]["`nat++` over `constant`"]
    assert between["low"] < 0 < between["high"]  # as good


def test_every_experiment_can_be_reproduced_and_links_to_its_results() -> None:
    text = (DOCS / "reproduce.md").read_text(encoding="utf-8")
    name_of = r"^\| `(?:python -m experiments |benchmarks/)(\w+).*$"
    rows = {match[1]: match[0] for match in re.finditer(name_of, text, flags=re.MULTILINE)}
    for file in RESULTS.glob("*.json"):
        name = file.stem.removesuffix("_digits")
        pages = "](results.md#", "](nasbench201.md)", "](smaller.md#", "](modules.md#"
        assert any(page in rows[name] for page in pages), name
    for name in ("training", "separable"):
        assert "](results.md#" in rows[name], name
    assert set(rows) == {*experiments.files(), "training", "separable"}


@pytest.fixture
def hooks() -> SimpleNamespace:
    """What mkdocs calls while it builds the site."""
    return SimpleNamespace(**runpy.run_path(str(DOCS / "hooks.py")))


def test_examples_on_pages_are_those_in_their_files(hooks: SimpleNamespace) -> None:
    found = set()
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert hooks.with_examples(text) == text, f"{page.name}: python docs/hooks.py writes it anew"
        found |= {match[2] for match in hooks.EXAMPLE.finditer(text)}
    assert found >= {f"examples/add_{what}.py" for what in ("op", "rule", "method", "scorer")}
    stale = "<!-- examples/add_op.py -->\n```python\nold\n```\n"
    assert "OPS.add(" in hooks.with_examples(stale)


def test_every_command_is_in_the_reference(hooks: SimpleNamespace) -> None:
    page = hooks.on_page_markdown((DOCS / "commands.md").read_text(encoding="utf-8"))
    for verb in VERBS:
        assert f"\n## natpp {verb}\n\n```text\nusage: natpp {verb} " in page
    assert "--budget strict|rule|madds=0.6,…" in page
    assert "\x1b" not in page
    assert hooks.on_page_markdown("as it is") == "as it is"


def test_every_page_is_in_the_nav() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = set(re.findall(r"[\w/]+\.md", json.dumps(nav)))
    assert named == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_the_docs_name_every_flag_of_a_search() -> None:
    text = (DOCS / "search.md").read_text(encoding="utf-8")
    for flag in ("scorer", "evaluations", "minutes", "price", "arch", "nodes", "extras", "preset", "resume", "task"):
        assert f"--{flag}" in text
    for name in ("config.json", "metrics.jsonl", "checkpoint.pt", "policy.safetensors", "scores.jsonl"):
        assert f"`{name}`" in text


def test_the_docs_name_every_network_and_the_defaults() -> None:
    text = (DOCS / "foundation.md").read_text(encoding="utf-8")
    for name, skeleton in NETWORKS.items():
        default = skeleton.default
        assert f"| `{name}` | {default.channels} channels, {default.cells} cells" in text
    assert len(PAPER_OPS) == 13  # "the thirteen of the paper and extras"
