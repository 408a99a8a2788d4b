"""Settings of the verify stage."""

from draftsmith.settings import Settings


class VerifySettings(Settings):
    """How the exported drafter and the speculative server are held against the reference."""

    prompts: int = 24
    output_tokens: int = 64
    concurrency: int = 4
    near_tie_logits: float = 0.5
    max_accept_len_gap: float = 0.05
    replica_env: tuple[dict[str, str], ...] = ({}, {})
