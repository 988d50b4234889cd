"""The program `mechplateau`: its commands, and their exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from mechplateau.cli import development, llm, runs, studies
from mechplateau.cli.failing import fail
from mechplateau.errors import UserError

app = typer.Typer(
    name="mechplateau",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from mechplateau import __version__
        from mechplateau_kernels import backend_report

        found = backend_report()
        why = found["why_not_triton"]
        print(f"mechplateau {__version__}; kernels: {found['default']}" + (f" ({why})" if why else ""))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Print the version, and which kernels would run.",
        ),
    ] = False,
) -> None:
    """Study how transformers learn: train, measure and open up the loss plateau."""


_COMMANDS: dict[str, Callable[..., None]] = {
    "train": runs.train,
    "config": runs.config,
    "columns": runs.columns,
    "show": runs.show,
    "report": runs.report,
    "list": runs.list_,
    "sweep": runs.sweep,
    "demo": runs.demo,
    "llc": development.llc,
    "stages": development.stages,
    "llm": llm.llm,
    "figure": studies.figure,
    "figures": studies.figures,
    "reproduce": studies.reproduce,
    "claims": studies.claims,
}
for name, command in _COMMANDS.items():
    app.command(name=name)(command)
app.command(name="job", hidden=True)(runs.job)


def main() -> NoReturn:
    """Entry point: a user's mistake is one line on standard error and exit code 2."""
    try:
        app()
    except UserError as error:
        fail(str(error), 2)
    except SystemExit as ending:
        # At Ctrl-C typer ends with 130 and without a word; an interrupted run has printed where it was saved.
        if ending.code == 130 and isinstance(ending.__context__, typer.Exit):
            fail("interrupted", 130)
        raise
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except OSError as error:
        fail(f"{error.filename or 'output'}: {error.strerror or error}", 2)
    raise SystemExit(0)
