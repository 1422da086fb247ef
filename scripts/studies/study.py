"""What the studies share: arguments, runs of the program that are not repeated, tables."""
import argparse
import csv
import json
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LADDER = [1, 2, 4, 8]        # tensor-parallel ranks in the paper
MIN_STEPS = 20

EXIT_USAGE, EXIT_MISSING, EXIT_IO, EXIT_STOPPED = 64, 66, 74, 75  # as the program's


class Parser(argparse.ArgumentParser):
    """Errors begin with "error: ", and end with exit code 64."""

    def error(self, message):
        fail(EXIT_USAGE, f"{self.prog}: {message}; --help prints all options")


def fail(code, message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def note(message):
    print(message, file=sys.stderr, flush=True)


def rank_list(words):
    """"1,2,4" as a list of numbers that ascend."""
    if not re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4})*", words):
        raise argparse.ArgumentTypeError(f"{words!r}: must be numbers of ranks, as 1,2,4")
    return sorted({int(word) for word in words.split(",")})


def step_count(words):
    if not re.fullmatch(r"\d{1,9}", words) or int(words) < MIN_STEPS:
        raise argparse.ArgumentTypeError(f"{words!r}: must be a number of steps, at least {MIN_STEPS}")
    return int(words)


def parser(name, description):
    made = Parser(prog=f"scripts/studies/{name}", description=description)
    made.add_argument("--out", required=True, metavar="DIR", help="folder for tables, pictures and results; what it "
                      "has already is not measured again")
    made.add_argument("--ranks", type=rank_list, metavar="1,2,4", help="numbers of ranks that may be used; rows that "
                      "need another number say so (default: 1,2,4; with GPUs powers of two up to their number)")
    made.add_argument("--quick", action="store_true", help="minutes: smaller models, fewer steps")
    made.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is a GPU")
    made.add_argument("--program", metavar="FILE", help="default: build/cuda-release/bin/megalith, or cpu-release's")
    made.add_argument("--launch", default="", metavar="COMMAND", help="starts the program as processes, as "
                      "'mpirun -np {ranks}'; default: ranks are threads of one process")
    made.add_argument("--steps", type=step_count, metavar="N", help=f"steps measured or trained, at least {MIN_STEPS}")
    return made


def program_of(given):
    choices = [pathlib.Path(given)] if given else [ROOT / "build" / preset / "bin" / "megalith"
                                                   for preset in ("cuda-release", "cpu-release")]
    for choice in choices:
        if choice.is_file() and os.access(choice, os.X_OK):
            return str(choice.resolve())
    fix = "" if given else ": run scripts/build, or give --program"
    fail(EXIT_MISSING, f"{' and '.join(map(str, choices))}: no such program{fix}")


def write_text(path, words):
    """A file is whole or not there."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(words, encoding="utf-8")
    beside.replace(path)


def wait_for(process):
    """The exit code. Ctrl-C reaches the program, too, which saves and ends."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass


class Failed(Exception):
    """The program ended with an error: its exit code and first line."""

    def __init__(self, code, line):
        super().__init__(line)
        self.code = code


