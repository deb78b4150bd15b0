"""Tests of the structure: imports between rooms, the size of a room, and the public names."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
REPO = Path(__file__).parents[1]

# Inner to outer; a room may import itself and the rooms before it.
ORDER = [
    "errors",
    "error_text",
    "error_forms",
    "nesting",
    "image_size",
    "patches",
    "object_struct",
    "processes",
    "temporary",
    "content",
    "answer",
    "events",
    "timers",
    "labels",
    "commands",
    "tools",
    "llm",
    "store",
    "runtime",
    "agent",
    "conversation",
    "observe",
    "remote",
    "fleet",
    "server",
    "serve",
    "testing",
    "evals",
    "integrations",
    "openhands",
    "cli",
]

# `Agent.run` opens a `Conversation`, whose room is further out, through the package's front door: a
# caller with one question needs an agent alone.
FRONT_DOOR = ROOT / "agent" / "agent.py"

MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Return every room that a module imports, at its top, inside a function or for the type
    checker."""
    rooms: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            rooms |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("holdfast.")
            }
            whole = any(alias.name == "holdfast" for alias in node.names)
            assert not whole or path == FRONT_DOOR, f"{path}: import a room, not the whole house"
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            if node.module == "holdfast":
                rooms |= {alias.name for alias in node.names if alias.name != "__version__"}
            elif node.module and node.module.startswith("holdfast."):
                rooms.add(node.module.split(".")[1])
    return rooms


@pytest.mark.slow
def test_an_inner_layer_never_imports_an_outer_one() -> None:
    wrong = {
        str(path.relative_to(ROOT)): outer
        for path in MODULES
        if (
            outer := {
                name for name in imported_rooms(path) if ORDER.index(name) > ORDER.index(room(path))
            }
        )
    }
    assert wrong == {}


@pytest.mark.slow
def test_every_module_is_short_enough_and_has_a_docstring() -> None:
    for path in MODULES:
        assert len(path.read_text().splitlines()) <= 1000, path
        assert ast.get_docstring(tree(path)), f"{path.relative_to(ROOT)} has no docstring"


def test_the_front_door_is_used_by_one_method_alone() -> None:
    front = ast.parse(FRONT_DOOR.read_text())
    functions = [
        function.name
        for function in ast.walk(front)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import) and any(alias.name == "holdfast" for alias in node.names)
    ]
    assert functions == ["run"]


# --- language and shape ---

QUESTION_WORDS = re.compile(r"^(what|who|whom|whose|where|why|how|those|that|as)\b", re.IGNORECASE)
OLD_PHRASES = re.compile(
    r"what is to be|that (?:is|are) none|what came of|\b(?:is|are|to be) told of|whom you|are none of"
    r"|is none's|what is said of",
    re.IGNORECASE,
)


def docstrings(path: Path) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


@pytest.mark.slow
def test_no_docstring_begins_with_a_question_word() -> None:
    assert [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in [*MODULES, ROOT / "__init__.py"]
        for text in docstrings(path)
        if QUESTION_WORDS.match(text)
    ] == []


# The docstrings of tools, which models are shown and `test_frozen.py` keeps.
SHOWN_TO_MODELS = ("runtime/builtin.py", "tools/preset/")
LONGEST_SENTENCE = 30  # words


def sentences(docstring: str) -> Iterator[str]:
    """Yield the sentences of a docstring, without tables, drawings and code."""
    for paragraph in re.split(r"\n\s*\n|\n\s*[-*] |\n(?=\s*[`*]*\w+`?:)", docstring):
        if not paragraph.startswith("    ") and not re.search(r"^\s*[|├]", paragraph, re.MULTILINE):
            yield from re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(paragraph.split()))


def docstring_sentences() -> Iterator[tuple[str, str]]:
    """Yield each sentence of a docstring that programmers read, with its module."""
    for path in MODULES:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(SHOWN_TO_MODELS):
            for text in docstrings(path):
                for sentence in sentences(text):
                    yield name, sentence


@pytest.mark.slow
def test_no_docstring_has_a_sentence_of_more_than_thirty_words() -> None:
    assert [
        f"{name}: {sentence}"
        for name, sentence in docstring_sentences()
        if len(sentence.split()) > LONGEST_SENTENCE
    ] == []


@pytest.mark.slow
def test_no_sentence_of_a_docstring_has_a_pronoun_as_its_subject() -> None:
    assert [
        f"{name}: {sentence}"
        for name, sentence in docstring_sentences()
        if re.match(r"(?:It|They|That|Those) ", sentence)
    ] == []


