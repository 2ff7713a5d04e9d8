"""Version of the package, which pyproject.toml, commands and results read."""

__version__ = "0.4.0"