class Study:
    """A study's folder, and the runs that it needs."""

    def __init__(self, arguments, planned=0):
        self.arguments = arguments
        self.program = program_of(arguments.program)
        doctor = self.output([self.program, "doctor"])
        self.version = re.search(r"^program +(.+?) *$", doctor, re.M).group(1)
        gpus = len(re.findall(r"^GPU \d", doctor, re.M))
        self.device = arguments.device or ("cuda" if gpus else "cpu")
        if self.device == "cuda" and not gpus:
            fail(EXIT_USAGE, "--device cuda: the program finds no GPU (megalith doctor)")
        self.ranks = arguments.ranks or [n for n in (LADDER if gpus else [1, 2, 4]) if n <= max(gpus, 4 * (not gpus))]
        self.is_on_cpu = self.device == "cpu"
        self.out = pathlib.Path(arguments.out)
        self.runs = self.out / "runs"
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(EXIT_USAGE, f"--out {self.out}: {error.strerror}")
        self.planned, self.begun = planned, 0
        self.first_failure = 0
        self.loads = []

    @staticmethod
    def output(command):
        """Standard output; errors stay on standard error only where the command succeeds."""
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            fail(EXIT_MISSING, f"{command[0]}: {error.strerror}")
        if ended.returncode != 0:
            lines = (ended.stderr or ended.stdout).strip().splitlines() or ["no message"]
            raise Failed(ended.returncode, " ".join(line.strip() for line in lines[:2]))
        return ended.stdout

    def launched(self, ranks, words):
        return shlex.split(self.arguments.launch.replace("{ranks}", str(ranks))) + [self.program] + words

    def stored(self, name, words):
        """The result of a run that has ended, or None. Refuses that of other options."""
        path = self.runs / f"{name}.json"
        if not path.exists():
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["command"] != words:
            changed = [f"{old} -> {new}" for old, new in zip(record["command"], words) if old != new]
            fail(EXIT_MISSING, f"{path}: was made with other options ({'; '.join(changed) or 'more or fewer'}): "
                 "give another --out, or remove the file")
        self.loads.append(record["load_average"])
        return record["result"]

    def run_once(self, name, label, words, body):
        """The stored result of `name`, or that of body(), which is stored. A failure is a text for the row."""
        self.begun += 1
        place = f"[{self.begun}/{self.planned}] {label}"
        found = self.stored(name, words)
        if found is not None:
            note(f"{place}: is there")
            return found
        note(f"{place}: running")
        began, load = time.monotonic(), os.getloadavg()[0]
        try:
            result = body()
        except Failed as failure:
            self.first_failure = self.first_failure or failure.code
            note(f"{place}: failed, exit code {failure.code}: {failure}")
            return f"failed (exit code {failure.code}): {failure}"
        record = {"command": words, "program": self.version, "load_average": load, "result": result}
        self.loads.append(load)
        write_text(self.runs / f"{name}.json", json.dumps(record, indent=1) + "\n")
        note(f"{place}: done in {time.monotonic() - began:.0f} s")
        return result

    def bench(self, name, label, model, tp, dp, batch, settings=()):
        """Seconds of each step of a model on a grid; a text where it could not be measured."""
        ranks = tp * dp
        steps = self.arguments.steps or (MIN_STEPS if self.arguments.quick else 50)
        words = ["bench", "step", "--device", self.device, "--layers", model.layers, "--hidden", model.hidden,
                 "--heads", model.heads, "--vocab", model.vocab, "--seq", model.seq, "--batch", batch, "--tp", tp,
                 "--dp", dp, "--steps", steps, "--warmup", 3, "--format", "json"]
        if self.is_on_cpu:  # a rank stands for a GPU: it has as much to compute with in every row
            words += ["--set", "device.threads=1"]
        words = [str(word) for word in words + list(settings)]
        return self.run_once(name, label, words,
                             lambda: json.loads(self.output(self.launched(ranks, words)))["step_times_s"])

    def train(self, name, label, keys, recipe, ranks):
        """Lines of metrics.jsonl of a run, which goes on where it was stopped; a text where it failed."""
        out = self.runs / name

        def body():
            words = ["train", str(recipe), "--ranks", str(ranks), "--out", str(out), "--resume=auto"]
            # Its progress is shown.
            code = wait_for(subprocess.Popen(self.launched(ranks, words), stdout=subprocess.DEVNULL))
            if code == EXIT_STOPPED:
                fail(EXIT_STOPPED, f"{out}: stopped, and saved; run the same command again to go on")
            if code != 0:
                raise Failed(code, f"see the lines above, and {out}")
            lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines]
        return self.run_once(name, label, keys, body)

    def too_few(self, needed):
        """None, or why a row that needs so many ranks is not measured."""
        if needed in self.ranks:
            return None
        most = max(self.ranks)
        return f"needs {needed} ranks, --ranks has {most}" if needed > most else f"{needed} is not in --ranks"

    def remarks(self):
        """Lines below a table: where it was measured, and what a reader must know to compare it."""
        lines = [f"{self.version}, {'CPU' if self.is_on_cpu else 'GPUs'}, {time.strftime('%Y-%m-%d')}; ranks: "
                 f"{','.join(map(str, self.ranks))}"]
        if self.loads:
            lines.append(f"load average of the machine when the runs began: {min(self.loads):.1f} to "
                         f"{max(self.loads):.1f}")
        return lines

    def write_table(self, name, title, header, rows, more=()):
        """OUT/name.txt and OUT/name.csv; the text is printed, too."""
        widths = [max(len(str(row[i])) for row in [header] + rows) for i in range(len(header))]
        lines = [title, ""]
        lines += ["  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip()
                  for row in [header] + rows]
        words = "\n".join(lines + [""] + list(more) + self.remarks()) + "\n"
        write_text(self.out / f"{name}.txt", words)
        with open(self.out / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header] + rows)
        print(words)

    def write_picture(self, name, svg):
        write_text(self.out / f"{name}.svg", svg)

    def finish(self):
        note(f"tables and pictures are in {self.out}")
        sys.exit(self.first_failure)


def median_and_spread(times):
    """(median, first quartile, third quartile) in seconds."""
    first, middle, third = statistics.quantiles(times, n=4, method="inclusive")
    return middle, first, third


def cell(value, form="{:.4g}"):
    return "-" if value is None else form.format(value)


def run(main):
    """What a study's file ends with."""
    try:
        main()
    except KeyboardInterrupt:
        fail(128 + signal.SIGINT, "stopped; run the same command again to go on")
    except OSError as error:
        fail(EXIT_IO, error)
