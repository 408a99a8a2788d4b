"""Settings of the serve stage."""

from draftsmith.settings import Settings


class ServeSettings(Settings):
    """The smoke test of the launch that bench repeats."""

    output_tokens: int = 32
