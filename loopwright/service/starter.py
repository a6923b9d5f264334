"""A loop to start from: a folder with a loop file and an evaluator that run as they are."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ..core.errors import InvalidInput, Problem
from .loop_schema import schema_text

STARTER = ("loop.yaml", "evaluator.py")


def write_starter(folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write the starter into a folder, which is made if need be; with it, for editors, the schema of loop files.

    Raises:
        InvalidInput: a file is there already and `force` is not set, or the folder can't be written; nothing is lost.
    """
    paths = [folder / name for name in STARTER]
    there = [path for path in paths if path.exists()]
    if there and not force:
        names = " and ".join(str(path) for path in there)
        message = f"{names} exist{'s' if len(there) == 1 else ''} already; take another name, or --force to overwrite"
        raise InvalidInput(Problem(field="", message=message))
    try:
        (folder / ".loopwright").mkdir(parents=True, exist_ok=True)
        (folder / ".loopwright" / "loop.schema.json").write_text(schema_text(), encoding="utf-8")
        for path in paths:
            template = files("loopwright") / "templates" / path.name
            path.write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        message = f"can't write into {folder}: {error.strerror or error}"
        raise InvalidInput(Problem(field="", message=message)) from None
    return tuple(paths)
