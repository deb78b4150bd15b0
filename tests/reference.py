"""Write the pages of `docs/reference` anew, from the docstrings and signatures of the source:

    python -m tests.reference

A page names its subjects in comments, such as `<!-- holdfast.Agent -->`. The text after a comment
is that of the subject; the text before the first one is kept. To add a subject, add its comment.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tests.paths import REPO

PAGES = REPO / "docs" / "reference"
SUBJECT = re.compile(r"^(?:<!-- (holdfast[\w.]*) -->|::: (holdfast[\w.]*))$", re.MULTILINE)
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$")
WIDTH = 88


def main() -> None:
    for page, text in pages().items():
        (PAGES / page).write_text(text)


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    texts = {path.name: path.read_text() for path in sorted(PAGES.glob("*.md"))}
    names = {name: subjects(text) for name, text in texts.items()}
    documented = {id(one) for some in names.values() for name in some for one in things_of(name)}
    return {
        name: "\n\n".join(
            [SUBJECT.split(text)[0].strip(), *(section(one, documented) for one in names[name])]
        )
        + "\n"
        for name, text in texts.items()
    }


def subjects(text: str) -> list[str]:
    return [first or second for first, second in SUBJECT.findall(text)]


def resolve(name: str) -> Any:
    """Return the object or the module of a dotted name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            thing = getattr(thing, part)
        return thing
    raise LookupError(name)


def things_of(name: str) -> list[Any]:
    """Return the object of a name, or the public objects of a module."""
    thing = resolve(name)
    if isinstance(thing, ModuleType):
        return [getattr(thing, member) for member in members_of(thing)]
    return [thing]


def section(name: str, documented: set[int]) -> str:
    thing = resolve(name)
    if isinstance(thing, ModuleType):
        parts = [f"## {name}", prose(thing.__doc__)]
        for member in members_of(thing):
            parts += described(getattr(thing, member), member, 3, documented)
    else:
        parts = described(thing, name.rpartition(".")[2], 2, documented, name)
    return "\n\n".join([f"<!-- {name} -->", *filter(None, parts)])


def members_of(module: ModuleType) -> list[str]:
    """Return the public classes and functions of a module, in the order of its source or of
    `__all__`."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [name for name in listed if callable(getattr(module, name))]
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(thing) or inspect.isfunction(thing))
        and thing.__module__ == module.__name__
    ]


# --- classes and functions ---


def described(
    thing: Any, name: str, level: int, documented: set[int], full: str = ""
) -> Iterator[str]:
    """Yield the parts of a class or a function."""
    yield f"{'#' * level} {name}"
    place = getattr(thing, "__module__", "")
    imported = full or f"{place}.{name}"
    if level == 2 and imported.count("."):
        module, _, last = imported.rpartition(".")
        yield f"`from {module} import {last}`"
    if inspect.isclass(thing):
        yield from class_parts(thing, name, level, documented)
    else:
        node, source = definition(thing)
        yield code(signature(node, source, name, skip_self=False)) if node else ""
        yield prose(thing.__doc__)


def class_parts(cls: type, name: str, level: int, documented: set[int]) -> Iterator[str]:
    node, source = definition(cls)
    if not isinstance(node, ast.ClassDef):
        yield prose(cls.__doc__)
        return
    bases = [ast.get_source_segment(source, base) or "" for base in node.bases]
    init = next((one for one in node.body if is_function(one) and one.name == "__init__"), None)
    fields = [one for one in node.body if is_field(one)]
    if init is not None:
        yield code(signature(init, source, name))
    elif fields:
        yield code(listed(name, [ast.get_source_segment(source, one) or "" for one in fields], ""))
    elif bases:
        yield code(f"class {name}({', '.join(bases)})")
    own = [base.__name__ for base in cls.__bases__ if id(base) in documented]
    if own and (init is not None or fields):
        yield f"Extends {', '.join(f'`{base}`' for base in own)}."
    yield prose(cls.__doc__)
    if init is not None:
        yield prose(ast.get_docstring(init))
    yield from attributes(node)
    names: set[str] = set()
    for owner in cls.__mro__:
        if owner is not cls and (
            not owner.__module__.startswith("holdfast") or id(owner) in documented
        ):
            continue
        if owner.__module__.startswith("holdfast"):
            yield from methods(owner, name, level + 1, names)


def methods(cls: type, prefix: str, level: int, names: set[str]) -> Iterator[str]:
    """Yield the public methods and properties that a class defines, in the order of its source."""
    node, source = definition(cls)
    for one in node.body if isinstance(node, ast.ClassDef) else ():
        if not is_function(one) or one.name.startswith("_") or one.name in names:
            continue
        kinds = {ast.unparse(decorator) for decorator in one.decorator_list}
        if any(kind.endswith((".setter", "overload")) for kind in kinds):
            continue
        names.add(one.name)
        yield f"{'#' * level} {prefix}.{one.name}"
        if kinds & {"property", "cached_property", "functools.cached_property"}:
            kind = ast.get_source_segment(source, one.returns) if one.returns else "Any"
            yield code(f"{one.name}: {kind}")
        else:
            static = "staticmethod" in kinds
            yield code(signature(one, source, one.name, skip_self=not static))
        yield prose(ast.get_docstring(one))


def attributes(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a string after them describes."""
    lines: list[str] = []
    for one, text in zip(node.body, node.body[1:], strict=False):
        target = one.target if isinstance(one, ast.AnnAssign) else None
        if isinstance(one, ast.Assign):
            target = one.targets[0]
        about = text.value if isinstance(text, ast.Expr) else None
        if (
            isinstance(target, ast.Name)
            and not target.id.startswith("_")
            and isinstance(about, ast.Constant)
            and isinstance(about.value, str)
        ):
            lines.append(f"- `{target.id}`: {' '.join(about.value.split())}")
    if lines:
        yield "\n".join(lines)


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def is_field(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and not node.target.id.startswith("_")
        and "ClassVar" not in ast.dump(node.annotation)
    )


