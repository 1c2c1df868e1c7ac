"""An OpenAI-compatible server for one model: chat completions and the list of models."""

from __future__ import annotations

import asyncio
import hmac
import importlib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rl4dialog.core.api_keys import read_api_key
from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.address import check_address, web_address
from rl4dialog.serving.api_request import ApiError, parse_request
from rl4dialog.serving.chat_model import ChatModel
from rl4dialog.serving.completions import Completions
from rl4dialog.serving.page_guard import App, PageGuard, PageHosts, Send

_GRACE_S = 2  # for answers in progress when the server ends


class ApiGuard(PageGuard):
    """The request filter of the page for this server, which answers errors in OpenAI's format."""

    command = "rl4dialog serve"
    posted = re.compile(".*", re.DOTALL)
    headers = ()

    async def refuse(self, send: Send, status: int, reason: str, kind: str = "application/json") -> None:
        await super().refuse(send, status, json.dumps(ApiError(reason, status).body()), kind)


def load_server() -> Any:
    """Import uvicorn, and check that starlette is there."""
    try:
        importlib.import_module("starlette")
        return importlib.import_module("uvicorn")
    except ImportError as error:
        raise ConfigError(
            f"rl4dialog serve needs the packages starlette and uvicorn: pip install 'rl4dialog[serve]' ({error})"
        ) from error


def make_app(model: ChatModel, name: str, hosts: PageHosts, api_key: str | None = None) -> App:
    """Build the server's ASGI app.

    Args:
        model: The model.
        name: Its name in requests and answers.
        hosts: Host names that the server answers to.
        api_key: Key that requests must send; ``None`` if they need none.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    completions = Completions(model, name)
    listed = {"id": name, "object": "model", "created": 0, "owned_by": "rl4dialog"}

    def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            routes = "POST /v1/chat/completions, GET /v1/models"
            error = ApiError(
                f"{request.method} {request.url.path} is not supported; known: {routes}", error.status_code
            )
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), error.status)

    def check_key(request: Request) -> None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if api_key is not None and not hmac.compare_digest(sent.encode(), api_key.encode()):
            raise ApiError("the API key is missing or wrong", 401, code="invalid_api_key")

    async def has_left(request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async def chat(request: Request) -> Response:
        check_key(request)
        asked = parse_request(await request.body(), model, name)
        if asked.stream:
            return StreamingResponse(completions.events(asked), media_type="text/event-stream")
        answer = asyncio.create_task(completions.whole(asked))
        left = asyncio.create_task(has_left(request))
        try:
            await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
            # 499 is nginx's status for a client that left, so nobody receives it.
            return JSONResponse(answer.result()) if answer.done() else Response(status_code=499)
        finally:
            answer.cancel()
            left.cancel()

    async def models(request: Request) -> Response:
        check_key(request)
        return JSONResponse({"object": "list", "data": [listed]})

    async def one_model(request: Request) -> Response:
        check_key(request)
        if request.path_params["id"] != name:
            raise ApiError(f"unknown model; this server has {name!r}", 404, code="model_not_found")
        return JSONResponse(listed)

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{id:path}", one_model),
    ]
    app = Starlette(routes=routes, exception_handlers={ApiError: failed, HTTPException: failed})
    return ApiGuard(app, hosts)


def serve_api(
    model: ChatModel,
    name: str,
    host: str,
    port: int,
    write: Callable[[str], None],
    api_key_env: str | None = None,
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serve a model until Ctrl-C.

    Args:
        model: The model.
        name: Its name in requests and answers.
        host: Address to listen on.
        port: Port to listen on.
        write: Prints text verbatim.
        api_key_env: Name of the environment variable with the key that requests must send; by default they need none.
        allow_hosts: Additional host names that the server answers to; see `PageHosts`.
    """
    uvicorn = load_server()
    check_address(host, port)
    api_key = None if api_key_env is None else read_api_key(api_key_env, "--api_key_env")
    app = make_app(model, name, PageHosts(host, port, allow_hosts), api_key)
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", lifespan="off", timeout_graceful_shutdown=_GRACE_S
    )
    write(f"{name} is at {web_address(host, port)}/v1; press Ctrl-C to stop.\n")
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run()
