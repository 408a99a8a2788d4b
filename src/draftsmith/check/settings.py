"""Settings of the check stage."""

from draftsmith.settings import Settings


class CheckSettings(Settings):
    """What the deployment is meant to carry; findings are judged against it."""

    concurrency: int = 8
    context_length: int = 1024
