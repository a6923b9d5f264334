"""The command line. Heavy imports wait until a command needs them, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import cli_service

if TYPE_CHECKING:
    from .core.errors import InvalidInput

EXIT_CODES = (
    "Exit codes: 0 target reached, or no target set and the run ended well; 1 the run ended below its target; "
    "2 refused input, nothing was sent; 3 error; 130 stopped by Ctrl-C or a closed pipe."
)

app = typer.Typer(
    help="Runs an agent in a feedback loop on a budget that can't be exceeded, and gives back the best candidate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The loop file (YAML).", show_default=False)]


def main() -> None:
    """Run the command line; whatever goes wrong, the exit code says what kind it was."""
    from .console.outcome import guarded

    guarded(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Runs an agent in a feedback loop on a budget that can't be exceeded, and gives back the best candidate."""


@app.command()
def init(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The folder to write into.")] = "loop",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there already.")] = False,
) -> None:
    """Write a commented loop file and a tiny evaluator that run as they are, without a key."""
    from .core.errors import InvalidInput
    from .service.starter import write_starter

    try:
        paths = write_starter(Path(name), force=force)
    except InvalidInput as error:
        raise _refused(error) from None
    for path in paths:
        typer.echo(f"wrote {path}")
    typer.echo(f"\nnow:  loopwright run {paths[0]}")


@app.command(epilog=EXIT_CODES)
def run(
    file: File,
    *,
    goal: Annotated[str | None, typer.Option(help="Another goal than the file's.", show_default=False)] = None,
    budget: Annotated[str | None, typer.Option(help="The cap in US dollars.", show_default=False)] = None,
    max_iterations: Annotated[int | None, typer.Option(help="Most iterations.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="The agent's model.", show_default=False)] = None,
    attempts: Annotated[int | None, typer.Option(help="Dialogues side by side.", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="One event a line on stdout, and nothing else there.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the best candidate here.", show_default=False)
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Append the journal here, not under .loopwright/runs/.", show_default=False),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep the run in memory: no database, nothing to go on with.")
    ] = False,
) -> None:
    """Run a loop file. Ctrl-C stops cleanly and keeps the best; a second Ctrl-C aborts.

    The run is kept in the data folder, as those of `loopwright serve` are.
    """
    from .console.commands import run_file
    from .service.loop_files import Overrides

    overrides = Overrides(goal=goal, budget=budget, max_iterations=max_iterations, model=model, attempts=attempts)
    raise typer.Exit(run_file(file, overrides, as_json=json, output=output, journal=journal, ephemeral=ephemeral))


@app.command(epilog="Exit codes: 0 the file is fine, 2 it is refused.")
def check(file: File) -> None:
    """Say everything that is wrong with a loop file at once, or what one iteration can cost at worst."""
    from .console.commands import check_file

    raise typer.Exit(check_file(file))


@app.command(epilog="Exit codes: 0 answered, 2 refused input.")
def replay(
    journal: Annotated[Path, typer.Argument(metavar="JOURNAL", help="A past run's journal.", show_default=False)],
    stop: Annotated[
        str,
        typer.Option(
            metavar="EXPR",
            help="Such as 'target_score=0.9 | max_iterations=20 & no_improvement=5', or JSON as in a loop file.",
            show_default=False,
        ),
    ],
) -> None:
    """Say where other stop conditions would have stopped a past run, with which best and at what cost."""
    from .console.commands import replay_journal

    raise typer.Exit(replay_journal(journal, stop))


@app.command()
def schema() -> None:
    """Print the JSON schema of loop files, for editors."""
    from .service.loop_schema import schema_text

    typer.echo(schema_text(), nl=False)


cli_service.install(app)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"loopwright {installed('loopwright')}")


def _refused(error: InvalidInput) -> typer.Exit:
    from .console.outcome import refuse

    return typer.Exit(refuse(error, where=""))
