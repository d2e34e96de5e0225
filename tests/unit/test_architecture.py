"""What the layout promises: pure modules stay pure, no package of ours imports in a circle, and no
class name is in a package twice."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("cachefs", "master", "worker", "connectors")
IMPURE = {
    "aiohttp", "asyncio", "lmdb", "os", "random", "select", "socket", "subprocess", "threading",
    "time",
}  # fmt: skip
CHAIN = 12  # files, the longest chain of imports inside the worker


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Returns the syntax trees of all modules, by their dotted names."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def is_pure(tree: ast.Module) -> bool:
    docstring = ast.get_docstring(tree) or ""
    return any(sentence.startswith("Pure") for sentence in docstring.replace("\n", " ").split(". "))


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields what a module imports when it is imported itself, names of functions among it."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If() | ast.Try() | ast.ClassDef():
                yield from imported(node)


def graph(prefix: str = "") -> dict[str, set[str]]:
    """Returns which of our modules each of our modules imports."""
    edges: dict[str, set[str]] = {}
    for name, tree in modules().items():
        if name.startswith(prefix):
            found = {n if n in modules() else n.rpartition(".")[0] for n in imported(tree)}
            edges[name] = {n for n in found if n in modules() and n.startswith(prefix)} - {name}
    return edges


def test_a_pure_module_imports_no_clock_and_no_shell() -> None:
    pure = {name: tree for name, tree in modules().items() if is_pure(tree)}
    assert len(pure) > 60
    found = {
        name: impure
        for name, tree in pure.items()
        if (impure := {module.partition(".")[0] for module in imported(tree)} & IMPURE)
    }
    assert not found


def test_no_module_is_in_a_circle_of_imports() -> None:
    graphlib.TopologicalSorter(graph()).prepare()


def test_no_package_has_a_class_name_twice() -> None:
    found = collections.defaultdict[str, list[str]](list)
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[f"{name.rpartition('.')[0]}.{node.name}"].append(name)
    assert len(found) > 500
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


CHANGES = {
    "ledger": {"reserve", "take_scratch"},
    "order": {
        "defer", "hit", "hold", "insert", "insert_oldest", "release", "release_due", "remove",
        "set_eviction", "set_owned",
    },
    "charges": {"drop", "promise", "put", "settle"},
    "rules": {"drop", "put"},
}  # fmt: skip


def changes_of_contents(tree: ast.Module) -> Iterator[str]:
    """Yields the changes of a tier's accounts: calls of their methods, assigned fields."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method, value=owner)):
                name = ast.unparse(owner).rpartition(".")[2].lstrip("_")
                if method in CHANGES.get(name, ()):
                    yield f"{name}.{method}"
            case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
                match target:
                    case ast.Attribute(attr=field, value=owner):
                        if ast.unparse(owner).rpartition(".")[2] in CHANGES:
                            yield f"{ast.unparse(owner)}.{field}"


def test_only_the_contents_of_a_tier_change_its_accounts() -> None:
    found = {
        name: [*changes_of_contents(tree)]
        for name, tree in modules().items()
        if name.startswith("worker.")
    }
    assert len(found.pop("worker.tier.contents")) > 15
    assert {name: changes for name, changes in found.items() if changes} == {}


def test_the_longest_chain_of_imports_in_the_worker() -> None:
    edges, length = graph("worker."), dict[str, int]()
    before: dict[str, str] = {}
    for name in graphlib.TopologicalSorter(edges).static_order():
        below = max(edges.get(name, ()), key=lambda one: length[one], default="")
        length[name] = 1 + length.get(below, 0)
        before[name] = below
    last = max(length, key=lambda one: length[one])
    chain = [last]
    while before[chain[-1]]:
        chain.append(before[chain[-1]])
    assert len(chain) <= CHAIN, " imports\n".join(chain)
