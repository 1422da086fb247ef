#!/usr/bin/env python3
"""A training step of a Llama with experts in PyTorch, eager, on CPUs: the model of
    megalith bench step --set model.family=llama --set moe.num_experts=8 --set moe.top_k=2 --set moe.ffn_hidden_size=768
on random tokens. Prints the median time of a step. Needs a PyTorch with scaled_dot_product_attention (2.0 or later)."""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, hidden))


class Experts(nn.Module):
    def __init__(self, hidden, ffn, experts, top_k):
        super().__init__()
        self.top_k = top_k
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * ffn, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, hidden, ffn) * 0.02)

    def forward(self, x):
        rows = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(self.top_k, -1)
        order = chosen.flatten().argsort(stable=True)
        sizes = torch.bincount(chosen.flatten(), minlength=len(self.up)).tolist()
        parts = []
        for part, up, down in zip(rows[order // self.top_k].split(sizes), self.up, self.down):
            gate, value = F.linear(part, up).chunk(2, -1)
            parts.append(F.linear(F.silu(gate) * value, down))
        y = torch.cat(parts) * weights.flatten()[order, None]
        return x + torch.zeros_like(rows).index_add(0, order // self.top_k, y).view_as(x)


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocab, a.hidden)
        self.layers = nn.ModuleList(
            nn.ModuleList((Attention(a.hidden, a.heads), Experts(a.hidden, a.ffn, a.experts, a.top_k)))
            for _ in range(a.layers)
        )
        self.norm = nn.RMSNorm(a.hidden, eps=1e-5)
        self.head = nn.Linear(a.hidden, a.vocab, bias=False)
        width = a.hidden // a.heads
        angles = torch.arange(a.seq)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for attention, experts in self.layers:
            x = experts(attention(x, self.cos, self.sin))
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = dict(layers=6, hidden=384, heads=6, ffn=768, experts=8, top_k=2, vocab=256, seq=256, batch=16, steps=10)
    for name, value in sizes.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = parser.parse_args()
    torch.manual_seed(1)
    model = Model(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    tokens, targets = torch.randint(0, a.vocab, (2, a.batch, a.seq))
    times = []
    for _ in range(a.steps + 2):
        begin = time.perf_counter()
        loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
    step = statistics.median(times[2:])
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads: {step:.3f} s a step, "
          f"{a.batch * a.seq / step:,.0f} tokens/s, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
