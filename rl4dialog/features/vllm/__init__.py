"""Generation by vLLM, in the process of a run and on servers."""

from rl4dialog.core.features import Feature

FEATURE = Feature(
    "replies by vLLM, in the process of a run or on a server, with the policy's current weights",
    ids={
        "generation backend": {
            "vllm": f"{__name__}.config:VLLMConfig",
            "vllm_server": f"{__name__}.config:VLLMServerConfig",
        }
    },
    moved={f"rl4dialog.policies.vllm_{name}": f"{__name__}.{name}" for name in ("backend", "server", "transfer")},
    page="vllm.md",
)
