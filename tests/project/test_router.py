"""Which handler runs, with which arguments, and what is around it: no Redis needed."""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from http import HTTPMethod
from typing import Annotated, Any, Literal, TypeAlias

import pytest
from pydantic import BaseModel, create_model

from bls_agent import ProjectAgent
from bls_agent.core.codec import JSONObject, encode
from bls_agent.core.errors import (
    ArgumentError,
    ConfigurationError,
    DuplicateHandlerError,
    UnknownCommandError,
)
from bls_agent.core.settings import BUILTINS, rules
from bls_agent.project.commands.router import (
    UNSET,
    CallNext,
    CommandContext,
    Router,
)
from bls_agent.testing import make_context


class Order(BaseModel):
    """A model of pydantic."""

    sku: str


def context(command: str = "reload", **args: Any) -> CommandContext:
    """Make the context of a command."""
    return make_context(command, args)


def router_with(*functions: Callable[..., Any], **named: Callable[..., Any]) -> Router:
    """Make a router that knows these handlers."""
    router = Router()
    for function in functions:
        router.add(function.__name__, function, function)
    for name, function in named.items():
        router.add(name, function, function)
    return router


async def reload(
    force: bool,
    ratio: float = 1.0,
    mode: Literal["fast", "safe"] = "fast",
    *,
    items: list[int] | None = None,
) -> tuple[object, ...]:
    """Load the configuration again.

    Not part of the description.
    """
    return force, ratio, mode, items


# --- binding


async def test_arguments_are_bound_by_name() -> None:
    """A handler gets the command's arguments, and its defaults for the others."""
    router = router_with(reload)
    command = context(mode="safe", force=True, items=[1])
    assert await router.dispatch(command) == (True, 1.0, "safe", [1])


async def test_every_fault_is_told_at_once() -> None:
    """Missing, unknown and wrong arguments stand in one error; nothing runs."""
    with pytest.raises(ArgumentError) as caught:
        await router_with(reload).dispatch(context(ratio="x", mode="slow", fast=1))
    assert caught.value.command == "reload"
    assert caught.value.fields == {
        "ratio": "must be a number, not a string",
        "mode": "must be one of 'fast', 'safe'",
        "fast": "is not known",
        "force": "is missing",
    }


async def test_an_open_handler_takes_any_argument() -> None:
    """**arguments get what no parameter is named for, unchecked."""

    async def echo(count: int = 0, **rest: Any) -> object:
        return count, rest

    router = router_with(echo)
    command = context("echo", count=1, **{"a b": [None], "count2": 2})
    assert await router.dispatch(command) == (1, {"a b": [None], "count2": 2})


@pytest.mark.parametrize("open_ended", [False, True], ids=["closed", "open"])
async def test_the_context_cannot_be_sent(open_ended: bool) -> None:
    """A peer's argument is never taken for the context."""

    async def closed(told: CommandContext) -> object:
        return told

    async def opened(told: CommandContext, **rest: Any) -> object:
        return told, rest

    router = router_with(reload=opened if open_ended else closed)
    with pytest.raises(ArgumentError) as caught:
        await router.dispatch(context(told={"id": "forged"}))
    assert caught.value.fields == {"told": "is not known"}


async def test_sent_arguments_stay_as_they_were() -> None:
    """Binding converts a copy: middleware and records see what was sent."""

    async def total(items: list[float]) -> object:
        items.append(0.5)
        return items

    args: JSONObject = {"items": [1, 2]}
    assert await router_with(total).dispatch(context("total", **args)) == [
        1.0,
        2.0,
        0.5,
    ]
    assert args == {"items": [1, 2]}


Count: TypeAlias = int  # an annotation that only this module can resolve


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Be around something, as a decorator of another module."""
    yield


class Service:
    """Something whose methods handle commands."""

    async def reload(self, count: Count) -> int:
        """Reload."""
        return count

    async def __call__(self, count: int) -> int:
        """Reload."""
        return count


class Retry:
    """A callable object that keeps another function under the name ``func``."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    async def __call__(self, count: int) -> int:
        """Reload."""
        return count


