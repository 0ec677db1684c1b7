"""Fine-tuning of any module, from loaders and from images, with the loop of `natpp train`."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import natpp
from natpp.cli import main
from natpp.data.sets import load_images
from natpp.errors import NatppError, SettingError
from natpp.runs.trainings import Trained
from natpp.training import loop


def stripes(count: int = 48, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.randn(count, 3, 8, 8, generator=generator), torch.arange(count) % 2
    images[labels == 0, :, ::2] += 1.5
    images[labels == 1, :, :, ::2] += 1.5
    return images, labels


def loader(count: int = 48, batch: int = 16, seed: int = 0, *, shuffle: bool = False) -> DataLoader[Any]:
    order = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*stripes(count, seed)), batch, shuffle=shuffle, generator=order)


def model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(8, 2),
    )


def bits(found: Trained) -> bytes:
    return bits_of(found.module)


def bits_of(module: nn.Module) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in module.state_dict().values())


def test_a_copy_learns_from_loaders() -> None:
    given = model().eval()
    before = copy.deepcopy(given.state_dict())
    found = natpp.finetune(
        given, natpp.Task(loader(shuffle=True), loader(32, seed=1)), "tune:epochs=6,learning_rate=0.1"
    )
    assert found.validation_accuracy > 90
    assert found.curve[-1]["loss"] < 0.5 * found.curve[0]["loss"]
    assert [row["epoch"] for row in found.curve] == list(range(1, 7))
    assert "validation accuracy" in str(found)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())
    assert not found.module.training
    assert all(parameter.grad is None for parameter in found.module.parameters())
    again = functional.cross_entropy(found.module(stripes(32, 1)[0]), stripes(32, 1)[1]).item()
    assert found.validation_loss == pytest.approx(again, rel=1e-4)  # judged by what is returned


def test_the_steps_are_those_of_torch() -> None:
    batches = list(loader(40, 16))  # the last batch is smaller
    found = natpp.finetune(
        model(),
        batches,
        "tune:epochs=2,learning_rate=0.1,weight_decay=0.001,clip=0,label_smoothing=0.1",
        run=natpp.Run(device="cpu"),
    )
    other = model()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    for images, labels in batches * 2:
        optimizer.zero_grad()
        functional.cross_entropy(other(images), labels, label_smoothing=0.1).backward()
        optimizer.step()
        schedule.step()
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(found.module.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_the_same_seed_gives_the_same_module() -> None:
    def tuned(seed: int) -> bytes:
        torch.manual_seed(7 * seed)  # chance of the caller does not matter
        return bits(natpp.finetune(model(0.5), loader(), "tune:epochs=1", run=natpp.Run(seed=seed, device="cpu")))

    assert tuned(1) == tuned(1)
    assert tuned(1) != tuned(2)  # dropout


def test_a_result_is_tuned_with_shortcuts_that_come_in() -> None:
    module = natpp.zoo.network("resnet20")
    images = torch.randn(4, 3, 32, 32)
    for seed in range(20):
        result = natpp.optimize(
            module, "nat++:mode=sample", budget="strict", example_input=images, run=natpp.Run(seed=seed)
        )
        if any(change.before == "null" for change in result.changes):
            break
    batches = [(images, torch.tensor([0, 1, 2, 3]))] * 5
    found = natpp.finetune(result, batches, "tune:epochs=1,ema=0.5")
    shares = [tensor for name, tensor in found.module.named_buffers() if name.endswith(".share")]
    assert shares
    assert all(0.01 < share < 0.05 for share in shares)  # the average of what rises to 1 - 0.99 ** 5
    assert not any(share for name, share in result.module.named_buffers() if name.endswith(".share"))


def test_images_by_name_set_some_aside() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
    by_name = natpp.finetune(net, "digits", "tune:epochs=1", run=natpp.Run(seed=3, device="cpu"))
    given = natpp.finetune(net, load_images("digits"), "tune:epochs=1", run=natpp.Run(seed=3, device="cpu"))
    assert bits(by_name) == bits(given)
    assert 0 <= by_name.validation_accuracy <= 100
    none = natpp.finetune(net, "digits", "tune:epochs=1,validation=0", run=natpp.Run(device="cpu"))
    assert none.validation_accuracy is None
    assert not any(name.startswith("validation") for name in none.curve[-1])
    with pytest.raises(SettingError, match="leave val out"):
        natpp.Task(load_images("digits"), loader())


class Both(nn.Module):
    """Two inputs, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"sum": self.first(x) + self.second(y)}


