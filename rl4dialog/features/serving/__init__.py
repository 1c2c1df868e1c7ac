"""Trained models among people: chat, judging and teaching in the terminal and on pages, games, and an API."""

from rl4dialog.core.features import Feature

_MODULES = (*("api_server", "chat", "chat_page", "judging", "page", "server", "teaching", "terminal", "token_colours"),)
FEATURE = Feature(
    "trained models among people: chat, judging and teaching in the terminal and on pages, games, and an API",
    commands=f"{__name__}.commands",
    moved={
        "rl4dialog.commands.talk": f"{__name__}.commands",
        **{f"rl4dialog.serving.{name}": f"{__name__}.{name}" for name in _MODULES},
    },
    page=("chat.md", "serving.md"),
)
