"""What the demonstration leaves behind: ``report.json`` and one page that needs nothing else.

The page has the verdict, what each change of the members cost, a picture of the probe's latency
over time, the comparison and the query. Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

JSON_NAME: Final = "report.json"
PAGE_NAME: Final = "report.html"
BUCKETS: Final = 480
"""Columns of the picture; each shows the slowest and the middle call of its time."""
WIDTH, HEIGHT = 1000, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 84, 34
LABEL_WIDTH: Final = 150
LABEL_HEIGHT: Final = 38
"""A label that would lie upon the one before it goes so much higher, twice at most."""
LATENCY_LEAST_MS: Final = 0.1
"""Lower end of the picture's logarithmic scale."""

Json = Mapping[str, Any]
Sample = Sequence[float]
"""Begin and duration in seconds."""


def write_report(folder: Path, report: Json, samples: Sequence[Sample]) -> None:
    """Write both files.

    Args:
        folder: An existing folder.
        report: The document.
        samples: Begin (seconds from the start of the demonstration) and duration of each call
            of the probe.
    """
    (folder / JSON_NAME).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (folder / PAGE_NAME).write_text(page(report, samples), encoding="utf-8")


def stall_between(samples: Sequence[Sample], begin_s: float, end_s: float) -> float:
    """The longest call that ran at some time between two moments, in seconds."""
    return max(
        (took for start, took in samples if start <= end_s and start + took >= begin_s),
        default=0.0,
    )


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which a share of the sorted values lies; 0 when there are none."""
    if not sorted_values:
        return 0.0
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


# -- the picture --------------------------------------------------------------------------


class _Scale:
    """Seconds and milliseconds to places in the picture."""

    def __init__(self, samples: Sequence[Sample], changes: Sequence[Json]) -> None:
        ends = [start + took for start, took in samples]
        ends += [change["at_s"] + change["time_to_safe_s"] for change in changes]
        self.first_s = min((start for start, _ in samples), default=0.0)
        self.last_s = max(max(ends, default=1.0), self.first_s + 1.0)
        slowest_ms = max((took * 1000 for _, took in samples), default=10.0)
        self.decades = max(2, math.ceil(math.log10(max(slowest_ms, 1.0) / LATENCY_LEAST_MS)))

    def x(self, moment_s: float) -> float:
        """Place of a moment."""
        share = (moment_s - self.first_s) / (self.last_s - self.first_s)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def y(self, latency_ms: float) -> float:
        """Place of a latency, on a logarithmic scale."""
        height = math.log10(max(latency_ms, LATENCY_LEAST_MS) / LATENCY_LEAST_MS) / self.decades
        return HEIGHT - BOTTOM - height * (HEIGHT - TOP - BOTTOM)


def picture(samples: Sequence[Sample], changes: Sequence[Json]) -> str:
    """The probe's latency over time as SVG, with the changes of the members marked."""
    scale = _Scale(samples, changes)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="latency of the probe over time, with join, kill and leave marked">'
    ]
    parts += _grid(scale)
    parts += [_zone(scale, change) for change in changes]
    parts += _curves(scale, samples)
    parts += _marks(scale, changes)
    parts.append("</svg>")
    return "\n".join(parts)


