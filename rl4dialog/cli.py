"""The console command ``rl4dialog``, whose output may be closed or full; its subcommands are in `commands`."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

from rl4dialog.commands.options import check_numbers
from rl4dialog.commands.parser import COMMANDS, make_parser
from rl4dialog.core.errors import ConfigError, RL4DialogError, RunInterrupted, nearest_hint
from rl4dialog.core.process_memory import keep_few_kernels
from rl4dialog.training.interruption import StopSignals, ignore_sigterm
from rl4dialog.training.own_process import EXIT_INTERRUPTED, end_with_parent


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``rl4dialog``."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser(shows_all="--all" in given)
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        known = f"the commands are {', '.join(COMMANDS)}"
        parser.error(f"unknown command {given[0]!r}{nearest_hint(given[0], COMMANDS)} ({known})")
    if not given:
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(given)
    args.argv = given
    with lenient_output() as output:
        code = _run(args.command, args)
        output.flush()
        if output.error is None or isinstance(output.error, BrokenPipeError):  # such as `| head`
            return code
        # A training run's results are in its run folder, so a lost standard output is no failure.
        code = code or (0 if args.command == "train" and not args.dry_run else 2)
        kind = "error" if code else "warning"
        print(f"{kind}: cannot write to the standard output: {output.error}", file=sys.stderr)
        return code


def main_of(name: str, argv: Sequence[str] | None = None) -> int:
    """Entry point of a script that wraps one command."""
    return main([name, *(sys.argv[1:] if argv is None else argv)])


def _run(name: str, args: argparse.Namespace) -> int:
    """Run a command; print expected errors as one paragraph and return the exit code."""
    # Tokenizers are used before the env workers fork; their warning about that is harmless.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    end_with_parent()
    keep_few_kernels()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    # rl4dialog shows its own progress bars; one per loaded weight file is noise.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    # Causal models run on right-padded rows, which need no attention mask.
    logging.getLogger("transformers.modeling_utils").addFilter(lambda said: "`attention_mask`" not in str(said.msg))
    try:
        keys = [text.partition("=")[0] for text in getattr(args, "overrides", None) or ()]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ConfigError(f"--set {twice[0]} is given twice; keep one of them")
        with StopSignals() if COMMANDS[name].is_resumable else nullcontext():
            check_numbers(COMMANDS[name], args)
            return COMMANDS[name].run(args) or 0
    except RunInterrupted as stop:
        ignore_sigterm()
        how = " without --overwrite" if getattr(args, "overwrite", False) else ""
        print(f"{stop}. Rerun the command{how} to continue.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except RL4DialogError as error:
        if args.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError, OSError) as error:
        if args.debug or (cure := _cure(error)) is None:
            raise
        print(f"error: {error}: {cure}. What was saved before is kept.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if args.debug:
            raise
        where = getattr(args, "run_path", None)
        print(f"\ninterrupted; partial results are in {where}" if where else "\ninterrupted", file=sys.stderr)
        return 130


def _cure(error: Exception) -> str | None:
    """What to do if the machine has too little of something; ``None`` for other errors."""
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        less = "lower alg.args.micro_batch_size, which changes no result, or with FSDP set "
        return less + "generation.gather_weights to false; docs/hyperparameters.md has more under memory"
    if os.strerror(errno.EMFILE) in str(error):
        return "raise the limit of open files, such as with ulimit -n 4096, or lower env.n_envs and env.n_workers"
    return None


# Control characters of a foreign text, such as a model's name, in what is printed or logged. Colors and the carriage
# return of progress bars are our own; tables and messages of errors, in which they could deceive, have neither.
_CONTROL = re.compile(r"(?!\x1b\[[\d;]*m|\x1b\[A)[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class LenientStream:
    """A text stream that records its first write error and discards all later output.

    It wraps a stream that can be closed, full or limited to a small character set, or ``None`` if the process was
    started without it.
    """

    def __init__(self, stream: TextIO | None) -> None:
        # Otherwise the next opened file would get the stream's descriptor, and with it the output of libraries.
        self._stream = stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self.error: OSError | ValueError | None = None

    def write(self, text: str) -> int:
        """Write the text without control characters, with escapes for characters that the stream's encoding lacks."""
        try:
            return self._stream.write(_CONTROL.sub("\ufffd", text))
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            return self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self._give_up(error)
            return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush; the wrapped stream stays open, because logging handlers of libraries close what they write to."""
        self.flush()

    def _give_up(self, error: OSError | ValueError) -> None:
        """Discard all further output, including what Python flushes at exit."""
        self.error = error
        try:
            number = self._stream.fileno()
        except (OSError, ValueError):
            number = -1
        self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if number in (1, 2):
            os.dup2(self._stream.fileno(), number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lenient_output() -> Iterator[LenientStream]:
    """Make both standard streams lenient within the context; yields the standard output."""
    before = sys.stdout, sys.stderr
    output = LenientStream(sys.stdout)
    sys.stdout, sys.stderr = output, LenientStream(sys.stderr)  # type: ignore[assignment]
    try:
        yield output
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


if __name__ == "__main__":
    sys.exit(main())
