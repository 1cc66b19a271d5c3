"""The release. pyproject.toml takes it from here, through the wheel."""

VERSION = "0.1.0"
