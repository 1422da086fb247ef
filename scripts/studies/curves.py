"""Training runs whose losses a study draws."""
import json
import pathlib

import study

TEXT = study.ROOT / "recipes" / "text"


def add_data(parser):
    parser.add_argument("--data", metavar="FILE", help="training text or token files (default: recipes/text, with "
                        "GPUs only with --quick)")
    parser.add_argument("--valid", metavar="FILE", help="held-out set; with --data")


def data_of(of):
    """(training set, held-out set) as the recipes name them."""
    arguments = of.arguments
    if (arguments.data is None) != (arguments.valid is None):
        study.fail(study.EXIT_USAGE, "--data and --valid: give both or none")
    if arguments.data is None:
        return str(TEXT / "austen-train.txt"), str(TEXT / "austen-valid.txt")
    return str(pathlib.Path(arguments.data).resolve()), str(pathlib.Path(arguments.valid).resolve())


def run(of, name, label, keys, ranks):
    """Lines of metrics.jsonl, or a text where there are none. OUT/runs/NAME.toml is the recipe."""
    recipe = of.runs / f"{name}.toml"
    words = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    of.stored(name, words)  # refuses other options before the recipe is replaced
    study.write_text(recipe, "\n".join(words) + "\n")
    return of.train(name, label, words, recipe, ranks)


def losses(lines, key="loss"):
    """[(step, value)] of training steps."""
    return [(line["step"], line[key]) for line in lines if "eval" not in line and line.get(key) is not None]


def held_out(lines, key="loss"):
    """[(step, value)] of evaluations."""
    return [(line["step"], line[key]) for line in lines if "eval" in line and line.get(key) is not None]


def last_tenth(points):
    """The mean value of the last tenth of the steps."""
    last = [value for _, value in points[-max(1, len(points) // 10):]]
    return sum(last) / len(last)


def smooth(points, most=60):
    """Means of neighbouring steps, at most `most` of them, at the middle step of each."""
    size = max(1, -(-len(points) // most))
    groups = [points[i:i + size] for i in range(0, len(points), size)]
    return [(group[len(group) // 2][0], sum(value for _, value in group) / len(group)) for group in groups]