def test_any_inputs_outputs_and_targets_with_a_loss() -> None:
    torch.manual_seed(0)
    pairs = TensorDataset(torch.randn(32, 4), torch.randn(32, 5))
    batches = [((x, y), {"wanted": x[:, :3] + y[:, :3]}) for x, y in DataLoader(pairs, 8)]
    named = [({"x": x, "y": y}, targets) for (x, y), targets in batches]

    def loss(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        return functional.mse_loss(output["sum"], targets["wanted"])

    net = Both()
    found = natpp.finetune(net, natpp.Task(batches, batches, loss=loss), "tune:epochs=20,learning_rate=0.1")
    assert found.validation_loss < 0.1 < found.curve[0]["validation_loss"] * 2
    assert found.validation_accuracy is None
    assert "train_accuracy" not in found.curve[0]
    same = natpp.finetune(net, natpp.Task(named, named, loss=loss), "tune:epochs=20,learning_rate=0.1")
    assert same.validation_loss == pytest.approx(found.validation_loss)


def test_a_teacher_is_followed_where_labels_are_wrong() -> None:
    """Labels without sense, and a teacher that knows: half of what is learned is what the teacher says."""
    teacher = natpp.finetune(
        model(), natpp.Task(loader(shuffle=True), loader(32, seed=1)), "tune:epochs=6,learning_rate=0.1"
    ).module
    before = copy.deepcopy(teacher.state_dict())
    images, _ = stripes()
    wrong = DataLoader(TensorDataset(images, torch.arange(48) // 2 % 2), 16)
    alone, taught = (
        natpp.finetune(model(), natpp.Task(wrong, loader(32, seed=1)), "tune:epochs=6,learning_rate=0.1", teacher=one)
        for one in (None, teacher)
    )
    assert alone.validation_accuracy < 70
    assert taught.validation_accuracy > 85
    assert taught.settings["teacher"] == "Sequential"
    assert teacher.training  # it is asked in eval mode, and left as it was
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_a_teacher_of_any_form() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(32, 3)
    batches = list(zip(inputs.split(8), torch.zeros(32, 1).split(8), strict=True))
    teacher = nn.Linear(3, 1)
    student = nn.Linear(3, 1)
    found = natpp.finetune(
        student,
        natpp.Task(batches, batches, loss=functional.mse_loss),
        "tune:epochs=40,learning_rate=0.2",
        teacher=teacher,
    )
    halfway = (teacher(inputs) / 2).detach()  # between the targets and the teacher
    assert torch.allclose(found.module(inputs), halfway, atol=0.05)


def test_a_task_of_inputs_alone_and_the_agreement_of_a_task() -> None:
    torch.manual_seed(0)
    inputs = list(torch.randn(32, 3).split(8))
    teacher, recipe = nn.Linear(3, 2), "tune:epochs=40,learning_rate=0.2,weight_decay=0"
    with pytest.raises(SettingError, match="give a teacher"):
        natpp.finetune(nn.Linear(3, 2), natpp.Task.inputs(inputs), recipe)
    found = natpp.finetune(nn.Linear(3, 2), natpp.Task.inputs(inputs, inputs), recipe, teacher=teacher)
    assert (found.module(inputs[0]).argmax(1) == teacher(inputs[0]).argmax(1)).all()
    assert (found.settings["teacher"], found.settings["loss"]) == ("Linear", "softened")
    asked = []

    def agreement(output: Tensor, wanted: Tensor) -> Tensor:
        asked.append(wanted)
        return functional.l1_loss(output, wanted)

    batches = [(one, torch.zeros(8, dtype=torch.int64)) for one in inputs]
    task = natpp.Task(batches, agreement=agreement)
    natpp.finetune(nn.Linear(3, 2), task, "tune:epochs=1", teacher=teacher, run=natpp.Run(device="cpu"))
    assert len(asked) == 4


def test_a_teacher_of_another_form_is_refused() -> None:
    images = loader()
    with pytest.raises(SettingError, match=r"teacher's output is float32 \(16, 3\), but the module's is .*\(16, 2\)"):
        natpp.finetune(model(), natpp.Task(images, images), teacher=nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
    with pytest.raises(SettingError, match="the teacher does not run on the inputs"):
        natpp.finetune(model(), natpp.Task(images, images), teacher=nn.Linear(3, 2))
    with pytest.raises(SettingError, match="the teacher is str, expected"):
        natpp.finetune(model(), natpp.Task(images, images), teacher="resnet20")  # type: ignore[arg-type]


def test_frozen_parameters_stay() -> None:
    net = model()
    net[0].weight.requires_grad_(False)
    found = natpp.finetune(net, loader(), "tune:epochs=1,ema=0.5")
    assert torch.equal(found.module[0].weight, net[0].weight)
    assert not torch.equal(found.module[3].weight, net[3].weight)


def test_a_crash_and_resume_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SECONDS_A_LOOK", 0)

    def crash(phase: str, done: int, *_: object) -> None:
        if done == 4:
            raise KeyboardInterrupt

    given = list(loader())  # a loader that shuffles makes another order

    def tuned(name: str, **more: Any) -> Trained:
        run = natpp.Run(out=tmp_path / name, device="cpu", **more)
        return natpp.finetune(model(0.2), natpp.Task(given, given), "tune:epochs=3,learning_rate=0.1", run=run)

    straight = tuned("straight")
    with pytest.raises(KeyboardInterrupt):
        tuned("crashed", watch=crash)
    again = tuned("crashed", resume=True)
    assert bits(again) == bits(straight)
    files = [(tmp_path / name / "module.safetensors").read_bytes() for name in ("straight", "crashed")]
    assert files[0] == files[1]
    kept = json.loads((tmp_path / "straight" / "result.json").read_text())
    assert (kept["seed"], len(kept["curve"]), kept["module"]) == (0, 3, "Sequential")


X, LABELS = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ([], {}, "train is empty"),
        ([(X, LABELS)], {"val": []}, "val is empty"),
        (iter([(X, LABELS)]), {}, "used up after one pass"),
        (3, {}, "expected batches"),
        (X, {}, "expected batches"),
        ([X], {}, r"batch 0 of train is a Tensor of 4, expected a pair"),
        ([(X, X, LABELS)], {}, "tuple of 3, expected a pair"),
        ([(X[:, :2], LABELS)], {}, r"does not run on the inputs of a training batch \(float32 \(4, 2, 8, 8\)\)"),
        ([(X, LABELS.float())], {}, r"targets are float32 \(4,\), expected logits .*give loss="),
        ([(X, LABELS[:2])], {}, r"int64 \(2,\)"),
        ([(X, LABELS + 5)], {}, "targets go from 5 to 6, but there are 2 outputs"),
        ([(X, LABELS)], {"loss": lambda output, targets: output}, "expected a tensor of one number"),
        ([(X, LABELS)], {"loss": lambda output, targets: output["x"]}, "the loss does not take this output"),
        ([(X, LABELS)], {"recipe": "tune:epochs=0"}, "epochs is 0"),
        ([(X, LABELS)], {"recipe": "tune:learning_rate=nan"}, "learning_rate"),
        ([(X, LABELS)], {"recipe": "tuen"}, "Did you mean 'tune'"),
        ("digitz", {}, "digits"),
    ],
)
def test_wrong_input_stops_at_the_door(train: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    def tuned() -> None:
        parts = {name: options[name] for name in ("val", "loss") if name in options}
        task = natpp.Task(train, **parts) if parts else train
        natpp.finetune(model(), task, options.get("recipe", "tune"), run=natpp.Run(out=tmp_path / "run"))

    with pytest.raises(NatppError, match=message):
        tuned()
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
def test_on_a_gpu_steps_are_captured_and_the_module_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    given = list(loader(56, 16))  # the last batch is smaller
    found = natpp.finetune(
        model(0.1),
        natpp.Task(given, loader(32, seed=1)),
        "tune:epochs=8,learning_rate=0.1,ema=0.5",
        run=natpp.Run(device="cuda"),
    )
    assert not caplog.records  # captured
    assert found.validation_accuracy > 90
    assert next(found.module.parameters()).device.type == "cpu"
    assert found.module[0].weight.is_contiguous()
    exact = natpp.finetune(
        model(), given, "tune:epochs=2,learning_rate=0.1", run=natpp.Run(device="cuda", precision="32")
    )
    by_hand = natpp.finetune(model(), given, "tune:epochs=2,learning_rate=0.1", run=natpp.Run(device="cpu"))
    for name, tensor in by_hand.module.state_dict().items():
        torch.testing.assert_close(exact.module.state_dict()[name], tensor, rtol=0.05, atol=0.01)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(SettingError, match="no trainable parameters"):
        natpp.finetune(nn.ReLU(), loader())
    with pytest.raises(NatppError, match=r"expected a torch\.nn\.Module"):
        natpp.finetune("darts", loader())
    with pytest.raises(NatppError, match="the loss in step 0 is not a number"):
        natpp.finetune(model(), [(X * float("nan"), LABELS)], "tune:epochs=1")


def test_what_a_run_kept_is_restored(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 32, 32)
    result = natpp.optimize(natpp.zoo.network("resnet20"), example_input=images, budget={"madds": 0.6})
    task = natpp.Task([(images, torch.tensor([0, 1]))] * 2)
    first = natpp.finetune(result, task, "tune:epochs=1", run=natpp.Run(out=tmp_path / "first"))
    assert bits_of(natpp.restore(tmp_path / "first")) == bits(first)
    second = natpp.finetune(tmp_path / "first", task, "tune:epochs=1", run=natpp.Run(out=tmp_path / "second"))
    restored = natpp.restore(tmp_path / "second")
    assert bits_of(restored) == bits(second) != bits(first)
    assert torch.equal(restored.eval()(images), second.module.eval()(images))
    told = json.loads((tmp_path / "second" / "module" / "architecture.json").read_text())
    assert told["changes"] == [vars(change) for change in result.changes]
    own = natpp.finetune(model(), loader(), "tune:epochs=1", run=natpp.Run(out=tmp_path / "own"))
    assert bits_of(natpp.restore(tmp_path / "own", model())) == bits(own)
    assert bits_of(natpp.restore(own.save(tmp_path / "saved"), model())) == bits(own)
    for given, message in (
        ((), r"pass the model that was fine-tuned, natpp\.restore"),
        (("ft",), r"module is 'ft', expected the original torch\.nn\.Module"),
        ((nn.Linear(2, 3),), "do not fit the module"),
    ):
        with pytest.raises(NatppError, match=message):
            natpp.restore(tmp_path / "own", *given)
    with pytest.raises(SettingError, match="module is 'ft'"):
        natpp.restore(tmp_path / "first", "ft")  # type: ignore[arg-type]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text("from torch import nn\nmake = lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 10))\n")
    out = tmp_path / "run"
    given = ["finetune", f"{file}:make", "--task", "digits", "--epochs", "2", "--out", str(out)]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["recipe"]["epochs"], found["recipe"]["learning_rate"], len(found["curve"])) == (2, 0.02, 2)
    assert main([*given, "--resume", "--teacher", f"{file}:make"]) == 2
    assert "started with teacher null" in capsys.readouterr().err
    assert main([*given, "--resume"]) == 0
    said = capsys.readouterr().out
    assert str(out / "module.safetensors") in said
    assert f"natpp.restore({str(out)!r}, module=original) gives the module" in said
    result = natpp.optimize(natpp.zoo.network("resnet20"), budget="strict", example_input=torch.randn(1, 3, 32, 32))
    tuned = ["finetune", str(result.save(tmp_path / "better")), "--task", "digits", "--epochs=1", "--batch=512"]
    assert main([*tuned, "--out", str(tmp_path / "tuned")]) == 0
    assert f"natpp.restore({str(tmp_path / 'tuned')!r}) gives the module" in capsys.readouterr().out
    assert natpp.restore(tmp_path / "tuned")(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    for model, more, words in (
        ("resnet2", [], "Did you mean 'resnet20'"),
        (str(file), [], "FILE.py:FUNCTION"),
        ("resnet20", ["--recipe", "quik"], "Did you mean 'quick'"),
        (str(result.save(tmp_path / "saved")), ["--epochs", "0"], "epochs is 0"),
    ):
        assert main(["finetune", model, "--task", "digits", "--out", str(tmp_path / "new"), *more]) == 2
        assert words in capsys.readouterr().err
