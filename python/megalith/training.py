"""Training runs as processes."""
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Iterator, List, Optional, Sequence, Type, Union

from ._library import MegalithError, program_path

AnyPath = Union[str, "os.PathLike[str]"]


class Run:
    """A training run from train(): a process that writes into `out`. Leaving its `with` stops it, with all state saved.
    """

    def __init__(self, command: Sequence[str], out: Path) -> None:
        self.out = out
        self.metrics_file = out / "metrics.jsonl"
        self._log = tempfile.TemporaryFile()
        self._before = self._identity()  # of a run before: this one replaces the file when it begins
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def _identity(self) -> Optional[int]:
        try:
            return self.metrics_file.stat().st_ino
        except OSError:
            return None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> Optional[int]:
        """The exit code; None while it runs. 75: it was stopped, and can be resumed."""
        return self._process.poll()

    def log(self) -> str:
        """What it has printed so far."""
        number = self._log.fileno()  # pread: the process writes at the position of this file
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def metrics(self, poll_s: float = 0.1) -> Iterator[Dict[str, Any]]:
        """The lines of metrics.jsonl as they are written, until the run ends: steps have "loss", "grad_norm", "lr",
        "tokens_per_second" and more, evaluations have "eval". Of a resumed run those of the steps before, too. Raises
        MegalithError when the run fails."""
        position, rest = 0, b""
        while True:
            has_ended = self.returncode is not None
            if self._identity() not in (None, self._before):
                with open(self.metrics_file, "rb") as file:
                    file.seek(position)
                    rest += file.read()
                    position = file.tell()
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    yield json.loads(line)
            if has_ended:
                break
            time.sleep(poll_s)
        self._raise_failure()

    def _raise_failure(self) -> None:
        code = self.returncode
        if code in (None, 0, 75):
            return
        lines = self.log().strip().splitlines()
        first = next((i for i, line in enumerate(lines) if line.startswith("error: ")), len(lines) - 5)
        raise MegalithError(int(code or 0), "\n".join(lines[max(first, 0):]))

    def wait(self, timeout_s: Optional[float] = None) -> int:
        """Returns the exit code at the end: 0, or 75 of a run that was stopped. Raises MegalithError when it fails, and
        subprocess.TimeoutExpired."""
        code = self._process.wait(timeout_s)
        self._raise_failure()
        return code

    def stop(self) -> int:
        """Asks it to finish its step, save and end; waits for that. Returns the exit code: 0, 75, or -2 of a run that
        had not begun."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        code = self._process.wait()
        if code != -signal.SIGINT:
            self._raise_failure()
        return code

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is None:
            self.stop()
        else:  # the error that left the block is the one to report
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
            self._process.wait()
        self._log.close()


def train(recipe: AnyPath, out: AnyPath, *, settings: Sequence[str] = (), resume: bool = False, ranks: int = 0,
          launcher: Sequence[str] = (), program: Optional[AnyPath] = None) -> Run:
    """Starts `megalith train RECIPE --out OUT`.

    settings: "section.key=value" each, over the recipe; resume: goes on from the newest checkpoint if there is one;
    ranks: rank threads, 0: as the recipe has them; launcher: words before the program, as ["mpirun", "-np", "4"];
    program: another than program_path()."""
    command: List[str] = [*launcher, os.fspath(program or program_path()), "train", os.fspath(recipe), "--out",
                          os.fspath(out)]
    if resume:
        command += ["--resume=auto"]
    if ranks > 0:
        command += ["--ranks", str(ranks)]
    for setting in settings:
        command += ["--set", setting]
    return Run(command, Path(out))
