"""``whimbrel audit``: compares the copies of every entry while the cluster serves."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from whimbrel.cli.http import DEFAULT_URL, Admin, AdminUrl, AsJson, print_json
from whimbrel.cli.jobs import Json, await_job
from whimbrel.errors import GridError, OperationError, UsageError

PATIENCE_S = 15.0
"""How long it is asked for while the member does not answer for it."""
LINES_MAX = 20
"""Differences, and copies that were not compared, that people are shown."""
MAP = "map"
EXIT_DIFFERS = 1
EXIT_NOT_DONE = 2


def audit(
    online: Annotated[
        bool, typer.Option("--online", help="Compare inside the grid; clients go on meanwhile")
    ] = False,
    pattern: Annotated[
        str, typer.Option("--map", metavar="PATTERN", help="Only maps of such names: * and ?")
    ] = "",
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Only such structures: map, queue, ...")
    ] = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Make backups that differ as their primary is")
    ] = False,
    as_json: AsJson = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Compare every backup with its primary by what is in them, entry by entry.

    A write that is under way is never told as a difference. Maps, queues, ring buffers and
    multimaps are compared; locks, and what calls were answered, are not. The member that is asked
    drives it; one partition of each primary is compared at a time. It ends with this command.

    Exit codes: 0 all is equal, or was made so; 1 something differs; 2 something could not be
    compared, or nothing; 3 nobody answers.

    Examples: whimbrel audit --online; whimbrel audit --online --map 'flights*' --repair;
    whimbrel audit --online --kind queue --json
    """
    if not online:
        raise UsageError("say --online: replicas are compared inside the grid, by its members")
    if pattern and kind not in ("", MAP):
        raise UsageError(f"--map is for maps, not for {kind!r}")
    wanted = f"{MAP}/{pattern}" if pattern else f"{kind}/*" if kind else ""
    try:
        found = _done(Admin(admin), {"pattern": wanted, "repair": repair}, is_watched=not as_json)
    except OperationError as problem:
        raise UsageError(f"the audit could not be done: {problem}") from None
    if as_json:
        print_json(_shaped(found))
    else:
        _show(found)
    raise typer.Exit(_code(found, is_repair=repair))


def _shaped(found: Json) -> Json:
    """The document with maps apart from other kinds, as audits of other ways tell them."""
    rest = {name: value for name, value in found.items() if name != "structures"}
    maps: list[Json] = []
    others: list[Json] = []
    for one in found["structures"]:
        fields = {name: value for name, value in one.items() if name not in ("kind", "name")}
        if one["kind"] == MAP:
            maps.append({"map": one["name"], **fields})
        else:
            others.append(one)
    return {"equal": rest.pop("equal"), "maps": maps, "others": others, **rest}


def _code(found: Json, *, is_repair: bool) -> int:
    differing = found["missing"] + found["different"] + found["extra"]
    if differing and not (is_repair and found["repaired"] >= differing):
        return EXIT_DIFFERS
    return 0 if found["complete"] else EXIT_NOT_DONE


def _done(port: Admin, order: Json, *, is_watched: bool) -> Json:
    """Have an audit done; its document. Who interrupts it ends it.

    Raises:
        OperationError: It was refused, or ended without a result.
    """
    name: str = port.post("audits", order)["audit"]
    try:
        found = await_job(
            port,
            "audits/job",
            name,
            _described,
            patience_s=PATIENCE_S,
            words="audit",
            is_watched=is_watched,
        )
    except KeyboardInterrupt:
        with contextlib.suppress(GridError, typer.Exit):
            port.post("audits/cancel", {"audit": name})
        raise
    if found["problem"]:
        raise OperationError(found["problem"])
    document: Json = found["document"]
    return document


def _described(found: Json) -> str:
    from whimbrel.cli.render import number

    return f"audit: {number(found['rows'])} entries, {number(found['differing'])} differ"


def _show(found: Json) -> None:
    from whimbrel.cli.render import console, number, print_rows, safe, seconds, table

    lines = [
        (
            safe(f"{row['kind']}/{row['name']}"),
            *(number(row[name]) for name in ("rows", "replicas", "missing", "different", "extra")),
            number(row["repaired"]),
            number(row["not_compared"]) if row["not_compared"] else "",
        )
        for row in found["structures"]
    ]
    made = table(
        "structure", ">entries", ">copies", ">missing", ">different", ">extra", ">repaired",
        ">not compared",
    )  # fmt: skip
    print_rows(made, lines, "there are no structures")
    out = console()
    for one in found["differences"][:LINES_MAX]:
        keys = ", ".join(one["keys"])
        out.print(
            f"partition {one['partition']}, {safe(one['structure'])} at {_member(one)}: "
            f"{one['missing']} missing, {one['different']} different, {one['extra']} extra "
            f"({safe(keys)}){_then(one)}"
        )
    for one in found["not_compared"][:LINES_MAX]:
        what = safe(one["structure"] or "nothing of it")
        out.print(
            f"partition {one['partition']}, {what} at {_member(one)}: not compared: "
            f"{safe(one['reason'])}"
        )
    out.print(f"{_sentence(found)} ({seconds(found['elapsed_s'])})")


def _member(one: Json) -> str:
    from whimbrel.cli.render import safe

    return safe(one["address"] or one["member"] or "any member")


def _then(one: Json) -> str:
    from whimbrel.cli.render import safe

    if one["reason"]:
        return f": {safe(one['reason'])}"
    return ": repaired" if one["repaired"] else ""


def _sentence(found: Json) -> str:
    from whimbrel.cli.render import number

    differing = found["missing"] + found["different"] + found["extra"]
    if found["equal"]:
        return "every copy is equal to its primary"
    words = []
    if differing:
        words.append(f"{number(differing)} entries differ, {number(found['repaired'])} repaired")
    if not found["complete"]:
        words.append("not everything could be compared")
    return "; ".join(words)
