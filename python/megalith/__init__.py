"""Saved models and training runs of megalith.

    import megalith

    with megalith.load("out/demo") as model:
        ids = model.encode("Mr. Darcy")
        print(model.log_probabilities(ids))
        print(model.generate("Mr. Darcy", max_tokens=50, temperature=0.7, seed=1))

    with megalith.train("recipes/demo.toml", "out/demo2", settings=["train.steps=100"]) as run:
        for line in run.metrics():
            print(line)

It needs libmegalith.so and, for runs, the program `megalith`: see library_path() and program_path(). No other package
is needed."""
from ._library import MegalithError, library_path, program_path, version
from .model import Model, load
from .training import Run, train

__all__ = ["MegalithError", "Model", "Run", "library_path", "load", "program_path", "train", "version"]
