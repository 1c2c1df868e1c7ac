"""API keys, which come from environment variables and are in no config, message or file."""

from __future__ import annotations

import os

from rl4dialog.core.errors import ConfigError


def read_api_key(variable: str, key: str) -> str:
    """Return the API key in an environment variable.

    Args:
        variable: Name of the environment variable.
        key: Name of the setting that names the variable, for messages.
    """
    found = os.environ.get(variable, "").strip()  # a file's line end would be an invalid header
    if not found:
        raise ConfigError(f"{key} is {variable!r}, but this environment variable is not set")
    if not (found.isascii() and found.isprintable()):
        raise ConfigError(
            f"the environment variable {variable} of {key} contains characters that are not printable ASCII, so it is "
            f"not an API key"
        )
    return found
