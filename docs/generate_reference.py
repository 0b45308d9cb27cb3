"""Writes the reference pages cli.md and api.md into a folder; ``docs/build_site.py`` does so for the site.

The command line comes from the argparse parsers. The Python API is read from the source, not from imported objects, so
that the pages hold no addresses, no machine's paths and nothing that depends on what is installed.
"""

import argparse
import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hwbmpq.cli.main import build_parser

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
_COLUMNS = 100


# the command line


def cli_page() -> str:
    """Every command's and sub-command's ``--help``."""
    parsers = list(_all_parsers(build_parser()))
    parts = [
        "# Command line",
        "What `--help` prints, for every command. [README.md](README.md) lists the pages that explain them; "
        "[quickstart.md](quickstart.md) goes through the usual ones.",
        "\n".join(f"- [`{parser.prog}`](#{_anchor(parser.prog)})" for parser in parsers),
    ]
    for parser in parsers:
        parts += [f"## {parser.prog}", _fenced("text", _help(parser))]
    return "\n\n".join(parts) + "\n"


def _all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _all_parsers(child)


def _help(parser: argparse.ArgumentParser) -> str:
    formatter: Callable[..., argparse.HelpFormatter] = parser.formatter_class
    # The width of a terminal would be taken from the environment otherwise.
    parser.formatter_class = functools.partial(formatter, width=_COLUMNS)
    return "\n".join(line.rstrip() for line in parser.format_help().splitlines())


