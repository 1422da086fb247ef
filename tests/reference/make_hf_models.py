#!/usr/bin/env python3
"""Small random LlamaForCausalLM folders as the transformers library writes them, and what it computes with them.

Writes a folder per case of CASES into the given folder. Each has config.json, its safetensors files, and expected.json:
token ids, the logits after each of them and, for one case, the losses of 20 AdamW steps, all in float32. Run by hand
(neither PyTorch nor transformers is a dependency of the build or of CI):
    python3 tests/reference/make_hf_llama.py tests/data/hf
With --check FOLDER CASE_FOLDER it prints the greatest difference between the logits of an exported folder and the
expected ones of a case.
"""
import json
import os
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

SHAPE = dict(hidden_size=24, num_hidden_layers=2, intermediate_size=20, max_position_embeddings=16, vocab_size=37)
LLAMA3 = dict(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=12)
CASES = {
    # A head is 6 wide, hidden_size / heads is 4. Also the case that is trained.
    "llama_untied": dict(num_attention_heads=6, num_key_value_heads=3, head_dim=6, rms_norm_eps=1e-6,
                         tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    "llama_tied": dict(num_attention_heads=3, num_key_value_heads=1, head_dim=10, rms_norm_eps=1e-5,
                       tie_word_embeddings=True,
                       rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0)),
    "llama_files": dict(num_attention_heads=6, num_key_value_heads=3, head_dim=4, rms_norm_eps=1e-5,
                        tie_word_embeddings=False, rope_parameters=dict(rope_type="llama3", rope_theta=50.0, **LLAMA3)),
    "llama_biases": dict(num_attention_heads=3, num_key_value_heads=3, head_dim=8, rms_norm_eps=1e-5,
                         tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
                         rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
}
IN_TWO_FILES, IN_BF16, TRAINED = "llama_files", "llama_biases", "llama_untied"
ADAM = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=0.7)
STEPS, BATCH = 20, 2


def make_model(case, seed):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **CASES[case], bos_token_id=0, eos_token_id=36)).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(0.3 * torch.randn_like(value) + (1.0 if "norm" in name else 0.0))
    return model.bfloat16() if case == IN_BF16 else model


def write_older_spelling(folder):
    """The same config as transformers 4 writes it: rope_theta beside rope_scaling."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["pretraining_tp"] = 1
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)


def logits_of(folder, ids):
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def train(folder, generator):
    """Losses of AdamW steps, with decay for matrices and tables only."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": ADAM["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAM["lr"], betas=(ADAM["beta1"], ADAM["beta2"]), eps=ADAM["eps"])
    vocab, length = SHAPE["vocab_size"], SHAPE["max_position_embeddings"]
    steps = []
    for _ in range(STEPS):
        tokens = torch.randint(0, vocab, (BATCH, length), generator=generator)
        targets = (5 * tokens + 3) % vocab  # something to learn
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).logits.view(-1, vocab), targets.view(-1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), ADAM["clip"])
        optimizer.step()
        steps.append({"tokens": tokens.view(-1).tolist(), "targets": targets.view(-1).tolist(), "loss": loss.item(),
                      "grad_norm": norm.item()})
    return {"adam": ADAM, "batch": BATCH, "steps": steps}


def check(folder, case_folder):
    with open(os.path.join(case_folder, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    got = logits_of(folder, expected["ids"])
    print(f"{folder}: logits differ by at most {(got - torch.tensor(expected['logits'])).abs().max().item():.1e}")


def main():
    if sys.argv[1] == "--check":
        return check(*sys.argv[2:])
    for seed, case in enumerate(CASES):
        folder = os.path.join(sys.argv[1], case)
        shutil.rmtree(folder, ignore_errors=True)
        make_model(case, seed).save_pretrained(folder, max_shard_size="25KB" if case == IN_TWO_FILES else "1GB")
        if case == IN_TWO_FILES:
            write_older_spelling(folder)
        os.remove(os.path.join(folder, "generation_config.json"))
        generator = torch.Generator().manual_seed(100 + seed)
        ids = torch.randint(0, SHAPE["vocab_size"], (SHAPE["max_position_embeddings"],), generator=generator).tolist()
        expected = {"torch": torch.__version__, "transformers": transformers.__version__, "ids": ids,
                    "logits": [[round(x, 7) for x in row] for row in logits_of(folder, ids).tolist()]}
        if case == TRAINED:
            expected["training"] = train(folder, generator)
        with open(os.path.join(folder, "expected.json"), "w", encoding="utf-8") as file:
            json.dump(expected, file)
            file.write("\n")


if __name__ == "__main__":
    main()
