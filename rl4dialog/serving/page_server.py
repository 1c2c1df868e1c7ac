"""Serves the page from this machine, without requests to any other host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.address import check_address, web_address
from rl4dialog.serving.page_frame import load_gradio
from rl4dialog.serving.page_guard import PageGuard, PageHosts

STYLE = Path(__file__).with_name("page.css")
# Two things that Gradio lacks: a label of the box in which a message is edited, for screen readers; and scrolling a
# conversation without buttons with the keyboard.
_ACCESS = """<script>
new MutationObserver(() => {
    for (const box of document.querySelectorAll("textarea.edit-textarea:not([aria-label])")) box.ariaLabel = "New text";
    for (const log of document.querySelectorAll("[role=log]:not([tabindex])")) log.tabIndex = 0;
}).observe(document, {childList: true, subtree: true});
</script>"""


class ServedPage(Protocol):
    """A page: its Gradio app."""

    blocks: Any


def serve(
    page: ServedPage,
    host: str,
    port: int,
    write: Callable[[str], None],
    block: bool = True,
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        page: The page.
        host: Address to listen on.
        port: Port to listen on.
        write: Prints text verbatim.
        block: Whether to wait; otherwise the server runs in a thread until ``page.blocks.close()``.
        allow_hosts: Additional host names that the page answers to; see `PageHosts`.
    """
    check_address(host, port)
    hosts, gradio = PageHosts(host, port, allow_hosts), load_gradio()
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    try:
        page.blocks.queue(default_concurrency_limit=1).launch(
            server_name=host,
            server_port=port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            ssr_mode=False,
            pwa=False,
            enable_monitoring=False,
            footer_links=[],
            show_error=True,
            theme=gradio.themes.Default(primary_hue="blue", **fonts),
            css_paths=STYLE,
            head=_ACCESS,
        )
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({error})") from error
        # In front of Gradio's own middleware, which would answer some requests itself.
    app = page.blocks.app
    app.middleware_stack = PageGuard(app.middleware_stack or app.build_middleware_stack(), hosts)
    if not block:
        return
    with suppress(KeyboardInterrupt):
        write(f"The page is at {web_address(host, port)}; press Ctrl-C to stop.\n")
        threading.Event().wait()
    # Gradio's own wait would block on the connections of open tabs.
    page.blocks.close(verbose=False)
