"""Figures of Shoeybi et al. 2019 (arXiv:1909.08053) that the studies stand beside, and its FLOP counts."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Model:
    """A GPT-2 of `layers` layers."""
    name: str
    layers: int
    hidden: int
    heads: int
    vocab: int = 51200
    seq: int = 1024

    @property
    def parameters(self):
        layer = 12 * self.hidden ** 2 + 13 * self.hidden
        return (self.vocab + self.seq) * self.hidden + self.layers * layer + 2 * self.hidden

    def hardware_flops(self, batch, is_recomputed):
        """Of a step of `batch` samples: the GEMMs of layers and logits. Recomputation repeats the forward passes."""
        tokens = batch * self.seq
        layer = 24 * tokens * self.hidden ** 2 + 4 * tokens * self.seq * self.hidden
        return (4 if is_recomputed else 3) * self.layers * layer + 6 * tokens * self.hidden * self.vocab

    def model_flops(self, batch):
        """6 x parameters x tokens of a step."""
        return 6 * self.parameters * batch * self.seq


def bert_parameters(layers, hidden, vocab, seq):
    """Of a BERT with both heads, in either placement of norms."""
    embedding = (vocab + seq + 2) * hidden
    heads = 2 * hidden ** 2 + 6 * hidden + vocab + 2
    return embedding + layers * (12 * hidden ** 2 + 13 * hidden) + 2 * hidden + heads


# Table 1 by tensor-parallel GPUs. V100 of 32 GB.
TABLE1 = {1: Model("1.2B", 40, 1536, 16), 2: Model("2.5B", 54, 1920, 20), 4: Model("4.2B", 64, 2304, 24),
          8: Model("8.3B", 72, 3072, 32)}
BATCH = 8                    # samples of a step on each model-parallel group
DATA_PARALLEL = 64           # groups of the series with data parallelism: 64, 128, 256, 512 GPUs
BASELINE_FLOPS = 39e12       # a second, 1.2B on one GPU: 30 % of its peak
# Figures 1 and 5: what the text states. Efficiency at 512 GPUs is 74 % in section 5.1.1, 76 % in the abstract;
# 15.1 PFLOP/s over 512 x 39 TFLOP/s are 75.6 %. The other bars are in a picture only.
WEAK_FLOPS = {1: 39e12, 8: 240e12, 512: 15.1e15}
WEAK_EFFICIENCY = {1: 100.0, 8: 77.0, 512: 74.0}
EFFICIENCY_512 = "74 % (section 5.1.1), 76 % (abstract)"
# Table 7, 8.3B on 8 GPUs: heads, their size, efficiency in percent.
TABLE7 = [(16, 192, 82.0), (24, 128, 80.0), (32, 96, 77.0)]
# Table 8, 1.2B with 8 samples: GPUs, speed-up.
TABLE8 = {1: 1.0, 2: 1.64, 4: 2.34, 8: 2.98}
# Figure 6: the last held-out perplexity of 8.3B; table 3: zero-shot perplexity on WikiText-103.
FIGURE6_LAST = {"8.3B": 9.27}
TABLE3_WIKITEXT = {"355M": 19.31, "2.5B": 12.76, "8.3B": 10.81}
