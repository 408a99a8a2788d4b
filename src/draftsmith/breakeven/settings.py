"""Settings of the breakeven stage."""

from draftsmith.settings import Settings


class BreakevenSettings(Settings):
    """Where T_ar and T_round are measured."""

    depths: tuple[int, ...] = (1, 3)
    concurrency: tuple[int, ...] = (1, 8)
    output_tokens: int = 64
    requests_per_slot: int = 2
    seed: int = 0
