"""Settings of the check stage."""

from pydantic import Field

from draftsmith.settings import Settings


class CheckSettings(Settings):
    """What the deployment is meant to carry; findings are judged against it."""

    concurrency: int = Field(default=8, ge=1)
    context_length: int = Field(default=1024, ge=1)
    training_tokens: int = Field(default=300_000, ge=0, description="tokens that capture is expected to store, for the disk estimate only")
