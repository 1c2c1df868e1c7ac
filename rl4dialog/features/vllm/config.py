"""Keys of ``generation`` for vLLM."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl4dialog.core.config_blocks import GenerationBackend
from rl4dialog.core.http_requests import has_credentials, is_http_address

_PACKAGE = "rl4dialog.features.vllm"


class VLLMConfig(GenerationBackend):
    build = f"{_PACKAGE}.building:build_engine"
    check = f"{_PACKAGE}.building:check_engine"
    conditions = f"{_PACKAGE}.building:own_conditions"
    gpu_memory_utilization: float = Field(default=0.3, gt=0, le=1)
    """``vllm``, which is vLLM in the process of the run, only: fraction of GPU memory for its weights and cache."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """``vllm`` only: number of GPUs that the model is split across."""
    sleep: bool = False
    """``vllm`` only: release its GPU memory while the policy is trained."""


class VLLMServerConfig(GenerationBackend):
    build = f"{_PACKAGE}.building:build_client"
    check = f"{_PACKAGE}.building:check_settings_of_run"
    conditions = f"{_PACKAGE}.building:own_conditions"
    free = ("url", "transfer_port", "timeout_s", "api_key_env", "adapter_folder")
    url: str | None = None
    """``vllm_server`` only: address of the server, which was started before, such as ``http://127.0.0.1:8000``."""
    transfer_port: int = Field(default=0, ge=0, le=65535)
    """``vllm_server`` only: port of the run at which the server reads weights. 0 is any free port."""
    timeout_s: float = Field(default=600.0, gt=0)
    """``vllm_server`` only: longest wait for an answer, and for a server that was lost to be back, in seconds."""
    api_key_env: str | None = None
    """``vllm_server`` only: environment variable with the server's API key."""
    ahead: Literal[0, 1] = 0
    """``vllm_server`` only: with 1, it writes the first replies of a rollout during the update before it. They are of
    the weights before the update, so ``alg.args.importance_correction`` must be set.
    """
    adapter_folder: str | None = None
    """``vllm_server`` with ``lora`` only: a folder of which run and server have the same path. Only the adapters are
    sent, through it, to a server of the model below them.
    """

    @model_validator(mode="after")
    def _url_is_an_address(self) -> VLLMServerConfig:
        if self.backend == "vllm_server" and not is_http_address(self.url or ""):
            raise ValueError("url must be the server's address with backend: vllm_server, as http://127.0.0.1:8000")
        if self.url and has_credentials(self.url):
            raise ValueError("url must not contain credentials; set api_key_env instead")
        return self
