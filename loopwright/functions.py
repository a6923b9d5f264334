"""Functions that a person names as `module:function`: how they are found, and the threads in which sync ones run."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import ModuleType
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SHOWN = 200
"""How many characters of somebody else's error a message quotes."""


def load_function(path: str, folder: Path) -> Callable[..., Any]:
    """Import `module:function`, where modules in `folder` go before installed ones.

    Raises:
        ImportError: there is no such function; says why.
    """
    module_name, _, attribute = path.partition(":")
    module = _import_from(module_name, folder.resolve())
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            where = getattr(module, "__file__", None) or "a built-in module"
            raise ImportError(f"{module_name} ({where}) has no {attribute}")
        found = getattr(found, part)
    if not callable(found):
        raise ImportError(f"{path} is not a function but {type(found).__name__}")
    return found


_folders: set[Path] = set()
"""Folders that functions of this process came from."""


_apart: dict[tuple[Path, str], ModuleType] = {}
"""Modules whose names the program itself uses for others, by folder and name."""


def _import_from(name: str, folder: Path) -> ModuleType:
    if (folder, name) in _apart:
        return _apart[folder, name]
    _forget_namesakes(folder)
    _folders.add(folder)
    root = name.partition(".")[0]
    others = _namesakes_of_the_program(root, folder)
    for other in others:
        del sys.modules[other]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ImportError(f"importing {name} failed: {type(error).__name__}: {_shown(str(error))}") from error
    finally:
        if others:  # whoever imported them goes on with them
            for mine in _loaded(root):
                del sys.modules[mine]
            sys.modules.update(others)
        # It goes to the end of the path, where it shadows nothing and functions still find their neighbours.
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    if others:
        _apart[folder, name] = module
    return module


def _forget_namesakes(folder: Path) -> None:
    """Forget modules from other loops' folders where this folder has one of the same name."""
    others = _folders - {folder}
    for name in {child.stem for child in folder.iterdir()} if others else ():
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and _found_in(Path(file).resolve()) in others:
            for module in _loaded(name):
                del sys.modules[module]


def _namesakes_of_the_program(name: str, folder: Path) -> dict[str, ModuleType]:
    """Modules that the program has imported from elsewhere under a name that this folder has, too."""
    loaded = sys.modules.get(name)
    if loaded is None or not ((folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()):
        return {}
    if (
        loaded.__spec__ is not None
        and loaded.__spec__.origin
        and _found_in(Path(loaded.__spec__.origin).resolve()) == folder
    ):
        return {}
    return _loaded(name)


def _loaded(name: str) -> dict[str, ModuleType]:
    """A top-level module and all below it, as far as they are imported."""
    return {each: module for each, module in sys.modules.items() if each.partition(".")[0] == name}


def _found_in(file: Path) -> Path:
    """The folder in which a top-level module or package is found."""
    return file.parent.parent if file.stem == "__init__" else file.parent


def _shown(text: str) -> str:
    shortened = text[:SHOWN] + ("…" if len(text) > SHOWN else "")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shortened)


class DaemonThreads(Executor):
    """Runs each call in a daemon thread of its own.

    A thread can't be killed. One that hangs is left alone: whoever waits for it can be cancelled meanwhile, and it
    doesn't keep the process from ending, as a thread of a pool would.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in a new thread."""
        outcome: Future[T] = Future()

        def work() -> None:
            try:
                answer = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - raised again by whoever waits
                outcome.set_exception(_holdable(error))
            except BaseException as error:  # noqa: BLE001 - `sys.exit()` in a tool ends the tool, not the process
                outcome.set_exception(RuntimeError(f"the function raised {type(error).__name__}: {error}"))
            else:
                outcome.set_result(answer)

        outcome.set_running_or_notify_cancel()
        threading.Thread(target=work, name="loopwright-function", daemon=True).start()
        return outcome


def _holdable(error: Exception) -> Exception:
    """The error; a future can't hold `StopIteration`, so whoever waited for it would wait for ever."""
    return RuntimeError("the function raised StopIteration") if isinstance(error, StopIteration) else error


DAEMON_THREADS: Final = DaemonThreads()
