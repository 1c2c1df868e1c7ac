"""Rows of this feature in tables of tests about all components."""

import json

from rl4dialog.core.errors import DataError


def asked(messages, dialogue_format):
    """The prompt of a request to the API server."""
    from echo_model import Echo

    from rl4dialog.features.serving.api_server import ApiError, parse_request

    model = Echo()
    model.dialogue_format = dialogue_format
    try:
        return parse_request(json.dumps({"model": "echo", "messages": messages}).encode(), model, "echo").prompt
    except ApiError as error:
        raise DataError(str(error)) from error


COMMANDS_FOR_A_RUN = ["chat", "ui", "serve", "teach"]
FIRST = ["chat", "ui"]
NEXT = ["chat"]
READERS_OF_MESSAGES = {"serve": asked}
