"""Files that people name."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def refuse_special(path: Path, *, or_device: bool = False) -> None:
    """Refuse what isn't a regular file: to open a FIFO blocks until somebody opens its other end.

    With `or_device`, also take a character device such as `/dev/null`, to write to. Folders and files that aren't
    there are for whoever opens them to find.

    Raises:
        OSError: it is something else, such as a FIFO or a socket.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (or_device and stat.S_ISCHR(mode))):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
