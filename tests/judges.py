"""Judges: a server with an OpenAI-compatible endpoint, whose answers a test decides, and a tiny chat model."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

KEY = "sk-very-secret"
Answer = Callable[[str], tuple[int, str]]


class Endpoint:
    """A local server, and what it was asked."""

    def __init__(self):
        self.questions = []
        self.keys = []
        self.most_at_once = self._n_now = 0
        self.headers = {}  # of the answers
        self.answer = lambda question: said("7")
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                question = body["messages"][0]["content"]
                with endpoint._lock:
                    endpoint.questions.append(question)
                    endpoint.keys.append(self.headers["Authorization"])
                    endpoint._n_now += 1
                    endpoint.most_at_once = max(endpoint.most_at_once, endpoint._n_now)
                assert (self.path, body["model"], body["temperature"]) == ("/v1/chat/completions", "wise", 0)
                status, text = endpoint.answer(question)
                with endpoint._lock:
                    endpoint._n_now -= 1
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                for name, value in endpoint.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args):
                """Stay silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()


def said(text):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_MARKUP = ["<|end|>", "<|user|>", "<|assistant|>"]


def save_judge(folder, template=TEMPLATE, architecture="gpt2", seed=0, n_positions=1024):
    """A tiny chat model with a token per byte, whose answers are not all alike."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate([*_MARKUP, *bytes_])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_MARKUP)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    common = {"vocab_size": len(fast), "initializer_range": 0.3, "eos_token_id": 0, "bos_token_id": 0}
    if architecture == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=n_positions, **common))
    else:
        size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(max_position_embeddings=n_positions, **size, **common))
    model.save_pretrained(folder)
    return str(folder)
