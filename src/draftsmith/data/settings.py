"""Settings of the data stage."""

from pydantic import Field

from draftsmith.settings import Settings


class DataSettings(Settings):
    """The prompt mix and how the target answers it."""

    written: int = Field(default=900, ge=0, description="training prompts taken from the project's own templates")
    synthesised: int = Field(default=300, ge=0, description="training prompts that the target writes itself")
    heldout: int = Field(default=96, ge=1, description="prompts kept out of training, in the same proportions")
    max_answer_tokens: int = 128
    temperature: float = 0.0
    synthesis_temperature: float = 0.9
    synthesis_max_tokens: int = 80
    concurrency: int = 64
    replica_env: tuple[dict[str, str], ...] = Field(default=({},), description="one engine is started per entry, with these variables added")
    budget_s: float | None = Field(default=None, description="stop asking for new training answers after this time; what is there is used")
    seed: int = 0
