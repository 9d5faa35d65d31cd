"""The typed client: it calls what it names, it is typed, and no text becomes code."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from hypothesis import given, settings, strategies as st

from bls_agent import ProjectAgent
from bls_agent.ops.interface.project import ProjectInterface, read_interface
from bls_agent.ops.interface.stubs import literal, write_stubs
from bls_agent.ops.texts import load_texts
from tests.corpus.hostile_texts import HOSTILE_TEXTS
from tests.ops.interface.test_asyncapi import Node

ENGLISH: Final = load_texts("interface", "en")
INJECTIONS: Final = [
    '"""\nimport os\n"""',
    '"; import os; "',
    "\\",
    '\\"""',
    "\\\n",
    "x):\n    import os\n    def y(self",
    "#",
    "\\N{DIGIT ONE}\\x41",
    "__init__",
    "__class__",
    "self",
    "_console",
    "None",
    "class",
    "ﬁne",
    "str",
    "list",
    "Any",
    "Outcome",
    "Commands",
    "1st",
    "",
    " ",
]


def write(answer: Any, project: str = "订单系统", language: str = "en") -> str:
    interface = ProjectInterface(
        project=project,
        address="",
        commands=read_interface(answer),
        status_ttl=60,
        log_limit=10_000,
    )
    return write_stubs(interface, load_texts("interface", language))


def odd_agent() -> ProjectAgent:
    """Names and defaults of every odd kind."""
    agent = ProjectAgent("订单系统")

    @agent.command
    async def reload(
        force: bool = False, level: Literal["a", 'b"', 1] | None = "a"
    ) -> None:
        '''Reload the """rules""".'''

    @agent.command("下单")
    async def order(tree: Node, 数量: int = 3, note: str | None = None) -> None: ...

    @agent.command("import-all")
    async def import_all(rows: dict[str, list[int]], rest: dict[str, Any]) -> None: ...

    @agent.command("import all")
    async def import_more(str: str, list: list[str], Any: int = 1) -> None: ...  # noqa: A002

    @agent.command("class")
    async def anything(**values: int) -> None: ...

    @agent.command("自己")
    async def itself(self: Node, timeout: float, project: float = 1.5) -> None: ...

    return agent


def foreign_answer() -> list[Any]:
    """What agents in other languages may answer."""
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/N"}, "M": {"$ref": "#/$defs/M"}},
        "required": ["M"],
    }
    return [
        {"name": "no parameters"},
        {"name": "bare", "parameters": {"type": "object"}},
        {"name": "none", "parameters": {"type": "object", "properties": {}}},
        {"name": "odd", "parameters": {"properties": {"from": {"type": "string"}, "a-b": {"type": ["integer", "null"]}, "__x": {"enum": [1, 1.5]}}}},
        {"name": "empty name", "parameters": {"properties": {"": {}, "a": {"type": "string"}}}},
        {"name": "hiding", "parameters": {"properties": {"Any": {}, "a": {}}}},
        {"name": "type names", "parameters": {"properties": {"str": {"type": "string"}, "list": {"type": "string"}}}},
        {"name": "cycle", "parameters": {"properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": node, "M": {"$ref": "#/$defs/M"}}}},
        {"name": "model", "parameters": {"properties": {"订单": {"$ref": "#/$defs/订单"}}, "$defs": {"订单": {"type": "object", "properties": {"订单": {"type": "string"}}}}}},
        {"name": "wide", "parameters": {"properties": {"a": {"enum": [f"choice {n}" for n in range(99)]}, "b": {"anyOf": [{"type": "array"}, {"const": True}]}}}},
        {"name": "tuple", "parameters": {"properties": {"a": {"prefixItems": [{"type": "string"}]}, "b": {"type": "array", "prefixItems": [{}]}}}},
    ]  # fmt: skip


def hostile_answer() -> list[Any]:
    """Each text in each place."""
    return [
        {
            "name": text,
            "description": text,
            "parameters": {
                "properties": {
                    text: {"type": "object", "title": text, "description": text, "default": text, "properties": {text: {"enum": [text]}}},
                    "plain": {"const": text, "default": [text]},
                    "ref": {"$ref": "#/$defs/" + text},
                },
                "required": [text],
                "$defs": {text: {"type": "object", "properties": {text: {}}}},
            },
        }
        for text in [*HOSTILE_TEXTS.values(), *INJECTIONS]
    ]  # fmt: skip


def methods_of(code: str) -> dict[str, ast.AsyncFunctionDef]:
    """Return the methods of the client, and refuse any statement that has no place."""
    module = ast.parse(code)
    assert code.isascii() or all(one.isprintable() or one == "\n" for one in code)
    first, future, *rest = module.body
    assert isinstance(first, ast.Expr)
    assert isinstance(future, ast.ImportFrom)
    client = rest.pop()
    assert isinstance(client, ast.ClassDef)
    for one in rest:
        if isinstance(one, ast.ImportFrom):
            assert one.module in ("typing", "bls_agent")
        else:
            assert isinstance(one, ast.ClassDef)
            assert [ast.unparse(base) for base in one.bases] == ["TypedDict"]
            assert all(isinstance(line, ast.AnnAssign | ast.Pass) for line in one.body)
            assert all(getattr(line, "value", None) is None for line in one.body)
    docstring, initial, *methods = client.body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(initial, ast.FunctionDef)
    assert all(isinstance(one, ast.AsyncFunctionDef) for one in methods)
    named = {one.name: one for one in methods if isinstance(one, ast.AsyncFunctionDef)}
    assert len(named) == len(methods)
    for method in named.values():
        assert len(method.body) == 2
        assert ast.unparse(method.body[1]).startswith("return await self._console.call(self._project, ")  # fmt: skip
    return named


