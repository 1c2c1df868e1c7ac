"""Generation with a vLLM server, which can have GPUs of its own, using the policy's current weights.

Every transfer of weights gives them a version that no other has, and replies count only if the server had this version
before and after them. So a server that was restarted, or that another run uses, is noticed.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import secrets
import shutil
import socket
import time
import urllib.parse
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.core.async_calls import AsyncCalls, FinalFailure
from rl4dialog.core.errors import EndpointError, GenerationError
from rl4dialog.core.http_requests import Unreachable, read_api_key, refusal, send
from rl4dialog.features.vllm.backend import VLLMSampler, Written, prompts_of, weights_to_send
from rl4dialog.features.vllm.transfer import ENGINE, Sender, described
from rl4dialog.functional.distributed import all_gather_object, in_main_process, process_index
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.decoding import Obs
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.sharding import whole_lora
from rl4dialog.text.end_of_turn import EndOfTurn

_MAX_REQUESTS = 512
_POLL_S = 1.0
_REACH_S = 5.0
_NO_TOKEN = 2**31 - 1
_NAME = "rl4dialog/"  # with which the versions of runs begin
_FRESH = "default"  # version of the weights that a server has loaded itself
_URL = "generation.url: "
_HOW = "see docs/vllm.md for the command that starts it"
# Settings of requests that vLLM would otherwise take from the model's generation_config.json.
_NEUTRAL = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_THIS_PROCESS = secrets.token_hex(4)
_logger = logging.getLogger(__name__)


class VLLMServerBackend(VLLMSampler):
    """Generates at the server with this ``url``.

    ``max_length`` is that of prompt and reply together, in tokens. The server reads weights at ``transfer_port``, 0 for
    any free port. An answer, and a server that restarts, is waited for ``timeout_s``. With ``ahead`` 1, the first
    replies of a rollout are written during the update before it, and are of the weights before this update. With an
    ``adapter_folder``, which the server reads, too, it gets only the policy's adapters: its own weights must be those
    below them.

    Raises:
        GenerationError: If the server cannot be reached, lacks routes, has another model, or belongs to another run.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        end_of_turn: EndOfTurn,
        max_length: int,
        url: str,
        transfer_port: int = 0,
        timeout_s: float = 600.0,
        api_key_env: str | None = None,
        ahead: int = 0,
        adapter_folder: str | None = None,
    ) -> None:
        super().__init__(model, end_of_turn)
        self._thread = ThreadPoolExecutor(1) if ahead else None
        self._begun: tuple[Any, Future[Written]] | None = None  # what was asked for ahead, and the replies
        self._url, self._timeout_s = url.rstrip("/").removesuffix("/v1"), timeout_s
        self._api_key = api_key_env and read_api_key(api_key_env, "generation.api_key_env")
        self._calls = AsyncCalls(_MAX_REQUESTS, timeout_s, retries=0, key="generation")
        self._n_sent, self._version, self._found = 0, "", ""
        self._adapter_folder = adapter_folder
        self._n_rows, self._max_length, self._name = embedding_rows(model), max_length, ""
        in_main_process(partial(self._connect, transfer_port))

    def _connect(self, port: int) -> None:
        try:
            self._check_server()
            for version in self._versions():
                self._check_owner(version)
            self._sender = self._opened(port)
        except (EndpointError, OSError) as error:
            raise GenerationError(f"{_URL}{error}; {_HOW}") from None
        self._run = f"{_NAME}{self._sender.host}/{self._sender.port}/{_THIS_PROCESS}/{secrets.token_hex(4)}/"

    # -- replies --------------------------------------------------------------------------------------------------

    def _replies(
        self, policy: LMActorCriticPolicy, prompts: list[list[int]], settings: GenerationSettings, limit: int
    ) -> Written:
        """Replies of one version of the weights; those of a server that was lost in between are sampled again.

        Of several processes, only the first talks to the server, for all of them.
        """
        self._is_ahead = False
        if self._begun is not None:
            asked, begun = self._begun
            failure = begun.exception()  # which waits: the server must not get other weights in between
            if asked == (prompts, settings, limit):
                self._begun = None
                if not isinstance(failure, EndpointError):
                    self._is_ahead = True
                    return begun.result()
        of_processes = all_gather_object(prompts)
        first = sum(map(len, of_processes[: process_index()]))
        own = slice(first, first + len(prompts))
        random_state, deadline = torch.get_rng_state(), 0.0
        while True:
            try:
                if in_main_process(self._needs_weights):
                    sent = (weights_to_send if self._adapter_folder is None else whole_lora)(policy)  # by all processes
                    in_main_process(partial(self._bring, sent))
                asked = [*itertools.chain(*of_processes)], settings, limit
                ids, log_probs = in_main_process(partial(self._of_one_version, *asked))
                return ids[own], log_probs[own]
            except EndpointError as error:
                deadline = deadline or time.monotonic() + self._timeout_s
                in_main_process(partial(self._wait_until_back, error, deadline))
                torch.set_rng_state(random_state)

    def generate_ahead(self, obs: Obs, settings: GenerationSettings, limit: int) -> None:
        if self._thread is not None and self._version:
            random = torch.Generator().manual_seed(int(torch.randint(2**31, ())))  # not shared with the update
            asked = prompts_of(obs), settings, limit
            self._begun = asked, self._thread.submit(self._of_one_version, *asked, random)

    def _of_one_version(self, *asked: Any) -> Written:
        written = self._write(*asked)
        if self._served() != self._version:
            raise Unreachable(f"{self._url} had other weights at the end of the replies than at their beginning")
        return written

    def _complete(self, prompts: list[list[int]], params: list[dict[str, Any]]) -> list[list[tuple[int, float]]]:
        model = self._name if self._adapter_folder is None else self._version
        route, body = "/v1/completions", {"model": model, "return_token_ids": True, **_NEUTRAL}
        requests = [{**body, "prompt": prompt, **each} for prompt, each in zip(prompts, params, strict=True)]
        return [self._read(route, answer) for answer in self._ask([("POST", route, request) for request in requests])]

    def _read(self, route: str, answer: Any) -> list[tuple[int, float]]:
        """New tokens, and their log-probabilities."""
        try:
            choice = answer["choices"][0]
            tokens = list(zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True))
        except (KeyError, IndexError, TypeError, ValueError):
            tokens = []
        if not tokens:
            raise self._error(route, f"no tokens with log-probabilities: {str(answer)[:200]!r}")
        if unknown := [id for id, _ in tokens if id in (self._logit_bias or ())]:
            raise self._error(route, f"the token {unknown[0]}, which the tokenizer does not have")
        return tokens

    # -- weights --------------------------------------------------------------------------------------------------

    def _needs_weights(self) -> bool:
        self._found = self._served()
        return self._outdated or self._found != self._version

    def _bring(self, sent: list[tuple[str, Tensor]] | LoRA | None) -> None:
        if not self._found.startswith(self._run):
            self._check_owner(self._found)
        self._n_sent += 1
        version = f"{self._run}{self._n_sent}"
        if isinstance(sent, list):
            self._bring_weights(sent, version)
        else:
            assert sent is not None
            self._bring_adapters(sent, version)
        self._version, self._outdated = version, False

    def _bring_weights(self, weights: list[tuple[str, Tensor]], version: str) -> None:
        self._control("/pause?mode=wait")
        try:
            self._send(weights)
            self._control("/finish_weight_update", {"weight_version": version})
            if not self._control("/reset_prefix_cache").get("success"):
                raise self._error("/reset_prefix_cache", "that it keeps cached prompts of the old weights")
        finally:
            self._control("/resume")

    def _bring_adapters(self, lora: LoRA, version: str) -> None:
        assert self._adapter_folder is not None
        folder = Path(self._adapter_folder).resolve() / version.replace("/", "_")
        try:
            lora.save_pretrained(folder)
            self._control("/v1/load_lora_adapter", {"lora_name": version, "lora_path": str(folder)})
        except OSError as error:
            raise GenerationError(f"generation.adapter_folder: {error}") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for name in {*self._versions()} - {version, _FRESH}:  # the last ones, and those of runs that have ended
            self._control("/v1/unload_lora_adapter", {"lora_name": name})

    def _send(self, weights: list[tuple[str, Tensor]]) -> None:
        n_workers = self._get("/get_world_size")["world_size"]
        self._control("/start_weight_update")
        route, token = "/update_weights", secrets.token_hex(16)
        info = {"host": self._sender.host, "port": self._sender.port, "token": token, "timeout_s": self._timeout_s}
        request = partial(self._request, "POST", route, {"update_info": {**info, **described(weights)}})
        update = self._calls.start([request], keep_going=True)
        failure: OSError | None = None
        try:
            self._sender.send(weights, n_workers, token, update.done)
        except OSError as error:
            failure = error
        self._result(update)  # the server's own words, if it has any, say more
        if failure is not None:
            raise self._error(route, f"success, but the weights could not be sent: {failure}")

    # -- the server -----------------------------------------------------------------------------------------------

    def _check_server(self) -> None:
        """Check that the server can do what is asked of it."""
        try:
            self._served()
            settings = self._get("/server_info?config_format=json")["vllm_config"]
            mode = settings["model_config"]["logprobs_mode"]
            transfer = (settings["weight_transfer_config"] or {}).get("backend")
            lora = settings["lora_config"]
            # A prompt that is read in parts ends an engine on a CPU if its reply has a seed.
            in_parts = settings["scheduler_config"]["enable_chunked_prefill"]
            breaks = in_parts and settings["device_config"]["device"] == "cpu"
        except Unreachable:
            raise
        except (EndpointError, KeyError, TypeError) as error:
            what = "is not vLLM 0.32 or newer, or was started without VLLM_SERVER_DEV_MODE=1"
            raise EndpointError(f"{self._url} {what} ({error})") from None
        if self._adapter_folder is not None:
            self._check_adapters()
        served = self._get("/v1/models")["data"][0]
        self._name, longest = str(served["id"]), served["max_model_len"]
        for fits, what, got in (
            (
                self._adapter_folder or transfer == ENGINE,
                f"--weight-transfer-config with the backend {ENGINE}",
                transfer,
            ),
            (self._adapter_folder is None or lora is not None, "--enable-lora for generation.adapter_folder", lora),
            (not breaks, "--no-enable-chunked-prefill on a CPU", "chunked prefill"),
            (mode == "processed_logprobs", "--logprobs-mode processed_logprobs", mode),
            (longest >= self._max_length, f"a --max-model-len of at least {self._max_length}", longest),
        ):
            if not fits:
                raise EndpointError(f"{self._url} needs {what}, not {got}")
        if (n_rows := self._vocabulary_size()) != self._n_rows:
            what = f"another model ({served.get('root')}): its vocabulary has {n_rows} ids, the policy's {self._n_rows}"
            raise EndpointError(f"{self._url} serves {what}")

    def _check_adapters(self) -> None:
        """Check that the server takes adapters, by what it says of one without a name."""
        try:
            self._control("/v1/load_lora_adapter", {"lora_name": "", "lora_path": ""})
        except FinalFailure as error:
            if "must be provided" not in str(error):
                needed = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 for generation.adapter_folder"
                raise EndpointError(f"{self._url} needs {needed} ({error})") from None

    def _vocabulary_size(self) -> int:
        """What a server says if a request names a token that is not in the vocabulary of its model."""
        request = {"model": self._name, "prompt": [0], "max_tokens": 1, "logit_bias": {_NO_TOKEN: 0.0}}
        try:
            self._control("/v1/completions", request)
        except FinalFailure as error:
            if size := re.search(r"Vocabulary size: (\d+)", str(error)):
                return int(size[1])
            raise
        raise self._error("/v1/completions", f"a reply, although there is no token {_NO_TOKEN}")

    def _served(self) -> str:
        """The version of the server's weights, or of its adapters."""
        versions = self._versions()
        return self._version if self._version in versions else versions[0]

    def _versions(self) -> list[str]:
        if self._adapter_folder is None:
            return [str(self._get("/weight_info")["weight_version"])]
        names = [str(each["id"]) for each in self._get("/v1/models")["data"]]
        return [name for name in names if name.startswith(_NAME)] or [_FRESH]

    def _check_owner(self, served: str) -> None:
        """Check that the server, with weights that this run has not sent, is not used by another one."""
        if served == _FRESH:
            if self._version:
                _logger.warning("%s was restarted, so the policy's weights are sent again", self._url)
                self._check_server()
            return
        if not self._version:
            owner = re.match(rf"{_NAME}(.+)/(\d+)/(\w+)/", served)
            if owner is None or owner[3] == _THIS_PROCESS:
                return
            try:
                socket.create_connection((owner[1], int(owner[2])), _REACH_S).close()
            except OSError:  # it has ended
                return
        what = f"has weights of another run ({served}), and can serve only one"
        raise GenerationError(f"{_URL}{self._url} {what}; start a server for each run")

    def _opened(self, port: int) -> Sender:
        """A port of the interface that reaches the server."""
        parts = urllib.parse.urlsplit(self._url)
        default = 443 if parts.scheme == "https" else 80
        with socket.create_connection((parts.hostname, parts.port or default), self._timeout_s) as connection:
            host = connection.getsockname()[0]
        try:
            return Sender(host, port, self._timeout_s)
        except OSError as error:
            raise GenerationError(f"generation.transfer_port: {host}:{port} cannot be opened: {error}") from None

    def _wait_until_back(self, failure: EndpointError, deadline: float) -> None:
        """Return when a server that was lost answers again; raise the failure if it was not lost, or does not."""
        if is_lost := isinstance(failure, Unreachable):
            _logger.warning("%s. Waiting for it up to %g s (generation.timeout_s)", failure, self._timeout_s)
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            try:
                self._get("/health")
                if is_lost or self._served() == _FRESH != self._found:
                    return
                break
            except EndpointError:
                is_lost = True
        raise GenerationError(f"{_URL}{failure}") from None

    def _get(self, route: str) -> Any:
        return self._ask([("GET", route, None)])[0]

    def _control(self, route: str, body: Any = None) -> Any:
        return self._ask([("POST", route, body)])[0]

    def _ask(self, requests: list[tuple[str, str, Any]]) -> list[Any]:
        """The answers to requests, each a method, a route and a body."""
        return self._result(self._calls.start([partial(self._request, *each) for each in requests], keep_going=False))

    def _result(self, asked: Future[list[Any]]) -> list[Any]:
        answers = asked.result()
        for failure in (each for each in answers if isinstance(each, Exception)):  # the others were cancelled
            raise failure if isinstance(failure, EndpointError) else GenerationError(f"{_URL}{self._url}: {failure}")
        return answers

    async def _request(self, method: str, route: str, body: Any) -> Any:
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        address = f"{self._url}{route}"
        response, received = await send(address, self._api_key, method, json=body, headers=headers)
        text = received.decode(errors="replace")
        if response.status_code != 200:
            raise refusal(address, response, repr(text[:500]))
        try:
            return {} if not text or text.startswith("Success: ") else json.loads(text)  # the words for adapters
        except ValueError:
            raise self._error(route, repr(text[:200])) from None

    def _error(self, route: str, answer: str) -> EndpointError:
        return EndpointError(f"{self._url}{route} answered with {answer}")
