"""A fingerprint of the code that a step can reach, for Snakemake's rules and for the artifacts' provenance.

Snakemake sees a shell command, not the functions behind it. Each rule therefore carries, as a param, the hash of every
definition in this package that its command can reach by name, without comments, docstrings and annotations of
functions, and of a table (FAMILIES, OPS, ...) only the rows that it uses:

    cli.statistics -> statistics.layer_statistics -> statistics.wasserstein_to_normal -> ...

What is reached is never too little but may be too much: a method brings its whole class, a module passed around as an
object brings all of it. Imports nothing but the standard library.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent


class _Module:
    """One source file: what it defines, what it imports, and what it does besides when imported."""

    def __init__(self, path: Path, package: str):
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, tuple[str, str | None]] = {}
        self.effects: list[ast.stmt] = []
        tree = _Bare().visit(ast.parse(path.read_text(encoding="utf-8")))
        for node in tree.body:
            names = list(_defined(node))
            for name in names:
                self.definitions.setdefault(name, []).append(node)
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports |= _imports(node, package)
            elif not names:
                self.effects.append(node)


class _Bare(ast.NodeTransformer):
    """Takes away what cannot change a result: docstrings, and the annotations of functions and local variables."""

    def __init__(self):
        self.in_function = False

    def visit_Module(self, node):
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    visit_ClassDef = visit_Module  # noqa: N815

    def visit_FunctionDef(self, node):
        node.body = _without_docstring(node.body) or [ast.Pass()]
        node.returns = None
        outside, self.in_function = self.in_function, True
        self.generic_visit(node)
        self.in_function = outside
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_AnnAssign(self, node):
        if not self.in_function or node.value is None:
            return self.generic_visit(node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a top-level statement binds, imports aside."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for part in (n for target in targets for n in ast.walk(target)):
            if isinstance(part, ast.Name):
                yield part.id


def _imports(node: ast.Import | ast.ImportFrom, package: str) -> dict[str, tuple[str, str | None]]:
    """Local name -> (module of this package, name in it or None for the module itself)."""
    if isinstance(node, ast.Import):
        return {
            alias.asname: (alias.name.removeprefix(f"{package}."), None)
            for alias in node.names
            if alias.asname and alias.name.startswith(f"{package}.")
        }
    if node.module == package:
        return {alias.asname or alias.name: (alias.name, None) for alias in node.names}
    if node.module and node.module.startswith(f"{package}."):
        module = node.module.removeprefix(f"{package}.")
        return {alias.asname or alias.name: (module, alias.name) for alias in node.names}
    return {}


@cache
def _modules(package: Path) -> dict[str, _Module]:
    return {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): _Module(path, package.name)
        for path in sorted(package.rglob("*.py"))
    }


def _references(node: ast.AST, local: frozenset[str] = frozenset()) -> Iterator[tuple[str, str | None]]:
    """(name, attribute or None) for each name that is read in a definition and is not its own parameter or variable."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id not in local:
            yield node.value.id, node.attr
        return
    if isinstance(node, ast.Name):
        if node.id not in local:
            yield node.id, None
        return
    inner = local
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        inner = local | _locals(node)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        inner = local | {n for generator in node.generators for n in _stored(generator.target)}
        # what the first loop runs over is read outside
        yield from _references(node.generators[0].iter, local)
    for child in ast.iter_child_nodes(node):
        yield from _references(child, inner)


def _stored(node: ast.AST) -> Iterator[str]:
    """The names that are assigned in a node, not counting those of functions inside it."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
        elif not isinstance(child, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            yield from _stored(child)


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """A function's parameters and variables; what it imports is not among them."""
    arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    declared = {n for node in ast.walk(function) if isinstance(node, ast.Global) for n in node.names}
    return arguments | set(_stored(function)) - declared