def _anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.strip(chr(10))}\n```"


# the Python API


def api_page() -> str:
    """Every public name of hwbmpq and of its public modules."""
    modules = public_modules()
    parts = [
        "# Python API",
        "Every public name with its signature and its docstring. [python-api.md](python-api.md) shows them at work.",
        "\n".join(f"- [`{m}`](#{_anchor(m)}): {_first_line(m)}" for m in ["hwbmpq", *modules]),
        *_module_section("hwbmpq", elsewhere=modules),
    ]
    for module in modules:
        parts += _module_section(module)
    return "\n\n".join(parts) + "\n"


def public_modules() -> list[str]:
    """The modules that hwbmpq offers by name."""
    return sorted(f"hwbmpq.{name}" for name in public_names("hwbmpq") if _source_file(f"hwbmpq.{name}"))


def public_names(module: str) -> list[str]:
    """What a module offers, in the order of its source: ``X as X`` imports, and its own definitions without ``_``."""
    found: dict[str, None] = {}
    for node in _statements(_tree(module).body):
        if isinstance(node, ast.ImportFrom):
            found |= dict.fromkeys(alias.name for alias in node.names if alias.asname == alias.name)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = None
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            found |= dict.fromkeys(_targets(node))
    return [name for name in found if not name.startswith("_")]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those for type checkers included."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements(node.body)
        else:
            yield node


def _targets(node: ast.AnnAssign | ast.Assign) -> list[str]:
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _source_file(module: str) -> Path | None:
    """The file of a module, found without importing it; cli and models stand beside the package."""
    parts = module.split(".")[1:]
    for folder in (ROOT / "hwbmpq", ROOT):
        path = folder.joinpath(*parts)
        for file in (path / "__init__.py", path.with_suffix(".py") if parts else path):
            if file.is_file() and (folder != ROOT or parts):
                return file
    return None


@functools.cache
def _tree(module: str) -> ast.Module:
    file = _source_file(module)
    assert file is not None, f"there is no module {module}"
    return ast.parse(file.read_text(encoding="utf-8"))


def _first_line(module: str) -> str:
    return _prose((ast.get_docstring(_tree(module)) or "").partition("\n")[0])


@dataclass(frozen=True, kw_only=True)
class _Definition:
    """Where a public name is made."""

    module: str
    node: ast.FunctionDef | ast.ClassDef | ast.AnnAssign | ast.Assign
    remark: str = ""
    """The string below an assignment."""


def _define(module: str, name: str) -> _Definition:
    """Follow a name through imports to where it is made."""
    statements = list(_statements(_tree(module).body))
    for node, after in zip(statements, [*statements[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hwbmpq"):
            if any((alias.asname or alias.name) == name for alias in node.names):
                return _define(node.module, name)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return _Definition(module=module, node=node)
        elif isinstance(node, ast.AnnAssign | ast.Assign) and name in _targets(node):
            return _Definition(module=module, node=node, remark=_text_of(after))
    raise LookupError(f"{module}.{name}: where is it made?")


def _text_of(node: ast.stmt | None) -> str:
    """The text of a statement that is only a string: what stands below an attribute to explain it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else ""
    return ""


def _module_section(module: str, elsewhere: list[str] | None = None) -> list[str]:
    parts = [f"## {module}", _prose(ast.get_docstring(_tree(module)) or "")]
    homes = {name: other for other in elsewhere or () for name in public_names(other)}
    own, listed = [], []
    for name in public_names(module):
        if f"{module}.{name}" in (elsewhere or ()):
            continue  # a module with a section of its own
        if name in homes:
            heading = f"{homes[name]}.{name}"
            listed.append(f"- `{module}.{name}` is [`{heading}`](#{_anchor(heading)})")
        else:
            own += _name_section(module, name)
    return [*parts, *(["\n".join(listed)] if listed else []), *own]


def _name_section(module: str, name: str) -> list[str]:
    definition = _define(module, name)
    node = definition.node
    parts = [f"### {module}.{name}"]
    if isinstance(node, ast.ClassDef):
        return [*parts, *_class(node)]
    if isinstance(node, ast.FunctionDef):
        return [*parts, _fenced("py", _function(node)), *_document(node)]
    return [
        *parts,
        _fenced("py", _assignment(node)),
        *([_prose(definition.remark)] if definition.remark else []),
    ]


def _document(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    text = ast.get_docstring(node)
    return [_prose(text)] if text else []


def _function(node: ast.FunctionDef, prefix: str = "def ", *, skip_first: bool = False) -> str:
    arguments = _arguments(node.args, skip_first=skip_first)
    result = f" -> {_annotation(node.returns)}" if node.returns else ""
    return f"{prefix}{_call(node.name, arguments)}{result}"


def _call(name: str, arguments: list[str]) -> str:
    """One line if that is short enough, else a line for each argument."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _COLUMNS - 10:
        return line
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


def _arguments(arguments: ast.arguments, *, skip_first: bool = False) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    found = [_argument(*pair) for pair in zip(positional, defaults, strict=True)][1 if skip_first else 0 :]
    if arguments.vararg:
        found.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        found.append("*")
    found += [_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        found.append(f"**{_argument(arguments.kwarg, None)}")
    return found


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    said = f"{argument.arg}: {_annotation(argument.annotation)}" if argument.annotation else argument.arg
    if default is None:
        return said
    return f"{said} = {_source(default)}" if argument.annotation else f"{said}={_source(default)}"


def _annotation(node: ast.expr) -> str:
    """A type as it is written, without the quotes of one that is imported for type checkers only."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return _source(node)


def _source(node: ast.expr) -> str:
    """An expression as our formatter writes it: in double quotes."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def _assignment(node: ast.AnnAssign | ast.Assign) -> str:
    """A constant: its value if that is short, else its type or its name alone."""
    (name,) = _targets(node)
    said = f"{name}: {_annotation(node.annotation)}" if isinstance(node, ast.AnnAssign) else name
    value = "" if node.value is None else _source(node.value)
    return f"{said} = {value}" if value and len(said) + len(value) < _COLUMNS else said


def _class(node: ast.ClassDef) -> list[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    makers = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    arguments = _arguments(makers[0].args, skip_first=True) if makers else _field_arguments(node)
    below = f"  # derived from {bases}" if bases else ""
    called = _call(f"class {node.name}", arguments) if arguments or makers else f"class {node.name}"
    parts = [_fenced("py", f"{called}{below}"), *_document(node)]
    attributes = list(_attributes(node))
    if attributes:
        parts.append("\n".join(attributes))
    return [*parts, *_methods(node)]


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _field_arguments(node: ast.ClassDef) -> list[str]:
    """What a dataclass or a pydantic model is made with, if it says so itself."""
    is_model = any(ast.unparse(base) in ("BaseModel", "_Model") for base in node.bases)
    if not _is_dataclass(node) and not is_model:
        return []
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    said = []
    for field in fields:
        name = _targets(field)[0]
        if name.startswith("_") or "ClassVar" in ast.unparse(field.annotation):
            continue
        default = "" if field.value is None else f" = {_default(field.value)}"
        said.append(f"{name}: {_annotation(field.annotation)}{default}")
    only_keywords = is_model or any("kw_only=True" in ast.unparse(d) for d in node.decorator_list)
    return ["*", *said] if only_keywords and said else said


def _default(node: ast.expr) -> str:
    """``field(default_factory=dict)`` is of no use to a reader."""
    text = _source(node)
    return "…" if text.startswith(("field(", "Field(")) else text


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """Attributes that are explained by a string below them, in the class or in its ``__init__``, and properties."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and child.name == "__init__":
            yield from _explained(child.body, prefix="self.")
    yield from _explained(node.body)
    for child in node.body:
        is_property = isinstance(child, ast.FunctionDef) and any(
            ast.unparse(decorator) in ("property", "cached_property", "functools.cached_property")
            for decorator in child.decorator_list
        )
        if isinstance(child, ast.FunctionDef) and is_property and not child.name.startswith("_"):
            result = f": {_annotation(child.returns)}" if child.returns else ""
            yield _bullet(f"{child.name}{result}", ast.get_docstring(child) or "")


def _explained(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        remark = _text_of(after)
        if not remark or not isinstance(node, ast.AnnAssign | ast.Assign):
            continue
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        name = ast.unparse(targets[0]).removeprefix(prefix)
        if name.isidentifier() and not name.startswith("_"):
            said = f"{name}: {_annotation(node.annotation)}" if isinstance(node, ast.AnnAssign) else name
            yield _bullet(said, remark)


def _bullet(said: str, text: str) -> str:
    explained = " ".join(_prose(text).split())
    return f"- `{said}`" + (f". {explained}" if explained else "")


def _methods(node: ast.ClassDef) -> list[str]:
    parts = []
    for child in node.body:
        if not isinstance(child, ast.FunctionDef) or child.name.startswith("_"):
            continue
        decorators = [ast.unparse(decorator) for decorator in child.decorator_list]
        if "property" in decorators or any(text.endswith("cached_property") for text in decorators):
            continue
        above = "".join(f"@{text}\n" for text in decorators if text in ("classmethod", "staticmethod"))
        signature = _function(child, f"{above}.", skip_first="staticmethod" not in decorators)
        parts += [_fenced("py", signature), *_document(child)]
    return parts


# docstrings as Markdown


def _prose(text: str) -> str:
    """A docstring as Markdown: doctests and indented code in fences, the rest as it is."""
    blocks = []
    for block in re.split(r"\n\s*\n", _dedented(text)):
        if block.startswith(">>>"):
            blocks.append(_fenced("py", block))
        elif block.startswith("    "):
            blocks.append(_fenced("py", "\n".join(line[4:] for line in block.splitlines())))
        else:
            blocks.append(_escaped(block))
    return "\n\n".join(blocks)


def _dedented(text: str) -> str:
    lines = text.strip().splitlines()
    rest = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    indent = min(rest, default=0)
    return "\n".join([*lines[:1], *(line[indent:].rstrip() for line in lines[1:])])


def _escaped(text: str) -> str:
    """Code in double backticks becomes code; what Markdown would take for its own does not."""
    parts = re.split(r"``(.+?)``", text, flags=re.DOTALL)
    return "".join(
        f"`{part}`" if index % 2 else re.sub(r"([*_<$|\[\]])", r"\\\1", part)
        for index, part in enumerate(parts)
    )


PAGES: dict[str, Callable[[], str]] = {"cli.md": cli_page, "api.md": api_page}


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
