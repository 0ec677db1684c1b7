"""The plan of the house: imports point one way, files stay readable, and the core needs only the core."""

import ast
import functools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import natpp
from natpp import registry

PACKAGE = Path(__file__).parent.parent / "src" / "natpp"
FILES = sorted(PACKAGE.rglob("*.py"))
BELOW = {  # the rooms directly below each; a room may import all that lie further down, too
    "errors": (),
    "files": ("errors",),
    "hints": ("errors",),
    "config": ("hints",),
    "registry": ("config",),
    "seeds": ("errors",),
    "folder": ("files", "registry"),
    "run": ("config",),
    "core": ("files", "registry"),
    "kernels": ("files", "registry"),
    "arch": ("core", "kernels"),
    "zoo": ("arch",),
    "report": ("zoo",),
    "nets": ("arch",),
    "data": ("arch", "seeds"),
    "fx": ("data", "nets"),
    "decisions": ("fx",),
    "subjects": ("decisions",),
    "training": ("data", "nets", "folder", "run"),
    "scorers": ("training", "subjects"),
    "methods": ("scorers", "policies"),
    "policies": ("nets", "folder"),
    "saved": ("subjects", "training", "report"),
    "runs": ("methods", "saved"),
    "testing": ("methods", "saved"),
    "verbs": ("runs",),
    "cli": ("verbs",),
    "__init__": ("verbs",),
    "__main__": ("cli",),
}
LONGEST = 450  # lines of a file

PUBLIC, INTERNAL = 8, 10  # parameters of a function
BANNED = ("by heart", "asked of", "hears ", "what is there")  # phrases that a reader has to decode
NOT_THIS = re.compile(r"(?<!there )\b(is|are) no (?!longer\b|more\b)")  # negate the verb: "is not a file"


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def imports_of(file: Path) -> Iterator[str]:
    """Modules of natpp that a file imports, those for type checkers left out."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "natpp":
            for alias in node.names:
                path = PACKAGE.parent.joinpath(*node.module.split("."), alias.name)
                inner = path.is_dir() or path.with_suffix(".py").is_file()
                yield f"{node.module}.{alias.name}" if inner else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "natpp")


@functools.cache
def allowed(room: str) -> frozenset[str]:
    """The rooms that lie below a room."""
    return frozenset(BELOW[room]).union(*(allowed(one) for one in BELOW[room]))


def test_imports_point_one_way() -> None:
    upwards = set()
    for file in FILES:
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imports_of(file):
            other = module.split(".")[1] if "." in module else ""
            if other and other != room and other not in allowed(room):
                upwards.add((name_of(file), module))
    assert upwards == set()


def test_no_two_files_import_each_other() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for file in FILES:
        found[f"natpp.{name_of(file).removesuffix('.py').replace('/', '.')}"] |= set(imports_of(file))
    mutual = {
        frozenset({one, other}) for one, others in found.items() for other in others if one in found.get(other, ())
    }
    assert not mutual


def test_no_file_is_long() -> None:
    lengths = {name_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def functions_of(file: Path) -> Iterator[ast.FunctionDef]:
    """The functions and methods of a file."""
    return (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))


def test_no_function_takes_many_parameters() -> None:
    found = {}
    for file in FILES:
        if file.parent.name == "kernels":
            continue
        for function in functions_of(file):
            given = function.args
            names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            public = file.name == "verbs.py" and function.name in natpp.__all__
            key = name_of(file), function.name
            if count > (PUBLIC if public else INTERNAL):
                found[key] = max(count, found.get(key, 0))
    assert found == {}


def test_every_registry_is_under_a_contract_test() -> None:
    """Some test is made for each of its entries, so that a new one is tested before it has a test of its own."""
    registries = [name for name, one in vars(registry).items() if isinstance(one, registry.Registry)]
    assert len(registries) > 10
    covered = set()
    for file in Path(__file__).parent.rglob("test_*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        imports = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "natpp.registry")
        names = [alias.name for node in imports for alias in node.names if alias.name in registries]
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.parametrize":
                given = ast.unparse(node.args[1])
                covered |= {name for name in names if re.fullmatch(rf"(list\()?{name}(\.values\(\))?\)?", given)}
    assert sorted(set(registries) - covered) == []


def test_core_and_methods_never_ask_what_they_hold() -> None:
    """A subject answers for itself whether it is made of cells or a module."""
    asked = re.compile(r"isinstance\([^)]*\b(Cells|Module|Architecture|GraphModule)\b")
    files = [file for file in FILES if file.parent.name in ("core", "methods")]
    assert files
    assert [name_of(file) for file in files if asked.search(file.read_text())] == []


def test_sentences_are_plain() -> None:
    found = []
    for file in FILES:
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            if any(phrase in line for phrase in BANNED) or NOT_THIS.search(line):
                found.append(f"{name_of(file)}:{number}: {line.strip()}")
    assert found == []


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
