"""Write the JSON Schemas of report.json that the package ships. A report that changes needs a new number, unless it only gains keys."""

from __future__ import annotations

from draftsmith.report import content, join


def main() -> None:
    for model, path in ((content.Report, content.SCHEMA_FILE), (join.Joined, join.SCHEMA_FILE)):
        path.write_text(content.json_schema(model))
        print(path)


if __name__ == "__main__":
    main()
