"""The command line of the service: `serve`, `worker`, `db`, `members`, `runs`, `loops`, `schedules`, `usage`.

Heavy imports wait.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]

db = typer.Typer(help="Look after the database.", no_args_is_help=True)
runs = typer.Typer(help="Look at runs and steer them.", no_args_is_help=True)
members = typer.Typer(help="Say who belongs to the workspace, and who its admins are.", no_args_is_help=True)
loops = typer.Typer(help="Keep stored loops in step with loop files.", no_args_is_help=True)
schedules = typer.Typer(help="Look at schedules, pause and resume them.", no_args_is_help=True)


def install(app: typer.Typer) -> None:
    """Add the commands of the service."""
    app.command()(serve)
    app.command()(worker)
    app.command()(mcp)
    app.command()(usage)
    app.add_typer(db, name="db")
    app.add_typer(members, name="members")
    app.add_typer(runs, name="runs")
    app.add_typer(loops, name="loops")
    app.add_typer(schedules, name="schedules")


def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on: 127.0.0.1.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on: 8700.", show_default=False)] = None,
) -> None:
    """Serve the API and execute runs, with a database of its own in the data folder unless DATABASE_URL names one."""
    from .console.serving import serve as start

    raise typer.Exit(start(host, port))


def worker() -> None:
    """Execute runs beside a server: as many workers as you like, on the same database."""
    from .console.serving import work

    raise typer.Exit(work())


def mcp() -> None:
    """Serve desktop clients that speak MCP on standard input and output, with the loops and runs of the data folder."""
    from .console.serving import serve_mcp

    raise typer.Exit(serve_mcp())


def usage(
    by: Annotated[Literal["context", "loop", "model", "user", "day"], typer.Option(help="What to sum by.")] = "day",
    csv: Annotated[bool, typer.Option("--csv", help="A table for spreadsheets.")] = False,
    json: Json = False,
) -> None:
    """Say what was paid."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.show_usage(rt, me, by, as_csv=csv, as_json=json)))


# --- db ---


@db.command()
def status() -> None:
    """Say what the database is, and what has been applied to it."""
    from .console import database

    raise typer.Exit(database.status())


@db.command()
def migrate() -> None:
    """Apply what has not been applied yet."""
    from .console import database

    raise typer.Exit(database.migrate())


@db.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(context: typer.Context) -> None:
    """Open psql on the database; more arguments go to it."""
    from .console import database

    raise typer.Exit(database.shell(context.args))


@db.command()
def backup(file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]) -> None:
    """Write a consistent copy, while everything goes on."""
    from .console import database

    raise typer.Exit(database.backup(file))


@db.command()
def restore(file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]) -> None:
    """Put a backup in place of what is there, which is kept under another name."""
    from .console import database

    raise typer.Exit(database.restore(file))


# --- members ---

Email = Annotated[str, typer.Argument(metavar="EMAIL", help="The user's mail address.", show_default=False)]


@members.command("list")
def members_list() -> None:
    """Show the members."""
    from .console import members as console

    raise typer.Exit(console.list_members())


@members.command("add")
def members_add(
    email: Email,
    admin: Annotated[bool, typer.Option("--admin", help="As an admin, who sees and steers everything.")] = False,
) -> None:
    """Make a user a member; a member with --admin becomes an admin, an admin without it a member."""
    from .console import members as console

    raise typer.Exit(console.add(email, "admin" if admin else "member"))


@members.command("remove")
def members_remove(email: Email) -> None:
    """Take a user out of the workspace, at once; what the user made stays."""
    from .console import members as console

    raise typer.Exit(console.remove(email))


# --- runs ---


@runs.command("list")
def runs_list(
    limit: Annotated[int, typer.Option(min=1, max=200, help="The most runs to show.")] = 20, json: Json = False
) -> None:
    """Show the last runs, newest first."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.list_runs(rt, me, limit=limit, as_json=json)))


@runs.command("show")
def runs_show(run: RunId, json: Json = False) -> None:
    """Show a run with its best candidate."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.show_run(rt, me, run, as_json=json)))


@runs.command("watch")
def runs_watch(run: RunId, json: Json = False) -> None:
    """Watch a run from its beginning to its end. Leaving doesn't stop it."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.watch_run(rt, me, run, as_json=json)))


@runs.command("cancel")
def runs_cancel(run: RunId) -> None:
    """Cancel a run; its best so far is kept."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.cancel_run(rt, me, run)))


@runs.command("extend")
def runs_extend(
    run: RunId,
    budget: Annotated[str | None, typer.Option(help="US dollars on top.", show_default=False)] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations on top.", show_default=False)] = None,
    seconds: Annotated[float | None, typer.Option(min=0.001, help="Seconds on top.", show_default=False)] = None,
) -> None:
    """Let a finished run go on; nothing is paid again."""
    from .console import service

    raise typer.Exit(
        service.with_runtime(
            lambda rt, me: service.extend_run(rt, me, run, budget=budget, iterations=iterations, seconds=seconds)
        )
    )


@runs.command("fork")
def runs_fork(
    run: RunId,
    iteration: Annotated[
        int, typer.Option("--from", min=1, help="How many of its iterations to begin from.", show_default=False)
    ],
    budget: Annotated[str | None, typer.Option(help="The new run's cap in US dollars.", show_default=False)] = None,
) -> None:
    """Start a new run from the first iterations of another; they cost it nothing."""
    from .console import service

    raise typer.Exit(
        service.with_runtime(lambda rt, me: service.fork_run(rt, me, run, iteration=iteration, budget=budget))
    )


@runs.command("export")
def runs_export(
    run: RunId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here.", show_default=False)
    ] = None,
) -> None:
    """Write a run's journal, as `loopwright replay` reads it."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.export_run(rt, me, run, output)))


# --- loops ---


@loops.command("list")
def loops_list(json: Json = False) -> None:
    """Show the stored loops, newest first."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.list_loops(rt, me, as_json=json)))


@loops.command("push")
def loops_push(file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]) -> None:
    """Store a loop file with its agent and tools, in place of those of the same names."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.push_loop(rt, me, file)))


@loops.command("pull")
def loops_pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The loop's name or id.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here.", show_default=False)
    ] = None,
) -> None:
    """Write a stored loop as a loop file."""
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: service.pull_loop(rt, me, name, output)))


# --- schedules ---

ScheduleId = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's id.", show_default=False)]


@schedules.command("list")
def schedules_list(json: Json = False) -> None:
    """Show the schedules, newest first, and when each is due next."""
    from .console import schedules as console
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: console.list_schedules(rt, me, as_json=json)))


@schedules.command("pause")
def schedules_pause(schedule: ScheduleId) -> None:
    """Pause a schedule; what is due meanwhile is not made up for."""
    from .console import schedules as console
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: console.pause(rt, me, schedule)))


@schedules.command("resume")
def schedules_resume(schedule: ScheduleId) -> None:
    """Make a paused or disabled schedule active again, from its next time on."""
    from .console import schedules as console
    from .console import service

    raise typer.Exit(service.with_runtime(lambda rt, me: console.resume(rt, me, schedule)))