async def of_texts(count: str) -> None: ...


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler as a tracing library would."""

    @functools.wraps(function)
    async def wrapper(*values: Any, **arguments: Any) -> Any:
        return await function(*values, **arguments)

    return wrapper


async def add(base: int, count: int) -> int:
    """Reload."""
    return base + count


CALLABLES: dict[str, Callable[..., Any]] = {
    "method": Service().reload,
    "callable object": Service(),
    "callable object with a func": Retry(of_texts),
    "partial": functools.partial(add, 0),
    "partial of a callable object": functools.partial(Service()),
    "partial by name": functools.partial(add, base=0),
    "partial of a method": functools.partial(Service().reload),
    "decorated": decorated(Service().reload),
    "decorated twice": decorated(decorated(Service().reload)),
    "decorated by another module": traced()(Service().reload),
}


@pytest.mark.parametrize("handler", CALLABLES.values(), ids=list(CALLABLES))
async def test_any_callable_can_be_a_handler(handler: Callable[..., Any]) -> None:
    """Signature and annotations are found through methods, partials and wrappers."""
    router = router_with(reload=handler)
    assert await router.dispatch(context(count=7)) == 7
    with pytest.raises(ArgumentError) as caught:
        await router.dispatch(context(count="7"))
    assert caught.value.fields == {"count": "must be an integer, not a string"}


async def test_pydantic_can_check_everything() -> None:
    """A router told so lets pydantic convert all arguments."""

    async def order(items: list[Order], count: int) -> object:
        return items, count

    router = Router(pydantic=True)
    router.add("order", order, order)
    command = context("order", items=[{"sku": "a"}], count="2")
    assert await router.dispatch(command) == ([Order(sku="a")], 2)


# --- signatures that cannot be served


async def positional_only(count: int, /) -> None: ...


async def variadic(*counts: int) -> None: ...


async def unresolved(order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


async def uncheckable(order: bytes) -> None: ...


async def positional_context(told: CommandContext, /) -> None: ...


async def variadic_context(*told: CommandContext) -> None: ...


async def two_contexts(told: CommandContext, again: CommandContext) -> None: ...


def generator() -> Iterator[int]:
    """Yield."""
    yield 1


async def async_generator() -> AsyncIterator[int]:
    """Yield."""
    yield 1


UNSERVED = [
    positional_only,
    variadic,
    unresolved,
    uncheckable,
    positional_context,
    variadic_context,
    two_contexts,
    generator,
    async_generator,
]


@pytest.mark.parametrize(
    "handler", UNSERVED, ids=lambda handler: handler.__name__.replace("_", " ")
)
def test_a_handler_that_no_command_could_reach_is_refused(
    handler: Callable[..., Any],
) -> None:
    """A signature that cannot be served is refused when it is registered."""
    router = Router()
    with pytest.raises(ConfigurationError, match=r"^reload"):
        router.add("reload", handler, handler)
    assert router.find("reload") is None


def test_annotations_of_results_do_not_matter() -> None:
    """Nobody checks what a handler gives back, so its annotation may be anything."""

    async def reload() -> Missing: ...  # type: ignore[name-defined]  # noqa: F821

    assert router_with(reload).find("reload")


@pytest.mark.parametrize("name", ["", " ", "re\nload", "re\ud800", "x" * 513], ids=repr)
def test_a_name_that_cannot_be_sent_is_refused(name: str) -> None:
    """A command's name keeps the rules of every name."""
    with pytest.raises(ConfigurationError, match=r"^command: "):
        Router().add(name, reload, reload)


# --- names


async def test_a_name_is_taken_once() -> None:
    """The second handler of a name is refused, and the first one stays."""
    router = router_with(reload)
    with pytest.raises(DuplicateHandlerError, match="'reload'"):
        router.add("reload", add, add)
    assert await router.dispatch(context(force=True))


async def test_the_hosts_own_handler_goes_before_a_builtin() -> None:
    """In whatever order the two are registered, the host's one runs."""

    async def ours() -> str:
        return "ours"

    async def theirs() -> str:
        return "theirs"

    before, after = Router(), Router()
    before.add("ping", theirs, theirs)
    for router in (before, after):
        router.add("ping", ours, ours, builtin=True)
    after.add("ping", theirs, theirs)
    assert await before.dispatch(context("ping")) == "theirs"
    assert await after.dispatch(context("ping")) == "theirs"
    assert [handler.call for handler in after.list_handlers()] == [theirs]


# --- fallback and middleware


async def test_the_fallback_runs_for_unknown_commands_only() -> None:
    """It gets the context alone, arguments unchecked."""

    async def fallback(command: CommandContext) -> object:
        return command.command, command.args

    router = router_with(reload)
    router.set_fallback(fallback)
    assert await router.dispatch(context("other", a=1)) == ("other", {"a": 1})
    assert await router.dispatch(context(force=False)) == (False, 1.0, "fast", None)
    with pytest.raises(ArgumentError):
        await router.dispatch(context())
    with pytest.raises(DuplicateHandlerError, match="fallback"):
        router.set_fallback(fallback)


def noting(seen: list[str], name: str) -> Callable[..., Any]:
    """Make a middleware that notes when it is entered and left."""

    async def middleware(command: CommandContext, call_next: CallNext) -> Any:
        seen.append(f"{name} in")
        try:
            return await call_next(command)
        finally:
            seen.append(f"{name} out")

    return middleware


@pytest.mark.parametrize("command", ["reload", "other"])
async def test_middleware_is_an_onion(command: str) -> None:
    """The first one added is the outermost, around unknown commands too."""
    seen: list[str] = []
    router = router_with(reload)
    router.add_middleware(noting(seen, "first"))
    router.add_middleware(noting(seen, "second"))
    with pytest.raises(ArgumentError if command == "reload" else UnknownCommandError):
        await router.dispatch(context(command))
    assert seen == ["first in", "second in", "second out", "first out"]


