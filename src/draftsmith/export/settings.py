"""Settings of the export stage."""

from typing import Literal

from draftsmith.settings import Settings


class ExportSettings(Settings):
    """How the drafter folder is written."""

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    license: str = "apache-2.0"
