"""How every benchmark reports: one table on the terminal and one JSON file, `bench/out/NAME.json`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

OUT = Path(__file__).parent / "out"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure, beside a peer's figure from the same run where there is one."""

    metric: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's; None without a peer figure."""
        return self.value / self.peer_value if self.peer_value else None


def write_report(name: str, rows: list[Row]) -> Path:
    """Print the rows as a table and write them to bench/out/NAME.json; returns the file's path.

    The file is a list of `{metric, value, unit, peer, peer_value, ratio}`, `null` where there is no peer.
    """
    print(format_table(rows))
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=2) + "\n")
    return path


def format_table(rows: list[Row]) -> str:
    """The rows as aligned plain text, one line each under a header."""
    lines = [("metric", "value", "unit", "peer", "peer value", "ratio")]
    lines += [
        (
            row.metric,
            _figure(row.value),
            row.unit,
            row.peer or "",
            _figure(row.peer_value),
            "" if row.ratio is None else f"{row.ratio:.2f}x",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    numeric = {1, 4, 5}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
