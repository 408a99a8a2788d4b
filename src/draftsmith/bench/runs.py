"""The raw lines of one experiment, read once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from draftsmith.bench.rows import Row, launch_rows, reply_rows
from draftsmith.engines.protocol import Arm
from draftsmith.measure.messages import Reply
from draftsmith.measure.protocol import LAUNCHES, NOISE_PAIR
from draftsmith.measure.recorder import REQUESTS
from draftsmith.measure.statistics import Measured

ARMS: tuple[Arm, Arm] = ("baseline", "speculative")


class Runs:
    """Launches and replies; `valid` leaves out what proves nothing and the launches of the noise floor."""

    def __init__(self, folder: Path, last_pair: int | None = None, with_replies: bool = True) -> None:
        """last_pair: leave out what came after it. with_replies=False: for a look at the rates only."""
        self.folder = folder
        self.launches = [row for row in launch_rows(folder / LAUNCHES) if last_pair is None or row["pair"] <= last_pair]
        paired = [row for row in self.launches if row["pair"] != NOISE_PAIR]
        self.valid = [row for row in paired if not row["invalid"]]
        self.pairs_done = len({row["pair"] for row in paired})
        self.by_cell: dict[tuple[int, str], list[Reply]] = defaultdict(list)
        for place, reply in reply_rows(folder / REQUESTS) if with_replies else ():
            self.by_cell[place].append(reply)

    def of(self, arm: Arm) -> list[Row]:
        return [row for row in self.valid if row["arm"] == arm]

    def cells(self, arm: Arm, label: str) -> list[Row]:
        """This cell of every valid launch of an arm."""
        return [cell for row in self.of(arm) for cell in row["cells"] if cell["label"] == label]

    def replies_by_launch(self, arm: Arm, label: str) -> list[list[Reply]]:
        """Replies of this cell, one list per valid launch of an arm."""
        return [self.by_cell[row["launch"], label] for row in self.of(arm)]

    def replies(self, arm: Arm, label: str) -> list[Reply]:
        """Replies of this cell over all valid launches of an arm."""
        return [reply for replies in self.replies_by_launch(arm, label) for reply in replies]

    def rates(self, label: str) -> list[Measured]:
        """tok_s of this cell by launch."""
        return rates_of(self.valid, label)

    @property
    def noise(self) -> list[Row]:
        """Valid launches of the noise floor."""
        return [row for row in self.launches if row["pair"] == NOISE_PAIR and not row["invalid"]]


def rates_of(launches: Sequence[Row], label: str) -> list[Measured]:
    """tok_s of a cell of these launches."""
    return [
        Measured(row["launch"], row["arm"], cell["tok_s"], row.get("gpu_set", 0))
        for row in launches
        for cell in row["cells"]
        if cell["label"] == label
    ]