def _grid(scale: _Scale) -> list[str]:
    parts = []
    for power in range(scale.decades + 1):
        latency_ms = LATENCY_LEAST_MS * 10**power
        y = scale.y(latency_ms)
        label = f"{latency_ms:g} ms" if latency_ms < 1000 else f"{latency_ms / 1000:g} s"
        parts.append(
            f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
            f'<text class="axis" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        )
    step = _time_step(scale.last_s - scale.first_s)
    tick = math.ceil(scale.first_s / step) * step
    while tick <= scale.last_s:
        x = scale.x(tick)
        parts.append(
            f'<text class="axis" x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">'
            f"{tick:g} s</text>"
        )
        tick += step
    return parts


def _time_step(span_s: float) -> float:
    for step in (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0):
        if span_s / step <= 12:
            return step
    return 120.0


def _curves(scale: _Scale, samples: Sequence[Sample]) -> list[str]:
    """A line from the middle to the slowest call per column, and a dot at the slowest."""
    columns: dict[int, list[float]] = {}
    span = scale.last_s - scale.first_s
    for start, took in samples:
        at = min(BUCKETS - 1, int((start - scale.first_s) / span * BUCKETS))
        columns.setdefault(at, []).append(took * 1000)
    spikes, middle = [], []
    for at in sorted(columns):
        values = sorted(columns[at])
        x = scale.x(scale.first_s + (at + 0.5) / BUCKETS * span)
        half = values[len(values) // 2]
        spikes.append(f"M{x:.1f} {scale.y(half):.1f}V{scale.y(values[-1]):.1f}")
        middle.append(f"{x:.1f},{scale.y(half):.1f}")
    return [
        f'<path class="spike" d="{"".join(spikes)}"/>',
        f'<polyline class="middle" points="{" ".join(middle)}"/>',
    ]


def _zone(scale: _Scale, change: Json) -> str:
    left = scale.x(change["at_s"])
    right = scale.x(change["at_s"] + change["time_to_safe_s"])
    return (
        f'<rect class="zone {html.escape(change["kind"])}" x="{left:.1f}" y="{TOP}" '
        f'width="{max(2.0, right - left):.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
    )


def _marks(scale: _Scale, changes: Sequence[Json]) -> list[str]:
    """A line and a label per change; labels that are close to each other are stacked."""
    parts = []
    before, level = -float(LABEL_WIDTH), 0
    for change in changes:
        x = scale.x(change["at_s"])
        level = (level + 1) % 2 if x - before < LABEL_WIDTH else 0
        before = x
        parts.append(_mark(x, TOP - level * LABEL_HEIGHT, change))
    return parts


def _mark(x: float, bottom: float, change: Json) -> str:
    kind = html.escape(change["kind"])
    stall = f"longest stall {_time(change['longest_stall_s'])}"
    anchor, shift = ("end", -6) if x > WIDTH - LABEL_WIDTH else ("start", 6)
    return (
        f'<line class="mark {kind}" x1="{x:.1f}" y1="{bottom - 32}" x2="{x:.1f}" '
        f'y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="label {kind}" x="{x + shift:.1f}" y="{bottom - 22}" '
        f'text-anchor="{anchor}">{kind}</text>'
        f'<text class="axis" x="{x + shift:.1f}" y="{bottom - 7}" text-anchor="{anchor}">'
        f"{stall}</text>"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


# -- the page -----------------------------------------------------------------------------


def page(report: Json, samples: Sequence[Sample]) -> str:
    """The page as HTML."""
    good = bool(report["verdict"]["good"])
    rows = report["tables"]
    return _PAGE.format(
        verdict_class="good" if good else "bad",
        verdict=html.escape(report["verdict"]["text"]),
        cards="\n".join(_cards(report)),
        picture=picture(samples, report["events"]),
        changes=_table(
            ["change", "member", "safe again after", "copies moved", "least possible",
             "backups promoted", "longest stall", "exit status"],
            [
                [e["kind"], e["member"], f"{e['time_to_safe_s']:.1f} s", e["copies"],
                 e["least_copies"], e["promotions"], _time(e["longest_stall_s"]),
                 "" if e["exit_status"] is None else e["exit_status"]]
                for e in report["events"]
            ],
        ),
        tables=_table(
            ["table", "rows", "equal", "different", "missing", "extra"],
            [[t["table"], t["rows"], t["same"], t["different"], t["missing"], t["extra"]]
             for t in rows],
        ),
        examples=_examples(rows),
        query=_table(
            ["carrier", "name", "flights", "mean delay (min)", "late by over 15 min (%)"],
            [[q["carrier"], q["name"], q["flights"], q["mean_delay_min"], q["late_percent"]]
             for q in report["query"]],
        ),
        foot=html.escape(
            f"Spark {report['spark_version']}, {report['partitions_read']} partitions read, "
            f"{report['seconds']:.0f} s in all. Probe: median {report['probe']['median_ms']:.1f} ms"
            f", 99th percentile {report['probe']['p99_ms']:.1f} ms, {report['probe']['unknown']} "
            "writes of unknown outcome."
        ),
    )  # fmt: skip


def _cards(report: Json) -> list[str]:
    loads = report["load"]
    cards = [
        (f"{report['rows_loaded']:,}", "flights loaded by Spark"),
        (f"{report['rows_verified']:,}", "read back equal, every column"),
        (f"{report['rows_missing'] + report['rows_different']:,}", "rows missing or different"),
        (f"{report['acknowledged_writes']:,}", "writes acknowledged to the probe"),
        (f"{report['lost_writes']:,}", "of them lost"),
        (f"{loads['flights_rows_per_s']:,.0f}", "flights per second into the cluster"),
    ]
    return [f'<div class="card"><b>{value}</b><span>{text}</span></div>' for value, text in cards]


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "\n".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:,.1f}</td>'
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def _examples(tables: Sequence[Json]) -> str:
    lines = [
        f"{table['table']}, {kind}: {example}"
        for table in tables
        for kind, examples in table["examples"].items()
        for example in examples
    ]
    if not lines:
        return ""
    return "<pre>" + html.escape("\n".join(lines)) + "</pre>"


_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>whimbrel demo</title>
<style>
:root {{
  color-scheme: light dark;
  --back: #f7f6f2; --sheet: #ffffff; --ink: #1d2327; --soft: #65707a; --line: #e3e1da;
  --blue: #2b6cb0; --join: #2f855a; --kill: #c53030; --leave: #b7791f;
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --back: #14181c; --sheet: #1c2228; --ink: #e8ebed; --soft: #97a3ad; --line: #303942;
    --blue: #63a4e8; --join: #5cc28d; --kill: #f17a7a; --leave: #e0ad55;
  }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
main {{ max-width: 1080px; margin: 0 auto; padding: 32px 20px 56px; }}
h1 {{ font-size: 26px; margin: 0 0 4px; letter-spacing: -0.01em; }}
h2 {{ font-size: 17px; margin: 0 0 12px; }}
p {{ margin: 0 0 12px; color: var(--soft); max-width: 76ch; }}
section {{ background: var(--sheet); border: 1px solid var(--line); border-radius: 12px;
  padding: 20px 22px; margin-top: 18px; overflow-x: auto; }}
.verdict {{ font-weight: 600; border-left: 5px solid var(--join); }}
.verdict.bad {{ border-left-color: var(--kill); color: var(--kill); }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin-top: 18px; }}
.card {{ background: var(--sheet); border: 1px solid var(--line); border-radius: 12px;
  padding: 14px 16px; }}
.card b {{ display: block; font-size: 23px; font-variant-numeric: tabular-nums; }}
.card span {{ color: var(--soft); font-size: 13px; line-height: 1.35; display: block; }}
svg {{ width: 100%; height: auto; display: block; min-width: 640px; }}
.grid {{ stroke: var(--line); stroke-width: 1; }}
.axis {{ fill: var(--soft); font-size: 12px; }}
.spike {{ stroke: var(--blue); stroke-opacity: .45; stroke-width: 1.7; fill: none; }}
.middle {{ stroke: var(--blue); stroke-width: 1.6; fill: none; stroke-linejoin: round; }}
.zone {{ opacity: .12; }}
.mark {{ stroke-width: 1.5; stroke-dasharray: 4 3; }}
.label {{ font-size: 13px; font-weight: 700; }}
.zone.join, .label.join {{ fill: var(--join); }} .mark.join {{ stroke: var(--join); }}
.zone.kill, .label.kill {{ fill: var(--kill); }} .mark.kill {{ stroke: var(--kill); }}
.zone.leave, .label.leave {{ fill: var(--leave); }} .mark.leave {{ stroke: var(--leave); }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
th {{ text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; }}
th, td {{ padding: 6px 10px 6px 0; border-bottom: 1px solid var(--line); }}
td {{ font-variant-numeric: tabular-nums; }}
tr:last-child td {{ border-bottom: 0; }}
pre {{ white-space: pre-wrap; font-size: 12.5px; color: var(--kill); }}
footer {{ margin-top: 18px; color: var(--soft); font-size: 13px; }}
</style>
</head>
<body>
<main>
<h1>Nothing may get lost</h1>
<p>Spark loads a year of flights into a cluster while its members come, leave and die, and reads
everything back. A client writes and reads numbers the whole time and keeps its own ledger.</p>
<section class="verdict {verdict_class}">{verdict}</section>
<div class="cards">
{cards}
</div>
<section>
<h2>Latency of the probe</h2>
<p>Each column is a slice of time: the line is its median call, the bar reaches up to its slowest.
Shaded: from the change until the cluster was safe again.</p>
{picture}
</section>
<section>
<h2>Changes of the members</h2>
{changes}
</section>
<section>
<h2>Source and map compared</h2>
{tables}
{examples}
</section>
<section>
<h2>Arrival delay by carrier, asked of the cluster through Spark</h2>
{query}
</section>
<footer>{foot}</footer>
</main>
</body>
</html>
"""
