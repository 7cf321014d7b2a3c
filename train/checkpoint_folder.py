"""A folder that is either complete or not there: written under another name, listed, forced to disk, renamed.

What a killed writer, a full disk or an interrupted copy leaves is recognised by its name or by the list of files.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
INCOMPLETE = ".incomplete"


def write_json(path: Path, value: Any) -> None:
    """Replaces a file at once: a reader sees the old or the new one."""
    draft = path.with_name(path.name + INCOMPLETE)
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def begin(folder: Path) -> Path:
    """An empty folder beside `folder`, to be filled and given to `commit`."""
    draft = folder.with_name(folder.name + INCOMPLETE)
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(parents=True)
    return draft


def commit(draft: Path, folder: Path) -> None:
    """Gives a filled folder its name; from here on it is complete, also after a power cut."""
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    sizes = {path.relative_to(draft).as_posix(): path.stat().st_size for path in files}
    write_json(draft / MANIFEST, sizes)
    for path in [*files, *(path for path in draft.rglob("*") if path.is_dir()), draft]:
        _to_disk(path)
    os.rename(draft, folder)
    _to_disk(folder.parent)


def remove(folder: Path) -> None:
    """Deletes a folder; cut short, it leaves none under the old name."""
    doomed = folder.with_name(folder.name + INCOMPLETE)
    if doomed.exists():
        shutil.rmtree(doomed)
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def what_is_missing(folder: Path) -> str | None:
    """Why a folder is not complete, None if it is."""
    if folder.name.endswith(INCOMPLETE):
        return "writing it was cut short"
    if not (folder / MANIFEST).is_file():
        return f"no {MANIFEST}"
    for name, size in read_json(folder / MANIFEST).items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
    return None


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
