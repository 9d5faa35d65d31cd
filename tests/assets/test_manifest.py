"""Manifests: what is accepted, what Redis gets, and what is refused, with which words."""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given, strategies as st

from bls_agent import ManifestError, ManifestFault
from bls_agent.assets import manifest_schema, parse_manifest
from bls_agent.assets.manifest import index_entry, metadata_fields, path_fault

PATH = "tools/search/google.yaml"
TOOL = """\
# yaml-language-server: $schema=manifest.schema.json
id: google_search
version: 1.2.0
category: tool
name: Google 搜索
description: 在 Google 上搜索内容
config_schema:
  - name: query
    label: 搜索词
    type: string
    required: true
agent_specs:
  parameters: &query
    type: object
    properties: {q: {type: string}}
  function_name: google_search
  description: "搜索"
  returns: *query
runtime: {language: python, entry: main.py, handler: run, dependencies: [requests]}
"""
PROMPT = "id: p\nversion: 1.0.0\ncategory: prompt\nname: p\n"


def faults_of(text: str | bytes) -> list[ManifestFault]:
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ManifestError) as caught:
        parse_manifest(content, "a.yaml")
    return list(caught.value.faults)


def test_the_bytes_are_those_of_the_document() -> None:
    """Each field of the example; what the manifest says beyond that stays in its JSON."""
    manifest = parse_manifest(TOOL.encode(), PATH)
    schema = '{"type":"object","properties":{"q":{"type":"string"}}}'
    assert metadata_fields(manifest, PATH, "abc") == {
        "id": b"google_search",
        "version": b"1.2.0",
        "category": b"tool",
        "name": "Google 搜索".encode(),
        "description": "在 Google 上搜索内容".encode(),
        "config_schema": (
            '[{"name":"query","label":"搜索词","type":"string","required":true}]'
        ).encode(),
        "agent_specs": (
            '{"function_name":"google_search","description":"搜索",'
            f'"parameters":{schema},"returns":{schema}}}'
        ).encode(),
        "runtime": (
            b'{"language":"python","entry":"main.py","handler":"run",'
            b'"dependencies":["requests"]}'
        ),
        "github_path": PATH.encode(),
        "github_sha": b"abc",
    }


def test_the_index_has_five_fields() -> None:
    """In the document's order, text as it is, the description cut at 100 code points."""
    manifest = parse_manifest(f"{PROMPT}description: {'长😀' * 60}\n".encode(), PATH)
    assert index_entry(manifest).decode() == (
        '{"id":"p","name":"p","category":"prompt","version":"1.0.0","description":"'
        + "长😀" * 50
        + '"}'
    )


def test_empty_fields_are_absent() -> None:
    """A prompt needs four fields; optional ones that are empty leave no trace."""
    text = PROMPT + "description: ''\nconfig_schema: []\nagent_specs: {}\nauthor: ''\n"
    for manifest in (parse_manifest(one.encode(), "p") for one in (text, PROMPT)):
        fields = metadata_fields(manifest, "p", "s")
        assert list(fields) == [
            "id", "version", "category", "name", "github_path", "github_sha"
        ]  # fmt: skip
    assert orjson.loads(index_entry(manifest))["description"] == ""


def test_yaml_is_read_by_the_core_schema() -> None:
    """What YAML 1.1 would turn into other values is text; numbers are JSON's."""
    said = "[no, on, 12:30:00, 2024-01-01, 1_000, 0b1, =, 010, 0o17, 0x1F, .5, 1e3, ~]"
    manifest = parse_manifest(f"{PROMPT}agent_specs: {{said: {said}}}\n".encode(), "p")
    assert orjson.loads(metadata_fields(manifest, "p", "s")["agent_specs"])["said"] == [
        "no", "on", "12:30:00", "2024-01-01", "1_000", "0b1", "=",
        10, 15, 31, 0.5, 1000.0, None,
    ]  # fmt: skip


def test_all_faults_are_told_at_once() -> None:
    """Each with its line, its field, the rule and what to do; the id where it is known."""
    text = (
        "id: weather\nversion: 1.10\ncategory: toll\nnam: x\nconfig_schema:\n"
        "  - {name: city, label: City, type: select}\n  - 3\n"
        "runtime: {language: python, entry: ../x}\n"
    )
    assert [str(fault) for fault in faults_of(text)] == [
        "a.yaml:1: name: it is missing. Add it. What people read",
        (
            "a.yaml:2: version: it is no text but the value 1.1. "
            'Write it in quotes. Such as "1.0.0"'
        ),
        (
            "a.yaml:3: category: input should be 'tool', 'prompt' or 'skill'. "
            "Use tool, prompt or skill"
        ),
        "a.yaml:4: nam: there is no such field. Did you mean name?",
        (
            "a.yaml:6: config_schema[0].options: a select needs options. "
            "Give each choice a label and a value"
        ),
        (
            "a.yaml:7: config_schema[1]: it is no mapping of names to values. "
            "A list of settings"
        ),
        (
            "a.yaml:8: runtime.entry: a path holds no '..', no '.' and no empty part. "
            "A path below the manifest's folder, such as main.py"
        ),
    ]
    assert {fault.id for fault in faults_of(text)} == {"weather"}


