"""Settings of the serve stage."""

from pydantic import Field

from draftsmith.settings import Settings


class ServeSettings(Settings):
    """The smoke test of the launch that bench repeats."""

    output_tokens: int = Field(default=64, ge=2)
    min_rounds: int = Field(default=8, ge=1, description="rounds below which accept_len of exactly 1 proves nothing")