def command_of(method: ast.AsyncFunctionDef) -> str:
    """Return the command that a method sends."""
    [call] = [one for one in ast.walk(method.body[1]) if isinstance(one, ast.Call)]
    name = ast.literal_eval(call.args[1])
    assert isinstance(name, str)
    return name


def test_hostile_texts_are_data() -> None:
    """Every name and description comes back as the text that it was."""
    answer = hostile_answer()
    for project in (*HOSTILE_TEXTS.values(), *INJECTIONS):
        first = ast.get_docstring(ast.parse(write([], project)), clean=False) or ""
        assert "".join(project.splitlines()) in "".join(first.splitlines())
    methods = methods_of(write(answer))
    wanted = [one["name"] for one in answer if one["name"].strip()]
    assert [command_of(one) for one in methods.values()] == wanted
    for method, text in zip(methods.values(), wanted, strict=True):
        assert not method.name.startswith("_")
        documented = ast.get_docstring(method, clean=False) or ""
        assert "".join(text.strip().split()) in "".join(documented.split())


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_a_literal_is_the_text(text: str) -> None:
    """On one line, of printable characters, and back again; also as a description."""
    written = literal(text)
    assert written.isprintable()
    assert ast.literal_eval(written) == text
    methods_of(write([{"name": f"a{text}", "description": text}], text))


NAMES: Final = {
    "reload": "reload",
    "import-all": "import_all",
    "import all": "import_all_2",
    "class": "class_",
    "下单": "下单",
    "__init__": "init",
    "1st": "command_1st",
    "🚀": "command",
    "Outcome": "Outcome_2",
    "ﬁne": "fine",
    "_console": "console",
}


def test_names_of_methods() -> None:
    """Odd names become identifiers, each only once."""
    methods = methods_of(write([{"name": name} for name in NAMES]))
    found = {command_of(one): name for name, one in methods.items()}
    assert found == NAMES


def test_arguments() -> None:
    """What is known of them, and Any for what is not."""
    code = write(foreign_answer())
    methods = methods_of(code)
    shown = {name: ast.unparse(one.args) for name, one in methods.items()}
    assert (
        shown["no_parameters"]
        == shown["bare"]
        == shown["empty_name"]
        == shown["odd"]
        == shown["hiding"]
        == "self, /, **args: Any"
    )
    assert shown["none"] == "self"
    for line in (
        "next: NotRequired[N]",
        "M: Any",
        "订单: NotRequired[Any]",  # the field hides the class of this name
        "str: NotRequired[Any]",
        "b: NotRequired[list[Any] | Literal[True]]",
    ):
        assert line in code, line


async def test_it_calls_what_it_names() -> None:
    """The module runs: name, arguments and time limit reach the console unchanged."""
    agent = odd_agent()
    scope: dict[str, Any] = {"__name__": "orders"}
    exec(compile(write(agent.describe_commands()), "orders.py", "exec"), scope)
    sent: list[Any] = []

    class Recorder:
        async def call(self, *args: Any, **how: Any) -> None:
            sent.append((args, how))

    client = scope["Commands"](Recorder(), timeout=2.5)
    await client.ping()
    await client.reload(force=True)
    await client.自己(self={"children": []}, timeout=1.0)
    await client.class_(a=1)
    assert [one[0] for one in sent] == [
        ("订单系统", "ping"),
        ("订单系统", "reload", {"force": True}),
        ("订单系统", "自己", {"self": {"children": []}, "timeout": 1.0}),
        ("订单系统", "class", {"a": 1}),
    ]
    assert [one[1] for one in sent] == [{"timeout": 2.5}] * 4


USE: Final = """
from bls_agent import Console, Outcome
from odd import Commands

async def main(console: Console) -> Outcome:
    client = Commands(console)
    await client.reload()
    await client.reload(force=True, level='b"')
    await client.下单(tree={"children": [{}]}, 数量=1)
    await client.import_all_2(str="a", list=["b"])
    return await client.class_(anything=1)
"""
MISUSE: Final = [
    "await client.reload(force='yes')",
    "await client.reload(other=1)",
    "await client.下单()",
    "await client.下单(tree={'children': [1]})",
    "await client.missing()",
]


@pytest.mark.skipif(
    not (find_spec("mypy") and find_spec("pyright")), reason="needs mypy and pyright"
)
def test_strict_type_checkers_accept_it(tmp_path: Path) -> None:
    """mypy and pyright, both strict; they refuse each misuse."""
    modules = {
        "odd.py": write(odd_agent().describe_commands()),
        "foreign.py": write(foreign_answer(), language="zh"),
        "hostile.py": write(hostile_answer()),
        "empty.py": write([]),
        "use.py": USE,
        "misuse.py": "\n    ".join([USE.strip().rpartition("\n")[0], *MISUSE, "return await client.ping()\n"]),
        "pyrightconfig.json": '{"typeCheckingMode": "strict", "pythonVersion": "3.11"}',
    }  # fmt: skip
    for name, text in modules.items():
        (tmp_path / name).write_text(text, "utf-8")
    sources = [name for name in modules if not name.endswith(".json")]
    mypy = ["mypy", "--strict", "--no-error-summary", "--hide-error-context", *sources]
    pyright = ["pyright", "--pythonpath", sys.executable, "-p", "."]
    for words in (mypy, pyright):
        ran = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=120, check=False,
        )  # fmt: skip
        errors = [line for line in ran.stdout.splitlines() if "error:" in line]
        assert [line for line in errors if "misuse.py" not in line] == [], ran.stdout
        lines = {line.split("misuse.py:")[1].split(":")[0] for line in errors}
        assert len(lines) == len(MISUSE), ran.stdout
