"""Commands ``export`` and ``push_to_hub``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rl4dialog.commands.options import CHECKPOINT, RUN, TRUST, Option, command, flag, option, output_option
from rl4dialog.core.pretrained import DTYPES


def _prior_only(verb: str) -> Option:
    return flag("--prior_only", f"{verb} the language model of a guided policy, without the values that guide it")


@command(
    RUN,
    output_option("output .gguf file"),
    option("--dtype", "number format of the weights (default: that of the saved model)", choices=DTYPES),
    CHECKPOINT,
    _prior_only("export"),
    TRUST,
    flag("--overwrite", "replace an existing output file"),
)
def export(args: Namespace) -> None:
    from rl4dialog.features.export.gguf import export_gguf

    export_gguf(
        Path(args.run_path), args.output, args.dtype, args.checkpoint, args.prior_only, args.overwrite, args.trust
    )


@command(
    RUN,
    option("--repo_id", "repository on the hub, as user/name", required=True),
    flag("--private", "make the repository private if it is new"),
    _prior_only("publish"),
    TRUST,
    flag("--dry_run", "write the card and list the files, without uploading"),
    name="push_to_hub",
)
def push_to_hub(args: Namespace) -> None:
    from rl4dialog.features.export.publishing import push_to_hub

    push_to_hub(Path(args.run_path), args.repo_id, args.private, args.dry_run, args.prior_only, args.trust)
