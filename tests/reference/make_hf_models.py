#!/usr/bin/env python3
"""Folders of small random models as the transformers library writes them, and what it computes with them.

Writes a folder per case of CASES, or of the named ones, into the given folder. Each has config.json, its safetensors
files, and expected.json: token ids, the logits after each of them and, for some cases, the losses of 20 AdamW steps,
all in float32. Run by hand (neither PyTorch nor transformers is a dependency of the build or of CI):
    python3 tests/reference/make_hf_models.py tests/data/hf [CASE ...]
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
from transformers import (AutoModelForCausalLM, LlamaConfig, MixtralConfig, OlmoeConfig, Qwen2MoeConfig,
                          Qwen3MoeConfig)

SHAPE = dict(hidden_size=24, num_hidden_layers=2, intermediate_size=20, max_position_embeddings=16, vocab_size=37,
             bos_token_id=0, eos_token_id=36, pad_token_id=None)
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
    "mixtral": dict(num_attention_heads=3, num_key_value_heads=1, head_dim=10, num_local_experts=5,
                    num_experts_per_tok=2, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    # The same, with all experts of a layer in one tensor.
    "mixtral_fused": dict(num_attention_heads=3, num_key_value_heads=1, head_dim=10, num_local_experts=5,
                          num_experts_per_tok=2, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    "olmoe": dict(num_attention_heads=6, num_key_value_heads=3, num_experts=4, num_experts_per_tok=4,
                  attention_bias=True, norm_topk_prob=False,
                  rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0)),
    # A dense layer, one with experts, a dense one.
    "qwen2_moe": dict(num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, head_dim=6, num_experts=6,
                      num_experts_per_tok=3, moe_intermediate_size=12, shared_expert_intermediate_size=10,
                      decoder_sparse_step=2, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "qwen3_moe": dict(num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=10, num_experts=4,
                      num_experts_per_tok=2, moe_intermediate_size=12, mlp_only_layers=[1], norm_topk_prob=True,
                      tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    # Trained with the load loss. Its experts are in one layer: the library takes one loss over the rows of all layers,
    # megalith the sum over the layers. An eps of norms that is not small, those of queries and keys among them.
    "qwen3_moe_loss": dict(num_attention_heads=3, num_key_value_heads=1, head_dim=10, num_experts=5,
                           num_experts_per_tok=2, moe_intermediate_size=12, mlp_only_layers=[0], norm_topk_prob=True,
                           rms_norm_eps=0.2, output_router_logits=True, router_aux_loss_coef=0.5,
                           tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
}
CONFIGS = {"llama": LlamaConfig, "mixtral": MixtralConfig, "olmoe": OlmoeConfig, "qwen2": Qwen2MoeConfig,
           "qwen3": Qwen3MoeConfig}
OLDER, IN_BF16 = ("llama_files", "olmoe"), ("llama_biases", "qwen2_moe")
FILE_SIZES = {"llama_files": "25KB", "olmoe": "40KB"}
TRAINED = ("llama_untied", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "qwen3_moe_loss")
ADAM = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=0.7)
STEPS, BATCH = 20, 2


def make_model(case, seed):
    torch.manual_seed(seed)
    config = CONFIGS[case.split("_")[0]](**{**SHAPE, **CASES[case]})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(0.3 * torch.randn_like(value) + (1.0 if "norm" in name else 0.0))
    return model.bfloat16() if case in IN_BF16 else model


def write_older_spelling(folder):
    """The same config as transformers 4 writes it: rope_theta beside rope_scaling."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    if config["model_type"] == "llama":
        config["pretraining_tp"] = 1
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def logits_of(folder, ids):
    model = load(folder).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def train(folder, generator):
    """Losses of AdamW steps, with decay for matrices and tables only."""
    model = load(folder).train()
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": ADAM["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAM["lr"], betas=(ADAM["beta1"], ADAM["beta2"]), eps=ADAM["eps"])
    vocab, length = SHAPE["vocab_size"], SHAPE["max_position_embeddings"]
    steps = []
    for _ in range(STEPS):
        tokens = torch.randint(0, vocab, (BATCH, length), generator=generator)
        targets = (5 * tokens + 3) % vocab  # something to learn
        optimizer.zero_grad()
        out = model(tokens)
        loss = F.cross_entropy(out.logits.view(-1, vocab), targets.view(-1))
        step = {"tokens": tokens.view(-1).tolist(), "targets": targets.view(-1).tolist(), "loss": loss.item()}
        if getattr(model.config, "output_router_logits", False):
            load_loss = model.config.router_aux_loss_coef * out.aux_loss
            step["aux_loss"] = load_loss.item()
            loss = loss + load_loss
        loss.backward()
        step["grad_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), ADAM["clip"]).item()
        optimizer.step()
        steps.append(step)
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
        if len(sys.argv) > 2 and case not in sys.argv[2:]:
            continue
        folder = os.path.join(sys.argv[1], case)
        shutil.rmtree(folder, ignore_errors=True)
        options = {"save_original_format": False} if case.endswith("_fused") else {}
        make_model(case, seed).save_pretrained(folder, max_shard_size=FILE_SIZES.get(case, "1GB"), **options)
        if case in OLDER:
            write_older_spelling(folder)
        os.remove(os.path.join(folder, "generation_config.json"))
        generator = torch.Generator().manual_seed(100 + seed)
        ids = torch.randint(0, SHAPE["vocab_size"], (SHAPE["max_position_embeddings"],), generator=generator).tolist()
        expected = {"torch": torch.__version__, "transformers": transformers.__version__, "ids": ids,
                    "logits": [[round(x, 7) for x in row] for row in logits_of(folder, ids).tolist()]}
        if case in TRAINED:
            expected["training"] = train(folder, generator)
        with open(os.path.join(folder, "expected.json"), "w", encoding="utf-8") as file:
            json.dump(expected, file)
            file.write("\n")


if __name__ == "__main__":
    main()
