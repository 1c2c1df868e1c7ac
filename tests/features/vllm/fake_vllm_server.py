"""A stand-in for a vLLM server: the routes that rl4dialog asks for, in front of the engine of ``fake_vllm.py``.

Like vLLM's, its completions refuse keys that they do not know, it changes no weights unless it is paused and an update
was begun, and after a restart it has weights and a version of its own.
"""

import contextlib
import copy
import dataclasses
import json
import threading

import fake_vllm
import peft
import torch
from http_servers import Server

from rl4dialog.features.vllm.transfer import received

NEUTRAL = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class BadRequest(Exception):
    pass


class VLLMServer:
    """A server of a model. What ``spoil(server, route, body)`` returns, if anything, is answered instead."""

    def __init__(self, model, tokenizer, folder):
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        self._folder, self._initial = str(folder), copy.deepcopy(model.state_dict())
        self.config = {
            "model_config": {"logprobs_mode": "processed_logprobs"},
            "weight_transfer_config": {"backend": "rl4dialog"},
            "lora_config": {"max_lora_rank": 16},
            "scheduler_config": {"enable_chunked_prefill": True},
            "device_config": {"device": "cuda"},
        }
        self.n_rows, self.max_model_len, self.routes, self.headers, self.n_restarts = (
            model.config.vocab_size,
            64,
            [],
            set(),
            0,
        )
        self.spoil = lambda server, route, body: None
        self._lock = threading.Lock()
        self.restart()
        self._server = Server(self._behave)
        self.url = self._server.url.removesuffix("/reply")

    def restart(self):
        """Lose all weights, and load the initial ones."""
        size = {"max_model_len": self.max_model_len, "seed": 0, "gpu_memory_utilization": 0.3}
        modes = {"enable_sleep_mode": False, "logprobs_mode": "processed_logprobs", "enforce_eager": True}
        with self._lock:  # else, a request in another thread would meet weights that nobody has loaded yet
            with torch.random.fork_rng(devices=[]):
                self.llm = fake_vllm.LLM(
                    self._folder, load_format="dummy", dtype="float32", tensor_parallel_size=1, **size, **modes
                )
            self.llm.module.load_state_dict(self._initial)
            self.version, self.is_paused, self.is_open = "default", False, False
            self.adapters = {}
            self.n_restarts += 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._server.__exit__(*error)

    def _behave(self, handler):
        route, body = handler.path, json.loads(handler.body) if handler.body else None
        self.routes.append(route)
        self.headers.add(handler.headers.get("Authorization"))
        answer = self.spoil(self, route, body)
        if answer == "dead":
            handler.close_connection = True  # without an answer
            return
        if answer is None:
            try:
                answer = 200, getattr(self, "on_" + route.partition("?")[0].replace("/", "_"), None)(body)
            except BadRequest as error:
                answer = 400, {"error": {"message": str(error)}}
            except (AssertionError, RuntimeError, KeyError, OSError) as error:
                answer = 500, {"error": {"message": f"{type(error).__name__}: {error}"}}
        status, content = answer
        handler.send(content if isinstance(content, str) else json.dumps(content), status)

    @contextlib.contextmanager
    def _adapted(self, name):
        """Context in which the model has adapters of this name, if it is one."""
        if name not in self.adapters:
            yield
            return
        own = copy.deepcopy(self.llm.module.state_dict())
        self.llm.module.load_state_dict(self.adapters[name])
        self.llm.reset_prefix_cache()
        try:
            yield
        finally:
            self.llm.module.load_state_dict(own)
            self.llm.reset_prefix_cache()

    def on__version(self, body):
        return {"version": "0.32.0"}

    def on__health(self, body):
        return {}

    def on__weight_info(self, body):
        return {"weight_version": self.version}

    def on__get_world_size(self, body):
        return {"world_size": 1}

    def on__server_info(self, body):
        return {"vllm_config": self.config}

    def on__v1_models(self, body):
        return {"data": [{"id": name, "max_model_len": self.max_model_len} for name in ("m", *self.adapters)]}

    def on__v1_load_lora_adapter(self, body):
        if not body["lora_name"]:
            raise BadRequest("Both 'lora_name' and 'lora_path' must be provided.")
        assert body["lora_name"] not in self.adapters
        with self._lock:  # else, a request that nobody waits for any more could have adapters in place
            base = copy.deepcopy(self.llm.module)
        model = peft.PeftModel.from_pretrained(base, body["lora_path"])
        self.adapters[body["lora_name"]] = model.merge_and_unload().state_dict()
        return f"Success: LoRA adapter '{body['lora_name']}' added successfully."

    def on__v1_unload_lora_adapter(self, body):
        del self.adapters[body["lora_name"]]
        return f"Success: LoRA adapter '{body['lora_name']}' removed successfully."

    def on__pause(self, body):
        self.is_paused = True
        return {}

    def on__resume(self, body):
        self.is_paused = False
        return {}

    def on__start_weight_update(self, body):
        assert self.is_paused and not self.is_open
        self.is_open = True
        return {}

    def on__update_weights(self, body):
        assert self.is_open
        try:
            weights = list(received(**body["update_info"]))
        except BaseException:
            self.is_open = False
            raise
        self.llm._load(weights)
        return {}

    def on__finish_weight_update(self, body):
        assert self.is_open
        self.is_open, self.version = False, body["weight_version"]
        return {}

    def on__reset_prefix_cache(self, body):
        return {"success": self.llm.reset_prefix_cache()}

    def on__v1_completions(self, body):
        if any(int(id) >= self.n_rows for id in body["logit_bias"] or ()):
            raise BadRequest(f"token ids in logit_bias are out of vocabulary. Vocabulary size: {self.n_rows}")
        known = {field.name for field in dataclasses.fields(fake_vllm.SamplingParams)} - {"detokenize"}
        params = {name: body.pop(name) for name in known & body.keys()}
        assert body.pop("return_token_ids") and not self.is_paused
        name, prompt = body.pop("model"), body.pop("prompt")
        assert body == NEUTRAL, "vLLM would take them from the model's generation_config.json"
        params["logit_bias"] = {int(id): bias for id, bias in (params["logit_bias"] or {}).items()}
        with self._lock:
            if name not in ("m", *self.adapters):
                raise BadRequest(f"The model `{name}` does not exist.")
            with self._adapted(name), torch.no_grad():
                (output,) = self.llm.generate(
                    [{"prompt_token_ids": prompt}], [fake_vllm.SamplingParams(**params)], use_tqdm=False
                )
        (choice,) = output.outputs
        numbers = [of_token[id].logprob for id, of_token in zip(choice.token_ids, choice.logprobs, strict=True)]
        return {"choices": [{"token_ids": choice.token_ids, "logprobs": {"token_logprobs": numbers}}]}