ITEM = PROMPT + "config_schema:\n  - name: a\n    label: a\n"
WRONG = {
    "a tool without its parts": (
        "id: t\nversion: 1.0.0\ncategory: tool\nname: t\nagent_specs: {function_name: t}",
        "a tool needs description, parameters here",
    ),
    "no semantic version": (
        PROMPT.replace("1.0.0", "1.0"),
        "no text but the value 1.0",
    ),
    "a version with a v": (PROMPT.replace("1.0.0", "v1.0.0"), "no semantic version"),
    "another project's id": (PROMPT.replace("p", "a:b", 1), "'a:b' is not allowed"),
    "a long id": (PROMPT.replace("p", "a" * 65, 1), "is not allowed"),
    "a number's default": (ITEM + "    type: number\n    default: x", "is a number"),
    "true is no number": (ITEM + "    type: number\n    default: true", "is a number"),
    "a default beside the options": (
        ITEM + "    type: select\n    default: c\n    options: [{label: a, value: b}]",
        "none of the options",
    ),
    "two settings of one name": (
        PROMPT + "config_schema: [&i {name: a, label: a, type: string}, *i]",
        "two settings are called 'a'",
    ),
    "parameters of no object": (
        PROMPT + "agent_specs: {parameters: {type: array}}",
        "no JSON Schema of an object",
    ),
    "a list": ("- 1", "no mapping"),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_what_breaks_a_rule(text: str, reason: str) -> None:
    """One fault each, in words."""
    assert any(reason in fault.reason for fault in faults_of(text))


def bomb() -> str:
    rows = "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    return f"a: &a [{','.join('x' * 9)}]\n{rows}"


HOSTILE: dict[str, tuple[Callable[[], str | bytes], str]] = {
    "alias bomb": (bomb, "10,000 values"),
    "an alias of itself": (lambda: "a: &a [*a]", "64 levels"),
    "Python object": (lambda: "a: !!python/object/apply:os.abort []", "tags"),
    "a tag on a text": (lambda: "a: !!binary aGFsbG8=", "tags"),
    "duplicate key": (lambda: "id: a\nid: b", "'id' is there twice"),
    "merge key": (lambda: "a: {<<: {b: 1}}", "merge keys"),
    "NUL": (lambda: "a: \0", "no YAML"),
    "escaped NUL": (lambda: 'a: "\\0"', "control characters"),
    "lone surrogate": (lambda: 'a: "\\ud800"', "control characters"),
    "beyond Unicode": (lambda: 'a: "\\UFFFFFFFF"', "no YAML"),
    "open lists": (lambda: "[" * 3_000, "64 levels"),
    "open mappings": (lambda: '{"a":' * 3_000, "64 levels"),
    "nested dashes": (lambda: "- " * 3_000, "64 levels"),
    "10 MB": (lambda: b"x" * 10_000_000, "256 KB"),
    "no text": (lambda: b"a: \xff\xfe", "UTF-8"),
    "nothing": (lambda: "", "empty"),
    "two documents": (lambda: "a: 1\n---\nb: 1", "one manifest"),
    "tab": (lambda: "a:\n\tb: 1", "no YAML"),
    "a number as name": (lambda: "1: a", "a name is text"),
    "a list as name": (lambda: "? [a]\n: b", "a name is text"),
    "a huge number": (lambda: "a: " + "9" * 5_000, "no such number"),
    "more than 64 bits": (lambda: "a: 18446744073709551616", "64 bits"),
    "not a number": (lambda: "a: .nan", "no such number"),
    "a strange directive": (lambda: f"%YAML {'9' * 30}.1\n---\na: 1", "no YAML"),
}


@pytest.mark.parametrize(("make", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_yaml_is_refused_at_once(
    make: Callable[[], str | bytes], reason: str
) -> None:
    """With one clear fault; a bomb that is unpacked would take minutes."""
    text = make()
    began = time.thread_time()
    (fault,) = faults_of(text)
    took = time.thread_time() - began
    assert reason in fault.reason
    assert took < 1.0


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_json_is_yaml(value: object) -> None:
    """Whatever JSON says is read as JSON means it, or refused with a fault."""
    text = f"{PROMPT}agent_specs: {{x: {orjson.dumps(value).decode()}}}\n"
    try:
        manifest = parse_manifest(text.encode(), "p")
    except ManifestError:
        return
    fields = metadata_fields(manifest, "p", "s")
    assert orjson.loads(fields["agent_specs"]) == {"x": value}


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_anything_else_is_a_fault(content: bytes) -> None:
    """No other exception leaves, whatever stands in a file."""
    with pytest.raises(ManifestError):
        parse_manifest(content, "a.yaml")


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../a", "a/../b", "a//b", "./a", "C:/a", "\\\\host\\a", "a\\b",
     "a\0b", "a\nb", "e\u0301.yaml", "a" * 513, "\ud800"],
)  # fmt: skip
def test_paths_that_lead_elsewhere(path: str) -> None:
    """Nothing absolute, nothing upwards, nothing that means two things."""
    assert path_fault(path)


def test_the_schema_is_for_editors() -> None:
    """It names every field, and what people should write there."""
    schema = manifest_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert set(schema["required"]) == {"id", "version", "category", "name"}
    assert schema["properties"]["category"]["enum"] == ["tool", "prompt", "skill"]
    assert schema["additionalProperties"] is False
    for part in (schema, *schema["$defs"].values()):
        assert all(
            field["description"] for field in part.get("properties", {}).values()
        )
