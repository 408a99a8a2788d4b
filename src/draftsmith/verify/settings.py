"""Settings of the verify stage."""

from pydantic import Field

from draftsmith.settings import Settings


class VerifySettings(Settings):
    """How the exported drafter and the speculative server are held against the reference."""

    prompts: int = Field(default=24, ge=1, description="held-out prompts, spread evenly over the held-out file")
    output_tokens: int = Field(default=64, ge=2)
    concurrency: int = Field(default=4, ge=1)
    float32: bool | None = Field(
        default=None,
        description="also a pair of servers in float32, whose answers must be equal; null: as far as the engine can (not SGLang)",
    )
    near_tie_logits: float = Field(default=0.5, ge=0, description="a divergence below this float32 logit gap is a near-tie of the target")
    near_tie_logits_float32: float = Field(default=1e-3, ge=0, description="the same for the float32 servers")
    max_accept_len_gap: float = Field(default=0.05, ge=0, description="largest relative gap between replayed and served accept_len")
    replica_env: tuple[dict[str, str], ...] = Field(default=({}, {}), min_length=2, description="variables of the two servers side by side")
