"""Plans, without Redis: nothing that may still be described is ever deleted."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from bls_agent import ManifestFault
from bls_agent.assets import SourceFile, parse_manifest
from bls_agent.assets.plan import KnownAsset, choose_files, files_to_read, make_plan
from tests.assets.memory_source import manifest

IDS, PATHS = "abcd", ("a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml")
# What a file holds: an id, or nothing readable, with or without an id in it.
CONTENTS = st.sampled_from([*IDS, *IDS.upper(), "?"])
PARSED = {one: parse_manifest(manifest(one), "x") for one in IDS}
Library = dict[str, KnownAsset]


def synchronise(library: Library, files: dict[str, str]) -> tuple[Library, bool]:
    """Do what a synchronisation does; say whether it changed anything, and if it is whole."""
    listed = [SourceFile(path, text, 1) for path, text in files.items()]
    known = list(library.values())
    read = files_to_read(listed, known)
    manifests = {file.path: PARSED[file.sha] for file in read if file.sha in PARSED}
    faults = [
        ManifestFault(
            file.path, "broken", id=file.sha.lower() if file.sha != "?" else ""
        )
        for file in read
        if file.sha not in PARSED
    ]
    plan = make_plan("c", listed, known, manifests, faults, force=True)
    report = plan.report
    groups = [report.created, report.updated, report.deleted, report.kept]
    assert len({one for group in groups for one in group}) == sum(map(len, groups))
    left = library.keys() | set(report.created)
    assert report.total == len(left) - len(report.deleted)
    after = {one: asset for one, asset in library.items() if one not in report.deleted}
    for write in plan.writes:
        path = write.fields["github_path"].decode()
        after[write.id] = KnownAsset(write.id, path, files[path])
    return after, not report.broken


@given(
    st.dictionaries(st.sampled_from(PATHS), CONTENTS),
    st.dictionaries(st.sampled_from(PATHS), CONTENTS),
    st.sets(st.sampled_from(IDS)),
)
@example({"a.yaml": "a", "b.yaml": "b"}, {"a.yaml": "a", "b.yaml": "a"}, set())
@example({"a.yaml": "a", "b.yaml": "b"}, {"b.yaml": "?", "c.yaml": "b"}, set())
@example({"a.yaml": "a", "b.yaml": "b"}, {"a.yaml": "?"}, set())
def test_any_commit_after_any_other(
    first: dict[str, str], second: dict[str, str], damaged: set[str]
) -> None:
    """What one readable file describes is there; what a broken one may describe stays."""
    library, _ = synchronise({}, first)
    for one in damaged & library.keys():
        library[one] = KnownAsset(one, is_sound=False)
    after, is_whole = synchronise(library, second)
    described = list(second.values())
    anything = "?" in described
    broken = {
        path
        for path, text in second.items()
        if text not in IDS or described.count(text) > 1
    }
    for one in IDS:
        if described.count(one) == 1:
            path = next(path for path, text in second.items() if text == one)
            assert after[one] == KnownAsset(one, path, one)
        elif described.count(one):  # twice: both are faults, nothing changes
            assert after.get(one) == library.get(one)
        elif one in library and (
            one.upper() in described or anything or library[one].path in broken
        ):
            assert one in after
        elif is_whole:
            assert one not in after
    again, _ = synchronise(after, second)
    assert again == after


def files_at(*paths: str) -> list[SourceFile]:
    return [SourceFile(path, "1", 10) for path in paths]


def test_which_files_are_manifests() -> None:
    """Below the base path; a folder with a manifest owns what lies in and below it."""
    paths = (
        "x/a/manifest.yaml", "x/a/other.yaml", "x/a/deep/data.yml", "x/a/deep/b/manifest.yml",
        "x/b.yaml", "x/.c.yaml", "x/.github/w.yml", "y/d.yaml", "x/e.json", "xy/f.yaml",
    )  # fmt: skip
    chosen, faults = choose_files(files_at(*paths), "x")
    assert [file.path for file in chosen] == [
        "x/a/deep/b/manifest.yml", "x/a/manifest.yaml", "x/b.yaml"
    ]  # fmt: skip
    assert faults == []
    odd = [
        SourceFile("big.yaml", "1", 300_000),
        SourceFile("link.yaml", "1", 5, is_link=True),
        *files_at("../up.yaml", "a\\b.yaml"),
    ]
    chosen, faults = choose_files(odd)
    assert chosen == []
    assert len(faults) == 4


def test_many_deletions_are_refused() -> None:
    """The reason says how many."""
    known = [KnownAsset("a", "a.yaml", "1"), KnownAsset("b", "b.yaml", "1")]
    plan = make_plan("c", files_at("a.yaml"), known, {}, [])
    assert plan.report.deleted == ("b",)
    assert "1 of 2 assets would be deleted, more than 20%" in plan.refusal
    assert plan.report.reason == plan.refusal