def _rows(node: ast.stmt, rows: Sequence[str]) -> ast.AST:
    """Of a table, a dict of constant keys, just the named rows."""
    table = node.value
    if not isinstance(table, ast.Dict):
        raise TypeError(f"line {node.lineno}: a table must be written as a dict to be taken apart by rows")
    kept = [
        (k, v) for k, v in zip(table.keys, table.values, strict=True) if isinstance(k, ast.Constant) and k.value in rows
    ]
    return ast.Dict([k for k, _ in kept], [v for _, v in kept])


def reached(
    entry: str, tables: Mapping[str, Sequence[str]] | None = None, package: Path = PACKAGE
) -> dict[str, list[str]]:
    """The definitions that a step can reach, as 'module.name' -> syntax trees as text.

    Args:
        entry: 'module.function', where the step begins; its decorators and defaults (help texts) do not count.
        tables: table name -> the rows that the step uses; a table that is not named counts whole.
        package: the package's folder.

    Raises:
        KeyError: there is no such entry.
    """
    modules, tables = _modules(package), tables or {}
    found: dict[str, list[str]] = {}
    waiting = [tuple(entry.rsplit(".", 1))]
    if waiting[0][0] not in modules or waiting[0][1] not in modules[waiting[0][0]].definitions:
        raise KeyError(f"no step {entry!r} in {package}")
    while waiting:
        where, name = waiting.pop()
        key, module = f"{where}.{name}", modules[where]
        if key in found:
            continue
        found[key] = []
        nodes = module.effects if name == "" else module.definitions[name]
        if name:
            waiting.append((where, ""))
        for node in nodes:
            if key == entry:
                node = ast.FunctionDef(node.name, _nameless(node.args), node.body, [])
            elif name in tables:
                node = _rows(node, tables[name])
            found[key].append(_text(node))
            imports = dict(module.imports)
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    imports |= _imports(inner, package.name)
            for base, attribute in _references(node):
                waiting += _targets(modules, where, imports, base, attribute)
    return found


def _nameless(arguments: ast.arguments) -> ast.arguments:
    """The same parameters without their defaults."""
    return ast.arguments(arguments.posonlyargs, arguments.args, arguments.vararg, arguments.kwonlyargs,
                         [None] * len(arguments.kwonlyargs), arguments.kwarg, [])  # fmt: skip


def _text(node) -> str:
    """A syntax tree as text, the same on every Python: ast.dump and, for f-strings, ast.unparse are not."""
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [f"{name}={_text(value)}" for name, value in ast.iter_fields(node) if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(fields)})"


def _targets(modules, where, imports, base, attribute) -> list[tuple[str, str]]:
    """What a reference leads to in this package: one definition, a whole module, or nothing."""
    if base in modules[where].definitions:
        return [(where, base)]
    if base not in imports:
        return []
    module, name = imports[base]
    if name is not None and f"{module}.{name}" in modules:
        module, name = f"{module}.{name}", None
    if module not in modules:
        return []
    name = name if name is not None else attribute
    if name is None:
        return [(module, n) for n in modules[module].definitions]
    if name in modules[module].definitions:
        return [(module, name)]
    return _targets(modules, module, modules[module].imports, name, None) if name in modules[module].imports else []


def fingerprint(step: str, package: Path = PACKAGE, **tables: Sequence[str]) -> str:
    """The fingerprint of a command of the command line, 16 hexadecimal digits.

    Args:
        step: the command's function in cli.py.
        tables: the rows used, by table: `fingerprint("evaluate", FAMILIES=["llama"])`.
        package: the package's folder.

    Raises:
        KeyError: there is no such step, or it does not reach a table that is named.
    """
    found = reached(f"cli.{step}", tables, package)
    if unused := set(tables) - {key.rpartition(".")[2] for key in found}:
        raise KeyError(f"step {step!r} does not reach {', '.join(sorted(unused))}")
    text = "\n".join(f"{key}\n{source}" for key in sorted(found) for source in found[key])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