@functools.cache
def definitions(module: str) -> tuple[list[str], dict[str, Any]]:
    """Return the lines of a module, and its classes and functions by their qualified names."""
    source = inspect.getsource(importlib.import_module(module))
    nodes: dict[str, Any] = {}

    def look(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if is_function(node) or isinstance(node, ast.ClassDef):
                # the last of several overloads is the function
                nodes[f"{before}{node.name}"] = node
                if isinstance(node, ast.ClassDef):
                    look(node.body, f"{before}{node.name}.")
            elif isinstance(node, ast.If):
                look([*node.body, *node.orelse], before)

    look(ast.parse(source).body, "")
    return source.splitlines(), nodes


def definition(thing: Any) -> tuple[Any, str]:
    """Return the syntax tree of a class or a function, and its source file."""
    lines, nodes = definitions(thing.__module__)
    node = nodes.get(getattr(thing, "__qualname__", ""))
    if node is None:
        return None, ""
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    source = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
    return ast.parse(source).body[0], source


def signature(node: Any, source: str, name: str, skip_self: bool = True) -> str:
    """Return the signature of a function, with the annotations and defaults of the source."""

    def argument(one: ast.arg, default: ast.expr | None, stars: str = "") -> str:
        kind = ast.get_source_segment(source, one.annotation) if one.annotation else ""
        text = stars + one.arg + (f": {joined(kind)}" if kind else "")
        if default is not None:
            equals = " = " if kind else "="
            text += equals + joined(ast.get_source_segment(source, default) or "...")
        return text

    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [argument(*pair) for pair in zip(positional, defaults, strict=True)]
    parts = parts[1:] if skip_self else parts
    if arguments.vararg:
        parts.append(argument(arguments.vararg, None, "*"))
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parts.append(argument(arguments.kwarg, None, "**"))
    returns = ast.get_source_segment(source, node.returns) if node.returns else ""
    if node.name == "__init__":
        returns = ""
    return listed(name, parts, f" -> {joined(returns)}" if returns else "")


def joined(text: str | None) -> str:
    return " ".join((text or "").split())


def listed(name: str, parts: list[str], end: str) -> str:
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {joined(part)}," for part in parts), f"){end}"])


def code(text: str) -> str:
    return f"```py\n{text}\n```"


# --- docstrings ---


def prose(docstring: str | None) -> str:
    """Return a docstring as Markdown: its sections of arguments as lists, `::` as a colon."""
    lines: list[str] = []
    inside = False
    for line in inspect.cleandoc(docstring or "").splitlines():
        if match := SECTION.match(line):
            inside = True
            lines += [f"{'Arguments' if match[1] == 'Args' else match[1]}:", ""]
        elif inside and re.match(r"    [*\w`]", line):
            name, colon, text = line.strip().partition(": ")
            lines.append(f"- `{name.strip('`')}`: {text}" if colon else f"- {line.strip()}")
        elif inside and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            inside = inside and not line.strip()
            lines.append(re.sub(r"::$", ":", line))
    return "\n".join(lines).strip()


if __name__ == "__main__":
    sys.exit(main())
