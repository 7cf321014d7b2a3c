"""One process of a record: its command, what it prints, what it has measured, and why it stopped."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What an error's traceback ends with; JAX has more lines after it.
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Exit|Interrupt|Failure)\b.*", re.MULTILINE)


class Task:
    """One process, not started yet.

    Args:
        name: of the task and, in letters that files may have, of its files.
        command: what to run.
        folder: for its record (`.json`), what it prints (`.out`), and its errors (`.log`).
        device: the only GPU that it sees, by number; None: all.
        has_record: it writes its record to `--out`; otherwise its last printed line is the record.
    """

    def __init__(
        self, name: str, command: list[str], folder: Path, *, device: str | None = None, has_record: bool = True
    ):
        self.name, self._device, self._has_record = name, device, has_record
        base = re.sub(r"[^\w.-]", "-", name)
        self._written, self._printed, self._errors = (folder / f"{base}.{end}" for end in ("json", "out", "log"))
        self._command = [*command, "--out", str(self._written)] if has_record else command
        self._process: subprocess.Popen | None = None
        self._num_read, self._is_stopped = 0, False

    def start(self, environment: Mapping[str, str]) -> None:
        """Starts it, with these variables where they are not set already."""
        self._written.unlink(missing_ok=True)  # of an earlier run
        variables = {**environment, **os.environ} | (
            {} if self._device is None else {"CUDA_VISIBLE_DEVICES": self._device}
        )
        with self._printed.open("w") as printed, self._errors.open("w") as errors:
            files = {"stdin": subprocess.DEVNULL, "stdout": printed, "stderr": errors}
            self._process = subprocess.Popen(self._command, env=variables, start_new_session=True, **files)

    @property
    def has_begun(self) -> bool:
        """Whether it was started."""
        return self._process is not None

    @property
    def is_running(self) -> bool:
        """Whether it was started and is not over yet."""
        return self.has_begun and self._process.poll() is None

    @property
    def is_over(self) -> bool:
        """Whether it was started and has ended."""
        return self.has_begun and not self.is_running

    def stop(self) -> None:
        """Ends it and all it has started; what it has measured stays."""
        if self.is_running:
            self._is_stopped = True
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def news(self) -> list[dict[str, Any]]:
        """Lines printed since the last call; a half-written one waits, and the whole record is no news."""
        if not self.has_begun:
            return []
        with self._printed.open("rb") as printed:
            printed.seek(self._num_read)
            text = printed.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._num_read += len(whole)
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return [line for line in lines if "versions" not in line]

    def record(self) -> dict[str, Any] | None:
        """What it has measured so far."""
        if not self.has_begun:
            return None
        if self._has_record:
            return json.loads(self._written.read_text()) if self._written.exists() else None
        lines = self._printed.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.startswith("{") and line.endswith("\n")]
        return json.loads(whole[-1]) if whole else None

    def problem(self) -> str | None:
        """Why it is not whole: its error, or that there was no time; None while it runs and when it is done."""
        if not self.has_begun or self.is_running or self._process.returncode == 0:
            return None
        if self._is_stopped:
            return "stopped: no time was left"
        text = self._errors.read_text(errors="replace")
        errors = [match.group() for match in _ERROR.finditer(text)] or text.strip().splitlines()
        return f"exit {self._process.returncode}: {(errors or ['nothing printed'])[-1][:500]}"


def written(record: dict[str, Any], path: Path) -> None:
    """Replaces a file's content at once: who reads it, or is stopped while writing it, never has half of it."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(record, indent=1) + "\n")
    fresh.replace(path)
