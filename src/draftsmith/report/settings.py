"""Settings of the report stage."""

from draftsmith.settings import Settings


class ReportSettings(Settings):
    """What the report shows."""

    title: str | None = None
    samples_shown: int = 3
