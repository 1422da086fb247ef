"""Speed of a model on a grid: FLOP/s by both counts, efficiency against one rank, rows of tables."""
import dataclasses
import os

import paper
import study

# On a CPU: heads 96 wide as in table 1, and twice the weights of layers with twice the ranks.
CPU_LADDER = {1: (4, 192, 2), 2: (8, 192, 2), 4: (4, 384, 4), 8: (2, 768, 8)}
CPU_VOCAB = 1024
QUICK_LAYERS = 8             # on GPUs --quick takes the paper's layers divided by this

HEADER = ["model", "layers", "hidden", "heads", "parameters", "ranks", "tp", "dp", "batch", "step median, s",
          "quartiles, s", "tokens/s", "FLOP/s, hardware count", "FLOP/s, model count"]


def add_recompute(parser):
    parser.add_argument("--recompute", action="store_true", help="recompute whole layers, as in the paper")


def settings(arguments):
    return ["--set", "recompute.mode=full"] if arguments.recompute else []


def cpu_model(quick, layers, hidden, heads, seq=None):
    return paper.Model(f"{layers} x {hidden}", layers, hidden, heads, CPU_VOCAB, seq or (64 if quick else 256))


def ladder_model(of, tp):
    """The model of table 1 for `tp` ranks; on a CPU a small one; with --quick on GPUs one with fewer layers."""
    if of.is_on_cpu:
        return cpu_model(of.arguments.quick, *CPU_LADDER[tp])
    model = paper.TABLE1[tp]
    if not of.arguments.quick:
        return model
    layers = max(1, round(model.layers / QUICK_LAYERS))
    return dataclasses.replace(model, name=f"{layers} x {model.hidden}", layers=layers)


@dataclasses.dataclass
class Speed:
    """What a run measured, or why it did not (`missing`)."""
    model: paper.Model
    tp: int
    dp: int
    batch: int
    is_recomputed: bool
    times: list = None       # seconds of each step
    missing: str = ""

    @property
    def ranks(self):
        return self.tp * self.dp

    @property
    def step_s(self):
        return study.median_and_spread(self.times)[0] if self.times else None

    @property
    def flops(self):
        """FLOP/s of all ranks, hardware count."""
        return self.model.hardware_flops(self.batch, self.is_recomputed) / self.step_s if self.times else None

    @property
    def model_flops(self):
        return self.model.model_flops(self.batch) / self.step_s if self.times else None

    def efficiency(self, one):
        """Percent of what as many ranks as this would do at the speed of `one`, a run on one rank."""
        return 100 * self.flops / (self.ranks * one.flops) if self.times and one.times else None

    def cells(self):
        m = self.model
        known = [m.name, m.layers, m.hidden, m.heads, m.parameters, self.ranks, self.tp, self.dp, self.batch]
        if not self.times:
            return known + ["-"] * 5
        middle, first, third = study.median_and_spread(self.times)
        return known + [f"{middle:.4g}", f"{first:.4g} to {third:.4g}", f"{self.batch * m.seq / middle:.4g}",
                        f"{self.flops:.4g}", f"{self.model_flops:.4g}"]


def measure(of, name, label, model, tp, dp=1, batch=paper.BATCH):
    """Measures, or says why not."""
    speed = Speed(model, tp, dp, batch, of.arguments.recompute, missing=of.too_few(tp * dp) or "")
    if speed.missing:
        of.begun += 1
        study.note(f"[{of.begun}/{of.planned}] {label}: {speed.missing}")
        return speed
    got = of.bench(name, label, model, tp, dp, batch, settings(of.arguments))
    if isinstance(got, str):
        speed.missing = got
    else:
        speed.times = got
    return speed


def remarks(of):
    """Lines below a table of speeds: how FLOPs and times are counted."""
    times = "4 (whole layers are recomputed)" if of.arguments.recompute else "3 (no recomputation)"
    cores = len(os.sched_getaffinity(0))
    shared = [f"A rank computes with one thread. {cores} cores: more ranks than cores share them, so their efficiency "
              "falls."] if of.is_on_cpu else []
    return shared + [f"FLOPs of a step, hardware count: k L (24 B s h^2 + 4 B s^2 h) + 6 B s h V, k = {times};",
            "model count: 6 x parameters x tokens. Efficiencies are of the hardware count. The paper names no count.",
            "Times: `bench step`, whole steps on random tokens (inputs, passes, communication, optimizer), median and",
            "quartiles, without 3 steps of warm-up. The paper's figures are of V100s."]
