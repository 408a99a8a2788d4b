"""Settings of the report stage."""

from pydantic import Field

from draftsmith.settings import Settings


class ReportSettings(Settings):
    """What the report shows."""

    title: str | None = None
    samples_shown: int = Field(default=3, ge=0)