async def test_middleware_may_change_what_runs() -> None:
    """It can hand on another context, change the result, or not call at all."""

    async def gate(command: CommandContext, call_next: CallNext) -> Any:
        if command.args.get("closed"):
            return "closed"
        return "result", await call_next(context(force=True))

    router = router_with(reload)
    router.add_middleware(gate)
    assert await router.dispatch(context(closed=1)) == "closed"
    assert await router.dispatch(context()) == ("result", (True, 1.0, "fast", None))


# --- what a handler tells about itself


def test_a_handler_describes_itself() -> None:
    """Name, first paragraph of the docstring and parameters as JSON Schema."""
    handler = router_with(reload).find("reload")
    assert handler is not None
    assert handler.describe() == {
        "name": "reload",
        "description": "Load the configuration again.",
        "parameters": {
            "type": "object",
            "properties": {
                "force": {"type": "boolean"},
                "ratio": {"type": "number", "default": 1.0},
                "mode": {"enum": ["fast", "safe"], "default": "fast"},
                "items": {
                    "anyOf": [
                        {"type": "array", "items": {"type": "integer"}},
                        {"type": "null"},
                    ],
                    "default": None,
                },
            },
            "required": ["force"],
            "additionalProperties": False,
        },
    }


def _model(name: str, **fields: Any) -> Any:
    return create_model(name, **fields)


def test_references_lead_to_the_definitions_of_all_parameters() -> None:
    """Also where two models have one name; a model that is used twice stands once."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - it takes a second to import

    one = _model("Order", line=_model("Box", inner=_model("Line", sku=str)))
    other = _model("Order", line=_model("Box", inner=_model("Line", count=int)))

    async def take(a: Any, b: Any, c: Any) -> None: ...

    others = list[other]  # type: ignore[valid-type]
    take.__annotations__ = {"a": one, "b": others, "c": one | None}
    handler = router_with(take).find("take")
    assert handler is not None
    schema: Any = handler.describe()["parameters"]
    check = Draft202012Validator(schema)
    line, count = {"line": {"inner": {"sku": "茶"}}}, {"line": {"inner": {"count": 1}}}
    assert check.is_valid({"a": line, "b": [count], "c": line})
    assert not check.is_valid({"a": count, "b": [count], "c": line})
    assert not check.is_valid({"a": line, "b": [line], "c": line})
    assert set(schema["$defs"]) == {"Box", "Line", "Box.2", "Line.2"}
    assert encode(schema).count(b"$defs") - encode(schema).count(b"#/$defs") == 1


@pytest.mark.parametrize(
    ("default", "told"),
    [
        (HTTPMethod.GET, {"default": "GET"}),
        ((1, "二"), {"default": [1, "二"]}),
        (Decimal("1.50"), {}),
        (object(), {}),
        (float("nan"), {}),
        (b"bytes", {}),
        ({1, 2}, {}),
        ("x" * 2_000, {}),
    ],
    ids=["enum", "tuple", "decimal", "object", "nan", "bytes", "set", "long"],
)
def test_a_default_is_told_if_json_can_hold_it(
    default: object, told: dict[str, Any]
) -> None:
    """An odd or a long default is left out, and the parameter stays optional."""

    async def handle(given: Any = default) -> None: ...

    handler = router_with(handle).find("handle")
    assert handler is not None
    parameters: Any = handler.describe()["parameters"]
    assert parameters["properties"] == {"given": told}
    assert parameters["required"] == []


def test_the_context_is_no_parameter() -> None:
    """What the peer cannot send is not described; without a docstring it is short."""

    async def bare(told: CommandContext, **rest: Any) -> None: ...

    handler = router_with(bare).find("bare")
    assert handler is not None
    assert handler.describe() == {
        "name": "bare",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": True,
        },
    }


@pytest.mark.parametrize("timeout", [0.5, 1, None, UNSET])
def test_a_timeout_is_remembered(timeout: Any) -> None:
    """Seconds, none for no limit, or nothing said."""
    router = Router()
    router.add("reload", reload, reload, timeout=timeout)
    handler = router.find("reload")
    assert handler is not None
    assert handler.timeout is timeout


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_more_than_nothing(timeout: float) -> None:
    """A handler that could never run is refused."""
    with pytest.raises(ConfigurationError, match=r"^timeout: "):
        Router().add("reload", reload, reload, timeout=timeout)


def test_quoted_and_annotated_hints_are_understood() -> None:
    """Annotations count in whatever form Python allows to write them."""

    async def hinted(
        order: "Order",  # noqa: UP037 - quoted within a quoted annotation
        note: Annotated["str | None", "shown"] = None,  # noqa: UP037
        old: typing.Optional[int] = None,  # noqa: UP045
    ) -> None: ...

    handler = router_with(hinted).find("hinted")
    assert handler is not None
    assert set(handler.fields.checks) == {"order", "note", "old"}
    assert handler.fields.checks["note"].convert(None) is None


async def test_every_built_in_command_is_registered() -> None:
    """The settings, the completion and the pages name the commands that there are."""
    agent = ProjectAgent("订单系统", banner=False)
    assert [entry["name"] for entry in agent.describe_commands()] == [*BUILTINS]
    assert all(name in rules()["builtins"].meaning for name in BUILTINS)
