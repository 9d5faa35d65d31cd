"""``bls-agent doctor``: check a live Redis against the protocols; only read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

from typer import Option

from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, normalise
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.doctor.examine import examine
from bls_agent.ops.doctor.report import Group, Report, show_key, word
from bls_agent.ops.doctor.rule import Severity, Source
from bls_agent.ops.terminal import Cell, Screen, visible, wrap
from bls_agent.ops.texts import Texts, load_texts

INDENT: Final = "    "
STYLES: Final = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTE: "bold cyan",
}


@command("doctor")
async def doctor(
    invocation: Invocation,
    project: Annotated[str | None, Option(metavar="NAME", show_default=False)] = None,
) -> Exit:
    """Check a live Redis; exit 3 if there is an error or a warning."""
    texts = load_texts("doctor", invocation.language)
    if project is not None:
        project = normalise(invocation, project)
    with invocation.waiting("waiting_redis") as progress:

        def tell(seen: int, total: int) -> None:
            progress.tell(texts["looking"].format(seen=f"{seen:,}", total=f"{total:,}"))

        report = await examine(invocation.redis, project=project or "", progress=tell)
    if invocation.json:
        invocation.out.json(_in_words(report, texts))
    elif invocation.out.terminal:
        _show(report, texts, invocation.out)
    else:
        _write_rows(report, texts, invocation)
    return Exit.DONE if report.healthy else Exit.UNHEALTHY


def _in_words(report: Report, texts: Texts) -> dict[str, Any]:
    record = report.to_dict()
    for group, shown in zip(report.groups, record["findings"], strict=True):
        for finding, one in zip(group.findings, shown["shown"], strict=True):
            one.update(word(finding, texts)._asdict())
    return record


def _write_rows(report: Report, texts: Texts, invocation: Invocation) -> None:
    rows: list[Sequence[Cell]] = []
    for group in report.groups:
        for finding in group.findings:
            place = [group.severity, group.rule, show_key(finding.key)]
            wrong, contract, remedy = word(finding, texts)
            page = name_page(finding.source, texts) or finding.source
            rows.append([*place, wrong, page, contract, remedy])
        if group.more:
            more = texts["more"].format(count=f"{group.more:,}")
            rows.append([group.severity, group.rule, "", more, "", "", ""])
    invocation.out.table(rows)
    for sentence, style in _summary(report, texts):
        invocation.err.paragraph(sentence, style)


def _show(report: Report, texts: Texts, screen: Screen) -> None:
    """Write the findings for people, the worst findings first, and then a summary."""
    for severity in Severity:
        groups = [group for group in report.groups if group.severity is severity]
        if groups:
            title = f"{texts[f'severity_{severity}']} ({report.count(severity):,})"
            if groups[0] is not report.groups[0]:
                screen.write("")
            screen.line((title, STYLES[severity]))
        for group in groups:
            _show_group(group, texts, screen)
    for sentence, style in _summary(report, texts):
        screen.paragraph(sentence, style)


def _show_group(group: Group, texts: Texts, screen: Screen) -> None:
    """Write the findings of a rule, with one explanation for consecutive similar ones."""
    screen.write("")
    explained: tuple[str, ...] = ()
    for finding in group.findings:
        wrong, *rest = word(finding, texts)
        explanation = (name_page(finding.source, texts) or texts["why"], *rest)
        if explained and explanation != explained:
            _explain(group.rule, explained, texts, screen)
        explained = explanation
        name = show_key(finding.key) or finding.values.get("server", "")
        _paragraph(screen, f"{name}: " * bool(name), wrong)
    if group.more:
        more = texts["more"].format(count=f"{group.more:,}")
        screen.line((f"  {more}", STYLES[group.severity]))
    _explain(group.rule, explained, texts, screen)


def name_page(source: Source, texts: Texts) -> str:
    """Return the page and its heading; ``""`` if no page describes the rule."""
    page, found, _ = source.partition(".md#")
    if not found:
        return ""
    heading = texts[f"heading_{source.name.lower()}"]
    return texts["described_in"].format(page=page, heading=heading)


def _paragraph(screen: Screen, head: str, text: str, style: str = "bold") -> None:
    """Write a head in ``style``, and behind it the text; indent all further lines."""
    shown = visible(head)
    first, *more = wrap(f"{shown}{visible(text)}", screen.columns - len(INDENT))
    if first.startswith(shown):
        screen.line("  ", (shown, style), first[len(shown) :])
    else:  # the head does not fit on one line
        screen.line("  ", first)
    for line in more:
        screen.line(INDENT, line)


def _explain(
    rule: str, explained: tuple[str, ...], texts: Texts, screen: Screen
) -> None:
    where, contract, remedy = explained
    _paragraph(screen, f"  {where} ({rule}): ", contract, "dim")
    _paragraph(screen, f"  {texts['todo']}: ", remedy, "dim")


def _summary(report: Report, texts: Texts) -> Iterator[tuple[str, str]]:
    yield "", ""
    for facts in report.servers:
        name = "server" if facts.info else "server_unknown"
        yield texts[name].format(
            family=facts.family, version=facts.version, address=facts.address,
            ms=f"{facts.rtt * 1000:.1f}",
        ), ""  # fmt: skip
    yield texts["keys"].format(
        seen=f"{report.seen:,}", foreign=f"{report.foreign:,}",
        seconds=f"{report.seconds:.1f}",
    ), ""  # fmt: skip
    errors, warnings, notes = map(report.count, Severity)
    if not report.healthy:
        sentence = texts["unhealthy"].format(
            errors=f"{errors:,}", warnings=f"{warnings:,}", notes=f"{notes:,}"
        )
        yield sentence, "bold red" if errors else "bold yellow"
    elif notes:
        yield texts["healthy_notes"].format(notes=f"{notes:,}"), "bold green"
    else:
        yield texts["healthy"], "bold green"
