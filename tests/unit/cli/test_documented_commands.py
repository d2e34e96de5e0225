"""Every `cachefs` command line in the docs and in the help is one that this version takes: the
command is there, and so is each of its options. Click's own parser judges; nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest

from cachefs.cli.app import COMMANDS, cachefs

ROOT: Final = Path(__file__).resolve().parents[3]
PAGES: Final = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
MUST_HAVE: Final = {"README.md": 40, "operations.md": 100, "security.md": 1}  # command lines
PROMPT: Final = re.compile(r"^(?:\$ )?(?:ExecStart=)?(?:[A-Z_]+=\S* )*(?:\S*/)?cachefs ([^─]*)$")
SPAN: Final = re.compile(r"`(?:\$ )?cachefs ([^`]*)`")
FENCE: Final = re.compile(r"^```")
OPTIONAL: Final = re.compile(r"(?<!\S)\[([^\]]*)\]")
ELSEWHERE: Final = {"|", ">", "2>", "<", "&&", "||", ";", "&"}  # ends the command in a shell
DOTS: Final = "..."


class Line(NamedTuple):
    """A command line, without `cachefs`, and where it is written."""

    where: str
    text: str


def words_of(text: str) -> list[str]:
    """Returns the arguments of a command line: of `[A | B]` the first, without comments, and
    without what the shell does with the command."""
    plain = OPTIONAL.sub(lambda found: found[1].replace("\\|", "|").split("|")[0], text)
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    for word in lexer:
        if word in ELSEWHERE or word.startswith("#"):
            break
        words.append(word)
    return words


def problem(text: str) -> str:
    """Returns what this version does not know in a command line, or ""."""
    command: click.Command = cachefs
    context = command.context_class(command, info_name="cachefs", **command.context_settings)
    rest = words_of(text)
    while True:
        try:
            _, rest, _ = command.make_parser(context).parse_args(rest)
        except click.UsageError as err:
            return err.format_message()
        if not isinstance(command, click.Group) or not rest:
            left = [word for word in rest if word != DOTS]
            return f"Got unexpected arguments: {left}" if left else ""
        name, *rest = rest
        found = command.get_command(context, name)
        if found is None:
            return f"No such command {name!r}."
        command = found
        context = command.context_class(command, info_name=name, parent=context)


def in_text(text: str, where: str) -> Iterator[Line]:
    """Yields the command lines of a page, or of a help: whole lines of its code, and `spans`."""
    joined = re.sub(r"\\\n\s*", "", text)
    is_code = False
    for number, line in enumerate(joined.splitlines(), 1):
        if FENCE.match(line):
            is_code = not is_code
        prompt = PROMPT.match(line.strip()) if is_code or line.startswith("    ") else None
        found = [prompt[1]] if prompt else SPAN.findall(line)
        yield from (Line(f"{where}:{number}", one) for one in found)


def commands(
    group: click.Group = cachefs, name: str = "cachefs"
) -> Iterator[tuple[str, click.Command]]:
    """Yields every command, those of groups as well, with the name that a user types."""
    context = click.Context(group, info_name=name)
    for one in group.list_commands(context):
        found = group.get_command(context, one)
        assert found is not None
        yield f"{name} {one}", found
        if isinstance(found, click.Group):
            yield from commands(found, f"{name} {one}")


def in_pages() -> Iterator[Line]:
    for page in PAGES:
        yield from in_text(page.read_text(), page.name)


def in_helps() -> Iterator[Line]:
    for name, command in commands():
        for line in (command.help or "").splitlines():
            indented = f"    {line.strip()}"
            yield from in_text(indented, f"{name} --help")


def complaints(lines: Iterable[Line]) -> list[str]:
    """Returns a line for each command line that this version does not take."""
    judged = ((line, problem(line.text)) for line in lines)
    return [f"{line.where}: cachefs {line.text}: {what}" for line, what in judged if what]


def test_every_command_line_of_the_docs_is_known() -> None:
    lines = list(in_pages())
    assert complaints(lines) == []
    for page, least in MUST_HAVE.items():
        count = sum(line.where.startswith(f"{page}:") for line in lines)
        assert count >= least, f"{page}: only {count} command lines were found"


def test_every_example_of_the_helps_is_known() -> None:
    lines = list(in_helps())
    assert len(lines) >= 30
    assert complaints(lines) == []


def test_every_help_has_an_example() -> None:
    without = {
        name for name, command in commands() if f"    {name}" not in f"    {command.help or ''}"
    }
    assert without == {"cachefs version"}


def test_the_tables_of_the_readme_have_every_command() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = {
        word for row in rows for span in re.findall(r"`([^`]*)`", row) for word in span.split()
    }
    assert set(COMMANDS) - named == set()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mont s3://bucket /mnt", "No such command 'mont'"),
        ("jobs frobnicate 3", "No such command 'frobnicate'"),
        ("mount s3://bucket /mnt --cache-sise 3GiB", "--cache-sise"),
        ("load PATH... [--nowait]", "--nowait"),
        ("workers drain node3 --force", "--force"),
        ("umount DIR --lazy=yes", "--lazy"),
        ("worker --tier", "--tier"),
        ("stat PATH PATH", "unexpected"),
    ],
)
def test_what_is_not_there_is_found(text: str, complaint: str) -> None:
    assert complaint in problem(text)


@pytest.mark.parametrize(
    "text",
    [
        "health [DIR | cachefs://MASTER]",
        "du $D/mnt/a $D/mnt/b   # both",
        "sync -R /mnt/data | tail -1",
        "worker --tier ssd:/a:1TiB --tier ...",
        "--version",
    ],
)
def test_placeholders_and_shells_do_no_harm(text: str) -> None:
    assert problem(text) == ""


def test_where_command_lines_are_looked_for() -> None:
    page = "\n".join(
        [
            "Text of `cachefs one` and cachefs two.",
            "",
            "    cachefs three \\",
            "        --flag",
            "",
            "```",
            "$ A=b cachefs four",
            "cachefs: not this; `cachefs five` is meant",
            "ExecStart=/opt/bin/cachefs six",
            "```",
        ]
    )
    assert [line.text for line in in_text(page, "page")] == [
        "one", "three --flag", "four", "five", "six",
    ]  # fmt: skip
