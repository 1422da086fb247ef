"""The Python package on tests/data/choice and on a training run: `package_test.py DATA_FOLDER`. Standard library only.

The environment names the package (PYTHONPATH), the library (MEGALITH_LIBRARY) and the program (MEGALITH_PROGRAM)."""
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import megalith

DATA = Path(sys.argv.pop(1))
RECIPE = """
[model]
num_layers = 1
hidden_size = 8
num_heads = 2
seq_len = 16
[train]
steps = 5
global_batch = 4
eval_interval = 5
eval_batches = 1
[data]
tokenizer = "byte"
split = "0.9"
"""


class SavedModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = megalith.load(DATA / "model", device="cpu", threads=1)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def test_is_described(self):
        self.assertEqual(self.model.seq_len, 160)
        self.assertEqual(self.model.precision, "fp32")
        self.assertIn("fp32 on cpu", repr(self.model))

    def test_tokens_go_there_and_back(self):
        text = "The sky on a clear day is blue, caf\u00e9"
        self.assertEqual(self.model.decode(self.model.encode(text)), text)
        self.assertEqual(self.model.encode(""), [])
        self.assertEqual(self.model.decode_bytes([]), b"")

    def test_log_probabilities_are_those_of_the_reference(self):
        """Of the choices whose tokens do not depend on the text before them. The reference moves white space at the end
        of a question to its choices."""
        expected = json.loads((DATA / "expected.json").read_text())
        case = next(one for one in expected if one["task"] == "choice")
        questions = [json.loads(line) for line in (DATA / "choice.jsonl").read_text().splitlines()]
        compared = 0
        for question, wanted in zip(questions, case["log_probabilities"]):
            for choice, want in zip(question["choices"], wanted):
                before, whole = question["question"], question["question"] + " " + choice
                apart = self.model.encode(before) + self.model.encode(" " + choice)
                if before != before.rstrip() or apart != self.model.encode(whole):
                    continue
                self.assertAlmostEqual(self.model.log_probability(before, " " + choice), want, delta=1e-3)
                compared += 1
        self.assertGreaterEqual(compared, 10)

    def test_several_lists_are_scored_at_once(self):
        lists = [[1, 2, 3], [4], [5, 6], list(range(100))]
        together = self.model.log_probabilities(lists)
        self.assertEqual([len(one) for one in together], [3, 1, 2, 100])
        for ids, found in zip(lists, together):
            self.assertTrue(math.isnan(found[0]))
            for a, b in zip(found[1:], self.model.log_probabilities(ids)[1:]):
                self.assertAlmostEqual(a, b, places=4)
        self.assertEqual(self.model.log_probabilities([]), [])

    def test_texts_are_those_of_the_program(self):
        options = "--max-tokens 12 --temperature 0.7 --seed 3 --device cpu --prompt".split() + ["The sky"]
        printed = subprocess.run([megalith.program_path(), "generate", DATA / "model", "--format", "json", *options],
                                 capture_output=True, check=True, text=True)
        text = json.loads(printed.stdout.splitlines()[0])["text"]
        mine = self.model.generate("The sky", max_tokens=12, temperature=0.7, seed=3)
        self.assertEqual("The sky" + mine, text if text.startswith("The sky") else "The sky" + text)

    def test_a_text_can_be_left(self):
        drawn = self.model.generate_ids([1, 2], max_tokens=100, temperature=0, stop_token=None)
        first = [next(drawn) for _ in range(3)]
        drawn.close()
        self.assertEqual(first, list(self.model.generate_ids([1, 2], max_tokens=3, temperature=0, stop_token=None)))

    def test_threads_may_share_a_model(self):
        found = []
        want = self.model.log_probabilities([[1, 2, 3, 4]])[0][1:]
        threads = [threading.Thread(target=lambda: found.append(self.model.log_probabilities([[1, 2, 3, 4]])[0][1:]))
                   for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [want] * 4)

    def test_errors_have_the_code_and_the_text(self):
        with self.assertRaisesRegex(megalith.MegalithError, "must be of 1 to 160") as raised:
            self.model.log_probabilities([[1] * 161])
        self.assertEqual(raised.exception.code, 65)
        with self.assertRaisesRegex(megalith.MegalithError, "an id of 1 to 1099511627776"):
            self.model.log_probabilities([1, 1 << 40])
        with self.assertRaisesRegex(megalith.MegalithError, "temperature = -1") as raised:
            self.model.generate("a", temperature=-1)
        self.assertEqual(raised.exception.code, 64)
        with self.assertRaisesRegex(megalith.MegalithError, "no/such"):
            megalith.load("no/such")
        closed = megalith.load(DATA / "model", device="cpu")
        closed.close()
        closed.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            closed.encode("a")


class TrainingRun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        (self.path / "text.txt").write_text("a text that is read again and again\n" * 100)
        (self.path / "tiny.toml").write_text(RECIPE + f'train = "{self.path}/text.txt"\n')

    def tearDown(self):
        self.folder.cleanup()

    def train(self, *settings, **options):
        return megalith.train(self.path / "tiny.toml", self.path / "out", settings=settings, **options)

    def test_metrics_are_iterated_and_the_model_is_loaded(self):
        with self.train() as run:
            lines = list(run.metrics())
            self.assertEqual(run.wait(), 0)
        self.assertEqual([line["step"] for line in lines if "eval" not in line], [1, 2, 3, 4, 5])
        self.assertEqual([line["step"] for line in lines if "eval" in line], [5])
        with self.train("train.steps=7", resume=True) as run:
            again = list(run.metrics())
        self.assertEqual([line["step"] for line in again if "eval" not in line], list(range(1, 8)))
        self.assertEqual([line["loss"] for line in again][:5], [line["loss"] for line in lines][:5])
        with megalith.load(run.out) as model:
            self.assertEqual(model.encode("ab"), [97, 98])

    def test_a_run_is_stopped_with_its_state(self):
        with self.train("train.steps=1000000", "train.eval_interval=0") as run:
            for line in run.metrics():
                if line["step"] >= 3:
                    break
            self.assertEqual(run.stop(), 75)
        self.assertEqual(run.returncode, 75)
        self.assertTrue(any((run.out / "checkpoints").glob("step_*")))

    def test_a_run_that_fails_raises(self):
        with self.assertRaisesRegex(megalith.MegalithError, "num_heads") as raised:
            with self.train("model.num_heads=3") as run:
                list(run.metrics())
        self.assertEqual(raised.exception.code, 64)


class Page(unittest.TestCase):
    def test_the_example_of_the_page_runs(self):
        page = (Path(__file__).parents[2] / "docs/python.md").read_text()
        example = page[page.index("## An example"):].split("```python\n")[1].split("```")[0]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-c", example], cwd=folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = re.findall(r"step (\d+): held-out loss ([0-9.]+)", done.stdout)
        self.assertEqual([step for step, _ in losses], ["50", "100", "150", "200"])
        self.assertLess(float(losses[-1][1]), 0.5, "the text repeats itself")
        line, word = map(float, re.findall(r"^(-[0-9.e-]+) (-[0-9.e-]+)$", done.stdout, re.M)[0])
        self.assertGreater(line, word + 3, "the model knows how the line goes on")


if __name__ == "__main__":
    unittest.main()
