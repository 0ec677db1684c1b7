"""The plan of the house: imports point one way, and the core needs only the core."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "natpp"
ABOVE = {  # what each room may import, besides itself
    "errors": set(),
    "files": {"errors"},
    "registry": {"errors"},
    "kernels": {"errors"},
    "arch": {"errors", "kernels", "registry"},
    "zoo": {"arch", "errors", "registry"},
    "nets": {"arch", "errors", "files", "kernels", "registry"},
    "report": {"arch", "errors", "files", "registry", ""},
    "data": {"errors", "files"},
    "improve": {"arch", "errors", "files", "nets", "registry", "report", ""},
    "baselines": {"arch", "nets", "registry", "improve"},
    "evaluate": {"data", "arch", "baselines", "errors", "nets", "registry", "improve"},
    "fx": {"arch", "data", "errors", "evaluate", "files", "improve", "nets", "registry", "report", ""},
    "testing": {"arch", "registry", "improve"},
    "policies": {"errors", "nets"},
    "runs": {"arch", "data", "errors", "evaluate", "files", "nets", "registry", "improve", ""},
    "trainings": {"arch", "data", "errors", "evaluate", "files", "improve", "nets", "runs", ""},
    "tunings": {"data", "errors", "evaluate", "files", "fx", "improve", "runs", ""},
    "api": {
        "arch",
        "data",
        "errors",
        "evaluate",
        "fx",
        "nets",
        "trainings",
        "tunings",
        "policies",
        "registry",
        "report",
        "runs",
        "improve",
    },
    "cli": {"api", "arch", "data", "errors", "evaluate", "files", "policies", "registry", "report", "runs", ""},
    "__init__": {"api", "arch", "errors", "fx", "zoo"},
    "__main__": {"cli"},
}


def imported_rooms(file: Path) -> set[str]:
    """Rooms that a file imports, those for type checkers left out."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    rooms = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "natpp":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {_room(alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("natpp.")}
    return rooms


def _room(name: str) -> str:
    return name if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file() else ""


def test_imports_point_one_way() -> None:
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        wrong = imported_rooms(file) - ABOVE[room] - {room}
        assert not wrong, f"{file.relative_to(PACKAGE)} imports {wrong}"


def test_import_natpp_needs_the_core_only_and_leaves_torch_alone() -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "torchvision", "timm", "onnx", "pyarrow", "matplotlib", "tyro"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import natpp
assert natpp.cost("darts").params == 3349342
assert natpp.draw("darts").startswith("<svg")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_script_beside_a_clone_finds_the_package(tmp_path: Path) -> None:
    """A folder named natpp beside the script, such as a clone, does not hide the installed package."""
    (tmp_path / "natpp" / "docs").mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text("import natpp\nassert natpp.zoo.network('resnet20') is not None\n")
    subprocess.run([sys.executable, script.name], cwd=tmp_path, check=True)
