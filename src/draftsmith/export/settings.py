"""Settings of the export stage."""

from draftsmith.settings import Settings


class ExportSettings(Settings):
    """How the drafter folder is written."""

    dtype: str = "bfloat16"
    license: str = "apache-2.0"