@pytest.mark.slow
def test_source_docs_and_readme_have_none_of_the_old_phrases() -> None:
    pages = [*MODULES, *(REPO / "docs").rglob("*.md"), REPO / "README.md"]
    assert [
        f"{path.relative_to(REPO)}: {phrase[0]}"
        for path in pages
        for phrase in OLD_PHRASES.finditer(path.read_text())
    ] == []


# The imports inside functions, each for start-up time alone: the module and its late imports.
LATE_IMPORTS = {
    # `Agent.run` goes through the front door, since conversations are further out than agents.
    ("agent.agent", "holdfast"),
    # Features that few agents have.
    ("agent.agent", "agent.code"),
    ("agent.agent", "agent.config"),
    ("agent.agent", "agent.images"),
    ("agent.agent", "agent.plugins"),
    ("agent.checks", "agent.security"),
    ("agent.connections", "tools.mcp"),
    ("agent.hooks", "tools.hook_commands"),
    ("agent.planning", "tools.preset.planning"),
    ("agent.prompt", "agent.skills"),
    ("agent.serial_form", "agent.config"),
    ("conversation.condensations", "agent.condensers.condenser_input"),
    ("conversation.hosting", "conversation.delegation"),
    ("conversation.hosting", "conversation.scripts"),
    ("conversation.interface", "conversation.replay"),
    ("conversation.journal", "runtime.processes"),
    ("llm.wires", "llm.wires.text_calls"),
    ("runtime.folder", "runtime.builtin"),
    ("store", "store.postgres"),
    ("store", "store.sqlite"),
    ("tools.hooks", "tools.hook_commands"),
    ("tools.isolation.child", "tools.isolation.worker"),
    ("tools.manager", "tools.config"),
    ("tools.mcp.pool", "tools.mcp.connection"),
    ("tools.schema", "tools.untrusted"),
    ("tools.services", "tools.discovery"),
    ("runtime.sandbox.runtime", "runtime.sandbox.proxy"),
    ("tools.tool", "tools.isolation.isolated"),
    ("tools.tool", "tools.langchain"),
    # Parts of the command and the server that most runs do without.
    ("cli.build", "cli.remote"),
    ("cli.chat", "cli.live_console"),  # prompt_toolkit, for chats at a terminal alone
    ("cli.chat", "cli.talk"),  # everything that the first prompt does not need
    ("cli.option_values", "cli.named_models"),
    ("cli.places", "cli.server"),
    ("server.host", "server.workers.worker_pool"),
    ("server.local", "server.app"),
    ("server.local", "server.serve"),
    # The fork server imports client code's surroundings only in the process that needs them.
    ("server.workers.forkserver", "server.workers.preloading"),
    ("server.workers.forkserver", "server.workers.worker"),
    ("server.workers.forkserver", "tools.isolation.child"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


@cache
def imports() -> tuple[dict[str, set[str]], set[tuple[str, str]]]:
    """Return the imports at run time by module, and those inside functions."""
    paths = {module_name(path): path for path in MODULES}
    modules: dict[str, set[str]] = {}
    late: set[tuple[str, str]] = set()
    for name, path in paths.items():
        edges = modules.setdefault(name, set())
        short = name.removeprefix("holdfast.")
        todo: list[tuple[ast.AST, bool]] = [(tree(path), False)]
        while todo:
            node, within = todo.pop()
            if isinstance(node, ast.ImportFrom):
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                own = {one if one in paths else node.module or "" for one in targets}
                own = own & paths.keys() - {name}
                edges |= own
                if within:
                    late |= {(short, one.removeprefix("holdfast.")) for one in own}
            elif isinstance(node, ast.If) and is_for_types(node.test):
                todo += [(child, within) for child in node.orelse]
            elif not isinstance(node, ast.expr):
                within = within or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                todo += [(child, within) for child in ast.iter_child_nodes(node)]
    return modules, late


def is_for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import one another, directly or through others."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        todo, reachable = list(graph[start]), set[str]()
        while todo:
            if (one := todo.pop()) not in reachable:
                reachable.add(one)
                todo += graph[one]
        reached[start] = reachable
    groups = {
        frozenset({name, *(one for one in reached[name] if name in reached[one])})
        for name in graph
        if name in reached[name]
    }
    return [set(one) for one in groups]


@pytest.mark.slow
def test_no_modules_import_each_other() -> None:
    assert cycles(imports()[0]) == []


@pytest.mark.slow
def test_the_late_imports_are_these() -> None:
    late = imports()[1] | {
        ("agent.agent", "holdfast")
    }  # not a module of the list, but checked below
    assert late == LATE_IMPORTS
    assert len(LATE_IMPORTS) <= 40


@pytest.mark.slow
def test_no_two_public_classes_have_the_same_name() -> None:
    paths_of: dict[str, set[Path]] = {}
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths_of.setdefault(node.name, set()).add(path)
    assert {name: paths for name, paths in paths_of.items() if len(paths) > 1} == {}


# Participles say nothing of the thing that they name.
PARTICIPLES = {
    *("told", "said", "given", "found", "brought", "changed", "once", "keyed", "kept"),
    *("left", "shown", "known", "seen", "heard", "taken", "made", "asked", "wanted"),
    *("sent", "gone", "begun", "named", "lost", "spent", "standing", "meant", "held"),
    *("through", "whom", "whose"),
}
# Names that stay: of stored and sent fields, of public members, of conditions (`changed`), and of
# the left side of a picture.
KEPT_NAMES = {
    ("additions", "seen"),
    ("channel", "left"),
    ("conversation", "made"),
    ("events", "named"),
    ("labels", "named"),
    ("limits", "named"),
    ("manager", "held"),
    ("memory", "held"),
    ("registry", "held"),
    ("rewound", "changed"),
    ("rewound", "kept"),
    ("risk", "said"),
    ("run_pool", "changed"),
    ("trace_picture", "left"),
    ("transaction", "made"),
    ("worker", "changed"),
    ("workspace", "made"),
}


def defined_names(module: ast.Module) -> set[str]:
    """Return the names that a module gives to functions, classes, parameters, variables and
    attributes, without underscores around them."""
    names: set[str] = set()
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name):
                names.add(name.lower())
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return {name.strip("_") for name in names}


@pytest.mark.slow
def test_no_name_is_a_participle() -> None:
    participles = {
        (path.stem, name) for path in MODULES for name in defined_names(tree(path)) & PARTICIPLES
    }
    assert participles == KEPT_NAMES


def test_the_public_names_are_these() -> None:
    assert set(holdfast.__all__) == set(holdfast._HOME)
    for name in holdfast.__all__:
        assert getattr(holdfast, name).__doc__, f"{name} has no docstring"


@pytest.mark.slow
def test_importing_holdfast_loads_the_vocabulary_alone() -> None:
    program = (
        "import sys; from holdfast import LLM, Agent, Tool, Conversation;print([m for m in"
        " ('pydantic', 'jsonschema', 'mcp', 'yaml', 'http.client', 'sqlite3', 'genai_prices',"
        " 'asyncio') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"


@pytest.mark.slow
def test_every_module_can_be_imported_without_the_optional_packages() -> None:
    program = """
import importlib, sys
for optional in ("litellm", "a2a", "langchain_core"):
    sys.modules[optional] = None
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""
    names = [module_name(path) for path in MODULES if path.name != "__main__.py"]
    process = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, check=True
    )
    assert process.stdout == ""


@pytest.mark.slow
def test_a_star_import_needs_no_optional_package() -> None:
    program = """
import sys
from importlib.abc import MetaPathFinder
OPTIONAL = ("litellm", "acp", "a2a", "fastapi", "opentelemetry", "psycopg", "procrastinate", "PIL",
            "prompt_toolkit", "rich", "pydantic_monty", "langchain_core")
class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
for room in sys.argv[1:]:
    try:
        exec(f"from {room} import *")
    except Exception as error:
        print(f"{room}: {error}")
try:
    PostgresStore("")
except Exception as error:
    print(error)
"""
    rooms = {".".join(module_name(path).split(".")[:2]) for path in MODULES}
    names = [name for name in sorted(rooms) if getattr(import_module(name), "__all__", None)]
    process = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, timeout=120
    )
    assert process.stderr == ""
    assert process.stdout == "PostgresStore needs psycopg: pip install 'holdfast[postgres]'.\n"


@pytest.mark.slow
def test_the_library_reads_no_environment_but_in_the_cli() -> None:
    places: list[str] = []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            name = (
                node.attr
                if isinstance(node, ast.Attribute)
                else node.name
                if isinstance(node, ast.alias)
                else ""
            )
            if name in ("environ", "environb", "getenv", "expandvars") and room(path) != "cli":
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert places == []


@pytest.mark.slow
def test_the_only_process_wide_objects_are_frozen() -> None:
    """Check that no module-level dict, list or set exists that a function could fill: nothing is
    shared behind a caller's back."""
    places: list[str] = []
    for path in MODULES:
        for node in tree(path).body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            empty = (isinstance(value, ast.Dict) and not value.keys) or (
                isinstance(value, ast.List) and not value.elts
            )
            mutable = (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Name)
                and value.func.id in ("dict", "list", "set", "deque")
            )
            if empty or mutable:
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert places == []


def test_the_readme_names_every_make_command_of_a_newcomer() -> None:
    readme = (REPO / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
