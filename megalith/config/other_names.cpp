#include "megalith/config/other_names.h"

#include <algorithm>
#include <cctype>

#include "megalith/base/text.h"

namespace megalith::config {
namespace {

constexpr OtherName kOtherNames[] = {
    // [model]
    {"n_layer n_layers nlayer nlayers layers depth num_hidden_layers num_transformer_layers", "model.num_layers", ""},
    {"n_embd n_embed nembd embed_dim embedding_size embedding_dim d_model dim hidden hidden_dim model_dim",
     "model.hidden_size", ""},
    {"n_head n_heads nhead nheads heads num_attention_heads attention_heads", "model.num_heads", ""},
    {"n_inner intermediate_size d_ff ffn_dim ffn_size mlp_dim ffn_hidden ffn_hidden_dim", "model.ffn_hidden_size", ""},
    {"mlp_ratio ffn_dim_multiplier", "model.ffn_hidden_size", "It is the width itself: the ratio * model.hidden_size"},
    {"block_size n_ctx n_positions max_position_embeddings seq_length sequence_length context_length context_size "
     "ctx_len max_seq_len max_seq_length max_sequence_length max_length",
     "model.seq_len", ""},
    {"n_vocab vocabulary_size", "model.vocab_size", ""},
    {"make_vocab_size_divisible_by pad_vocab_size_to_multiple_of", "model.padded_vocab_size",
     "It is the padded size itself; the default is a multiple of 128 * tp"},
    {"hidden_dropout resid_pdrop resid_dropout residual_dropout hidden_dropout_prob dropout_rate dropout_p",
     "model.dropout", ""},
    {"attn_pdrop attn_dropout attention_probs_dropout_prob", "model.attention_dropout", ""},
    {"embd_pdrop embd_dropout embed_dropout emb_dropout", "model.embedding_dropout", ""},
    {"model_type model_name model_size model_name_or_path model.name model.flavor", "model.preset",
     "It names sizes; weights of Hugging Face come in by `megalith checkpoint import-hf`"},
    {"kv_channels d_head head_size", "model.head_dim", ""},
    {"group_query_attention num_query_groups num_key_value_heads n_kv_heads multi_query", "model.num_kv_heads",
     "It is the number of heads of keys and values"},
    {"add_bias_linear disable_bias_linear use_bias add_qkv_bias attention_bias mlp_bias", "model.bias",
     "It is all, qkv or none"},
    {"layer_norm_epsilon layer_norm_eps layernorm_epsilon norm_epsilon rms_norm_eps", "model.norm_eps", ""},
    {"norm_first post_norm pre_norm", "model.norm_placement", "It is pre or post"},
    {"normalization norm_type rmsnorm", "model.norm", "It is layer or rms"},
    {"apply_layernorm_1p", "", "A norm multiplies by its weight, not by 1 + weight; leave it out"},
    {"hidden_act activation_function swiglu openai_gelu squared_relu", "model.activation",
     "It is gelu (its tanh form), gelu_erf or swiglu"},
    {"position_embedding_type use_rotary_position_embeddings rope", "model.position", "It is learned or rope"},
    {"rotary_base", "model.rope_theta", ""},
    {"use_rope_scaling rotary_seq_len_interpolation_factor", "model.rope_scaling", "It is none, linear or llama3"},
    {"rotary_percent rotary_interleaved partial_rotary_factor", "",
     "Rotations take the whole head, its halves against each other; leave it out"},
    {"multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim", "",
     "Latent attention (MLA) is not built; model.num_kv_heads makes the cache smaller"},
    {"sliding_window window_attn_skip_freq", "", "Attention takes all of model.seq_len; leave it out"},
    {"mtp_num_layers mtp_loss_scaling_factor", "", "The prediction of several tokens (MTP) is not built"},
    {"bert_no_binary_head bert_binary_head", "bert.order", "It is sop, nsp or none"},
    {"mask_prob mlm_probability masked_lm_prob", "bert.mask_fraction", ""},
    {"short_seq_prob", "bert.short_fraction", ""},
    {"encoder_seq_length decoder_seq_length encoder_num_layers decoder_num_layers retro_add_retriever", "",
     "Models are gpt2, llama or bert (model.family), with one stack of layers; leave it out"},
    {"qk_layernorm use_qk_norm", "model.qk_norm", "It is none, head or all"},
    {"tie_word_embeddings tie_embeddings untie_embeddings_and_output_weights share_embeddings_and_output_weights",
     "model.tied", ""},
    {"init_method_std initializer_range", "model.init_std", ""},
    {"init_method_xavier_uniform", "model.init_std", "First values are normal numbers with this deviation"},
    {"use_scaled_init_method depth_init", "model.init_depth_scaling", ""},
    {"lora.* peft.* adapter.* lora use_lora peft lora_r lora_rank lora_alpha lora_dropout lora_target_modules", "",
     "All weights are trained: low-rank adapters (LoRA) are not built; train.init names what a run begins with"},
    {"ffn_hidden_size", "model.ffn_hidden_size", "Experts have moe.ffn_hidden_size"},
    // [moe]
    {"num_experts num_local_experts n_routed_experts", "moe.num_experts", ""},
    {"moe_router_topk router_topk router_top_k num_experts_per_tok num_experts_per_token", "moe.top_k", ""},
    {"moe_ffn_hidden_size moe_intermediate_size", "moe.ffn_hidden_size", ""},
    {"moe_layer_freq decoder_sparse_step mlp_only_layers", "moe.pattern",
     "It repeats over the layers: \"dm\" is a dense layer, then one with experts"},
    {"moe_router_score_function scoring_func", "moe.score", "It is softmax or sigmoid"},
    {"moe_router_pre_softmax", "moe.score_before_top_k", ""},
    {"norm_topk_prob", "moe.normalize_top_k", ""},
    {"moe_router_topk_scaling_factor routed_scaling_factor", "moe.scale", ""},
    {"moe_router_num_groups n_group", "moe.num_groups", ""},
    {"moe_router_group_topk topk_group", "moe.group_top_k", ""},
    {"moe_aux_loss_coeff router_aux_loss_coef aux_loss_alpha", "moe.aux_loss", ""},
    {"moe_router_load_balancing_type", "moe.aux_scope", "It is microbatch, sequence or global; moe.aux_loss = 0: none"},
    {"moe_z_loss_coeff router_z_loss_coef", "moe.z_loss", ""},
    {"moe_router_enable_expert_bias moe_router_bias_update_rate", "moe.expert_bias_rate", "0: no bias"},
    {"moe_shared_expert_intermediate_size shared_expert_intermediate_size n_shared_experts",
     "moe.shared_ffn_hidden_size", "It is the width of all shared experts together"},
    {"moe_shared_expert_gate", "moe.shared_gate", ""},
    {"moe_expert_capacity_factor", "moe.capacity_factor", "With moe.capacity = drop or pad"},
    {"moe_pad_expert_input_to_capacity", "moe.capacity", "It is none, drop or pad"},
    {"moe_token_drop_policy", "moe.drop_by", "It is probability or position"},
    {"moe_token_dispatcher_type", "moe.dispatcher", ""},
    {"moe_router_force_load_balancing", "moe.force_balance", ""},
    {"moe_router_force_biased", "moe.router_skew",
     "There the value is the deviation of random biases; here it times log(1 + e) is subtracted from the logits of "
     "expert e"},
    {"moe_grouped_gemm moe_use_legacy_grouped_gemm", "moe.gemm", ""},
    {"moe_enable_deepep moe_flex_dispatcher_backend", "moe.dispatcher", ""},
    {"moe_layer_recompute", "recompute.modules", ""},
    {"moe_extended_tp", "parallel.etp", ""},
    {"moe_router_dtype", "", "Routers compute in f32 in every precision; leave it out"},
    {"moe_permute_fusion moe_router_fusion moe_shared_expert_overlap overlap_moe_expert_parallel_comm "
     "delay_wgrad_compute moe_per_layer_logging",
     "", "Kernels and overlap are chosen by shape, device and grid; leave it out"},
    {"moe_input_jitter_eps moe_apply_probs_on_input moe_use_upcycling", "", "It is not built; leave it out"},
    // [parallel]
    {"tensor_model_parallel_size tensor_parallel_size tensor_parallel_degree tensor_parallel model_parallel_size "
     "tp_size tp_degree",
     "parallel.tp", ""},
    {"pipeline_model_parallel_size pipeline_parallel_size pipeline_parallel_degree pipeline_parallel pp_size "
     "pp_degree",
     "parallel.pp", ""},
    {"context_parallel_size context_parallel_degree cp_size cp_comm_type hierarchical_context_parallel_sizes "
     "context_parallel_rotate_method",
     "parallel.cp", "More than 1 is not built yet"},
    {"expert_model_parallel_size expert_parallel_size expert_parallel_degree ep_size", "parallel.ep", ""},
    {"expert_tensor_parallel_size expert_tensor_parallel_degree etp_size", "parallel.etp", ""},
    {"dp dp_size dp_degree data_parallel data_parallel_size data_parallel_degree data_parallel_replicate_degree",
     "parallel.ranks", "dp is what tp and pp leave of the ranks: parallel.ranks = dp * tp * pp"},
    {"world_size num_gpus n_gpu n_gpus num_processes nproc nproc_per_node gpus devices", "parallel.ranks",
     "It counts all ranks of the run; --ranks and mpirun set it, too"},
    {"vpp vpp_size virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank interleave",
     "parallel.chunks", ""},
    {"num_layers_per_virtual_pipeline_stage", "parallel.chunks",
     "It counts chunks of a stage: model.num_layers / (pp * layers of a virtual stage)"},
    {"microbatch_group_size_per_virtual_pipeline_stage microbatch_group_size_per_vp_stage", "parallel.group_size", ""},
    {"decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers pipeline_model_parallel_layout "
     "pipeline_parallel_split_points pipeline_parallel_layers_per_stage account_for_embedding_in_pipeline_split "
     "account_for_loss_in_pipeline_split",
     "parallel.stage_layers", "It lists the layers of every stage: [5, 7, 7, 5]"},
    {"pipeline_model_parallel_split_rank standalone_embedding_stage", "",
     "The first stage has the embedding, the last the head; leave it out"},
    {"pipeline_parallel_schedule", "parallel.chunks", "1 is 1F1B, more is interleaved 1F1B; nothing else is built"},
    {"pipeline_parallel_microbatch_size", "train.micro_batch", ""},
    {"use_tp_pp_dp_mapping", "parallel.order", "It names all axes: \"tp-cp-ep-pp-dp\""},
    {"tp_comm_overlap tp_comm_overlap_cfg disable_tp_comm_overlap_ag enable_async_tensor_parallel",
     "parallel.tp_overlap", "It is auto, halves or none"},
    {"overlap_grad_reduce overlap_param_gather overlap_p2p_communication no_overlap_p2p_communication overlap_comm "
     "defer_embedding_wgrad_compute delay_grad_reduce overlap_param_gather_with_optimizer_step align_grad_reduce "
     "align_param_gather ddp_bucket_size ddp_num_buckets nccl_communicator_config_path disable_loss_parallel",
     "", "Communication runs beside computation wherever it can; leave it out"},
    {"distributed_timeout_minutes", "parallel.timeout_s", "It counts seconds: minutes * 60"},
    {"init_timeout_seconds train_timeout_seconds", "parallel.timeout_s", ""},
    {"ddp_average_in_collective calculate_per_token_loss", "",
     "The loss is the mean over the targets of all ranks and microbatches; leave it out"},
    {"distributed_backend ddp_backend backend", "",
     "Ranks are threads, or processes under mpirun; between GPUs NCCL is used; leave it out"},
    {"local_rank lazy_mpu_init", "", "mpirun and srun number the processes; leave it out"},
    // [train]
    {"max_iters train_iters num_iters iters max_steps num_steps n_steps total_steps num_train_steps iterations "
     "num_iterations training_steps training.steps",
     "train.steps", ""},
    {"train_samples", "train.steps", "It counts steps: samples / train.global_batch"},
    {"max_tokens train_tokens num_tokens total_tokens", "train.steps",
     "It counts steps: tokens / (train.global_batch * model.seq_len)"},
    {"epochs num_epochs max_epochs num_train_epochs", "train.steps",
     "It counts steps: epochs * samples of the corpus / train.global_batch"},
    {"batch_size batch", "train.micro_batch",
     "It counts samples of one pass on one rank; those of a step on all ranks are train.global_batch"},
    {"micro_batch_size mbs device_batch_size per_device_batch_size per_device_train_batch_size per_gpu_batch_size "
     "train_micro_batch_size_per_gpu local_batch_size",
     "train.micro_batch", ""},
    {"global_batch_size gbs train_batch_size total_batch_size effective_batch_size", "train.global_batch",
     "It counts samples, not tokens"},
    {"grad_accum grad_accum_steps gradient_accumulation_steps gradient_accumulation grad_accumulation_steps "
     "accumulate_grad_batches num_microbatches num_micro_batches",
     "train.global_batch", "It is train.micro_batch * dp * microbatches of a step, dp = ranks / (tp * pp)"},
    {"rampup_batch_size", "train.batch_ramp", "It is START:END:SAMPLES, and grows by START"},
    {"decrease_batch_size_if_needed", "", "Every step has train.global_batch samples; leave it out"},
    {"dtype torch_dtype params_dtype data_type mixed_precision amp autocast "
     "mixed_precision_param",
     "train.precision", "It is fp64, fp32, bf16, fp16 or fp8"},
    {"bf16 bfloat16", "train.precision", "Its value is \"bf16\""},
    {"fp16 float16 half", "train.precision", "Its value is \"fp16\""},
    {"tf32 allow_tf32 override_enable_tf32 fp8 fp8_format fp8_recipe fp8_hybrid fp8_margin fp8_param_gather float8 "
     "enable_fsdp_float8_all_gather fp4 fp4_format moe_router_padding_for_fp8 converters",
     "train.precision", "It is fp64, fp32, bf16, fp16 or fp8, and nothing else is built"},
    {"fp32_residual_connection apply_query_key_layer_scaling attention_softmax_in_fp32 "
     "accumulate_allreduce_grads_in_fp32 fp16_lm_cross_entropy mixed_precision_reduce use_master_weights "
     "main_grads_dtype main_params_dtype",
     "", "train.precision sets the types of all; sums, gradients and masters are f32 in bf16 and fp16"},
    {"finetune no_load_optim no_load_rng initial_load_path exclude_from_loading", "train.init",
     "It names a checkpoint whose weights a run begins with, at step 0 and with new moments"},
    {"exit_interval", "train.steps", "It ends a run; `megalith train --resume --set train.steps=N` goes on"},
    {"exit_duration_in_mins exit_signal_handler adlr_autoresume", "",
     "A run that is sent SIGUSR1 or SIGTERM saves and ends with 75; let the scheduler send it before its limit"},
    {"skip_train", "", "`megalith eval` measures a checkpoint without training"},
    {"check_for_nan_in_loss_and_grad no_check_for_nan_in_loss_and_grad rerun_mode", "",
     "Every step is checked for numbers that are not finite; leave it out"},
    {"check_for_spiky_loss check_for_large_grads skip_update_lossz skip_update_gradz error_injection_rate", "",
     "Spikes are not looked for; optimizer.clip bounds the gradient's norm; leave it out"},
    {"profile enable_profiling use_pytorch_profiler profile_step_start profile_step_end profile_ranks profile_freq "
     "save_traces_folder",
     "", "`megalith train --trace FILE` writes the times of steps 3 to 5 for Perfetto"},
    {"enable_memory_snapshot memory_estimation.enabled", "", "`megalith plan` prints the memory of every rank"},
    {"te_rng_tracker inference_rng_tracker data_parallel_random_init", "",
     "Random numbers follow from train.seed, step and place; leave it out"},
    {"manual_gc manual_gc_interval gc_freq empty_unused_memory_level", "",
     "Memory is planned before step 1, and nothing is collected; leave it out"},
    {"overfit_single_batch", "", "Train on a small file instead (data.train)"},
    {"initial_loss_scale init_scale", "train.loss_scale", ""},
    {"min_loss_scale", "train.loss_scale_min", ""},
    {"loss_scale_window growth_interval", "train.loss_scale_interval", ""},
    {"hysteresis", "", "The loss scale halves at every overflow; leave it out"},
    {"random_seed manual_seed", "train.seed", ""},
    {"deterministic_mode use_deterministic_algorithms", "train.deterministic", ""},
    {"eval_every eval_steps val_interval val_check_interval val_every evaluate_every val_loss_every validation.freq",
     "train.eval_interval", ""},
    {"eval_iters val_iters limit_val_batches eval_max_batches val_max_steps", "train.eval_batches",
     "It counts batches of train.global_batch samples"},
    {"recompute_granularity recompute_activations activation_checkpointing "
     "gradient_checkpointing activation_checkpoint.mode recompute",
     "recompute.mode", "It is full, or selective with recompute.modules"},
    {"recompute_method", "recompute.method", ""},
    {"selective_ac_option", "recompute.modules", ""},
    {"distribute_saved_activations", "parallel.sequence_parallel", "It shares what is saved among the ranks of tp"},
    {"recompute_num_layers", "recompute.layers", ""},
    {"compile torch_compile use_flash_attn use_flash_attention flash_attention flash attention_backend "
     "attn_implementation transformer_impl use_mcore_models masked_softmax_fusion "
     "bias_gelu_fusion no_masked_softmax_fusion no_bias_gelu_fusion no_bias_swiglu_fusion no_bias_dropout_fusion "
     "no_rope_fusion no_persist_layer_norm no_gradient_accumulation_fusion cross_entropy_loss_fusion "
     "cross_entropy_fusion_impl gelu_fusion compile.enable",
     "", "Kernels are chosen by shape and device; leave it out"},
    {"gemm_algorithm tune_gemm", "train.gemm", "It is timed or heuristic"},
    // [optimizer]
    {"learning_rate max_lr peak_lr base_lr", "optimizer.lr", ""},
    {"min_learning_rate end_lr final_lr lr_end lr_scheduler.lr_min", "optimizer.min_lr", ""},
    {"min_lr_ratio final_lr_fraction min_lr_factor learning_rate_decay_frac", "optimizer.min_lr",
     "It is the rate itself: the ratio * optimizer.lr"},
    {"warmup warmup_iters warmup_iterations lr_scheduler.warmup_steps training.warmup_steps lr_warmup_iters "
     "lr_warmup_steps num_warmup_steps",
     "optimizer.warmup_steps", ""},
    {"lr_warmup_fraction warmup_ratio warmup_fraction", "optimizer.warmup_steps",
     "It counts steps: the fraction * train.steps"},
    {"lr_warmup_samples", "optimizer.warmup_steps", "It counts steps: samples / train.global_batch"},
    {"lr_warmup_init", "", "The rate rises from 0; leave it out"},
    {"lr_decay_iters lr_decay_steps decay_iters", "optimizer.decay_steps", ""},
    {"lr_decay_samples", "optimizer.decay_steps", "It counts steps: samples / train.global_batch"},
    {"lr_decay_style lr_scheduler lr_scheduler_type lr_schedule scheduler schedule decay_type", "optimizer.decay",
     "It is cosine, linear, wsd, inverse_sqrt or constant"},
    {"lr_wsd_decay_iters", "optimizer.decay_steps", "With optimizer.decay = \"wsd\" it is the length of the decay"},
    {"decay_ratio", "optimizer.decay_steps", "With optimizer.decay = \"wsd\" it is the ratio * train.steps"},
    {"lr_wsd_decay_style", "", "wsd decays on a line; leave it out"},
    {"override_opt_param_scheduler use_checkpoint_opt_param_scheduler", "",
     "The recipe sets the rates; docs/recipe.md lists which keys a resume may change"},
    {"decay_lr", "optimizer.decay", "true is \"cosine\", false is \"constant\""},
    {"wd l2", "optimizer.weight_decay", ""},
    {"start_weight_decay end_weight_decay weight_decay_incr_style", "optimizer.weight_decay", "It stays the same"},
    {"adam_beta1", "optimizer.beta1", ""},
    {"adam_beta2", "optimizer.beta2", ""},
    {"betas adam_betas", "optimizer.beta1", "The second is optimizer.beta2"},
    {"adam_eps adam_epsilon epsilon", "optimizer.eps", ""},
    {"use_precision_aware_optimizer exp_avg_dtype exp_avg_sq_dtype", "optimizer.moments",
     "Both moments are f32 or bf16"},
    {"clip_grad grad_clip gradient_clip gradient_clip_val gradient_clipping max_grad_norm max_norm clip_norm "
     "grad_norm_clip clip_grad_norm",
     "optimizer.clip", ""},
    {"optimizer optimizer.name optimizer_type optimizer_name optim", "optimizer.type", "It is adamw or muon"},
    {"muon_momentum muon.momentum", "optimizer.muon_momentum", ""},
    {"muon_scale_mode muon.adjust_lr_fn", "optimizer.muon_scale", "It is match_rms_adamw or original"},
    {"optimizer_cpu_offload overlap_cpu_optimizer_d2h_h2d use_torch_optimizer_for_cpu_offload cpu_offload", "",
     "Moments and masters stay on the device; optimizer.distributed shards them"},
    {"implementation early_step_in_backward", "", "The optimizer runs after the backward pass; leave it out"},
    {"momentum sgd_momentum", "", "AdamW has optimizer.beta1 and beta2, Muon optimizer.muon_momentum; leave it out"},
    {"use_distributed_optimizer distributed_optimizer zero fsdp use_fsdp data_parallel_sharding_strategy "
     "use_torch_fsdp2 use_custom_fsdp use_megatron_fsdp data_parallel_shard_degree fsdp_reshard_after_forward "
     "num_distributed_optimizer_instances",
     "optimizer.distributed",
     "It is true or false, and shards moments and masters; optimizer.shard = gradients shards gradients, too"},
    {"zero_stage zero_optimization.stage", "optimizer.distributed",
     "It is true for stage 1, false for 0; stage 2 also has optimizer.shard = gradients"},
    // [data]
    {"data_path", "data.train", "It takes text files, folders of them, or what `megalith data build` has written"},
    {"shuffle data_shuffle shuffle_data shuffle_buffer_size no_shuffle", "",
     "Samples are always shuffled, in an order that follows from train.seed; leave it out"},
    {"train_data_path dataset dataset_name datasets train_data train_file train_files data_dir corpus "
     "train_bin input_bin train_data_pattern dataset_path per_split_data_args_path data_args_path",
     "data.train", ""},
    {"valid_data_path val_data_path val_data valid_data valid_file validation_file val_bin input_val_bin "
     "val_data_pattern validation.dataset",
     "data.valid", ""},
    {"test_data test_file", "data.test", "It is for fine-tuning tasks"},
    {"json_key json_keys text_column text_column_name text_key text_field dataset_text_field", "data.key", ""},
    {"train_split val_split validation_split", "data.split", "It is the fraction trained on, \"0.9\", or \"969,30,1\""},
    {"vocab_file merge_file merges_file vocab_path tokenizer_model tokenizer_path tokenizer_file "
     "hf_assets_path",
     "data.vocab_dir", "It is the folder with encoder.json and vocab.bpe, or tokenizer.json"},
    {"tokenizer_type tokenizer_name tiktoken_pattern null_tokenizer", "data.tokenizer",
     "Kinds are gpt2, bpe, bert-uncased, bert-cased, sentencepiece and byte"},
    {"test_data_path hellaswag_eval", "", "`megalith eval` measures a checkpoint on other data"},
    {"eval_only do_eval evaluate_only", "", "`megalith eval OUT --task loss --data FILE` measures the model of a run"},
    {"config config_file config_path job.config_file yaml_cfg", "",
     "The recipe follows the command without an option: megalith train RECIPE.toml"},
    {"full_validation validation.enable", "train.eval_batches", "0 takes all of data.valid"},
    {"reset_position_ids reset_attention_mask document_mask document_masking attn_mask_type",
     "data.attend_across_documents", "false cuts attention and positions at the ends of documents"},
    {"packing sample_packing packed packed_sequence dataset_packed", "data.chat_packing", ""},
    {"eod_mask_loss create_attention_mask_in_dataloader no_create_attention_mask_in_dataloader", "",
     "The end of a document is a token as any other, and no mask is stored; leave it out"},
    {"vocab_extra_ids", "model.vocab_size", "It counts all ids"},
    {"num_workers dataloader_num_workers dataloader_type data_cache_path mock_data", "",
     "Token files are mapped and need no workers or cache; leave it out"},
    // [checkpoint], [log], [graphs], [device]
    {"save save_dir ckpt_dir checkpoint_dir checkpoint_path ckpt_path", "checkpoint.dir",
     "The default lies in the folder of `megalith train --out`"},
    {"out out_dir output output_dir run_dir output_log_dir dump_folder", "", "`megalith train --out FOLDER` sets it"},
    {"init_from", "train.init",
     "It names a checkpoint of megalith, whose weights a run begins with; `megalith checkpoint import-hf` makes one of "
     "Hugging Face's models, such as gpt2; `megalith train --resume` goes on with a run"},
    {"always_save_checkpoint", "",
     "Every checkpoint.interval steps or checkpoint.every_s seconds a run saves, whatever its loss; leave it out"},
    {"load resume resume_from resume_from_checkpoint pretrained_checkpoint ckpt_step load_step "
     "exit_on_missing_checkpoint use_checkpoint_args",
     "",
     "`megalith train --resume` goes on from the newest checkpoint in OUT; train.init begins with another's weights"},
    {"async_save async_mode use_persistent_ckpt_worker", "",
     "A save writes all shards at once while training waits; leave it out"},
    {"no_save_optim no_save_rng last_save_model_only", "",
     "A checkpoint always holds all that a resume needs; leave it out"},
    {"last_save_in_hf export_dtype ckpt_convert_format", "",
     "`megalith checkpoint export-hf` writes the Hugging Face format"},
    {"ckpt_format auto_detect_ckpt_format dist_ckpt_format use_dist_ckpt ckpt_fully_parallel_save "
     "ckpt_fully_parallel_load ckpt_assume_constant_structure",
     "", "Checkpoints are safetensors, written by all ranks and read on every grid; leave it out"},
    {"non_persistent_save_interval non_persistent_ckpt_type", "checkpoint.every_s", "It counts seconds"},
    {"enable_checkpoint checkpoint.enable", "checkpoint.interval", ""},
    {"save_interval save_steps save_every save_freq checkpoint_every checkpoint_freq checkpoint_steps ckpt_interval",
     "checkpoint.interval", ""},
    {"save_total_limit keep_last keep_last_n save_top_k max_checkpoints "
     "save_retain_interval keep_latest_k checkpoints_keep",
     "checkpoint.keep", ""},
    {"logging_steps log_every log_steps log_freq print_every log_every_n_steps", "log.interval", ""},
    {"tensorboard_dir tensorboard_log_dir logging_dir use_tensorboard enable_tensorboard save_tb_folder",
     "log.tensorboard", "true writes event files to OUT/tensorboard"},
    {"wandb.* wandb wandb_log wandb_project wandb_run_name wandb_exp_name wandb_save_dir enable_wandb "
     "report_to one_logger_project",
     "",
     "Weights & Biases is not built in: OUT/metrics.jsonl has every step, and log.tensorboard = true writes event "
     "files"},
    {"log_throughput log_params_norm log_num_zeros_in_grad log_progress log_timers_to_tensorboard "
     "log_memory_to_tensorboard log_validation_ppl_to_tensorboard log_world_size_to_tensorboard timing_log_level "
     "tensorboard_log_interval tensorboard_queue_size log_gpu_every",
     "", "OUT/metrics.jsonl has loss, norm, times, tokens per second, FLOP/s and memory of every step; leave it out"},
    {"enable_ft_package fault_tolerance.enable log_straggler straggler_minutes_to_check", "",
     "Ranks that hang are found after parallel.timeout_s; leave it out"},
    {"cuda_graph cuda_graphs cuda_graph_impl enable_cuda_graph external_cuda_graph use_cuda_graphs", "graphs.mode",
     "It is none, layers or iteration"},
    {"cuda_graph_scope", "graphs.scopes", "It lists attn and mlp"},
    {"graphs.warmup cuda_graph_warmup_steps", "graphs.warmup_steps", ""},
    {"device accelerator device_type", "device.type", "It is cpu or cuda"},
    {"use_cpu no_cuda use_cpu_initialization", "device.type", "Its value is \"cpu\""},
    {"gpus_per_node num_gpus_per_node ntasks_per_node", "device.ranks_per_node", ""},
    {"num_threads n_threads cpu_threads omp_num_threads threads_per_rank", "device.threads", ""}};

/// A value as other programs write it.
struct OtherValue {
  std::string_view names;  ///< words in lower case, with spaces between
  std::string_view value;  ///< ours, of any key that has it; empty: `how` has the sentence
  std::string_view key{}, how{};
};

// Families of Hugging Face whose blocks are Llama's with other keys.
constexpr std::string_view kMistral =
    "Mistral has Llama's blocks: model.family = \"llama\", with model.num_kv_heads for its heads of keys and values";
constexpr std::string_view kMixtral =
    "Mixtral is model.family = \"llama\" with a section [moe] whose score_before_top_k is false; model.preset = "
    "\"mixtral-8x7b\" sets all of it";
constexpr std::string_view kQwen2 = "Qwen2 has Llama's blocks: model.family = \"llama\" with model.bias = \"qkv\"";
constexpr std::string_view kQwen3 = "Qwen3 has Llama's blocks: model.family = \"llama\" with model.qk_norm = \"head\"";
constexpr std::string_view kOlmoe =
    "OLMoE is model.family = \"llama\" with model.qk_norm = \"all\" and a section [moe]; model.preset = "
    "\"olmoe-1b-7b\" sets all of it";

constexpr std::string_view kMps =
    "Apple's GPUs (Metal) have no backend here: \"cpu\" runs on all cores, \"cuda\" on NVIDIA's GPUs";
constexpr std::string_view kRocm =
    "AMD's and Intel's GPUs have no backend here: \"cuda\" runs on NVIDIA's, \"cpu\" on all cores";

constexpr OtherValue kOtherValues[] = {{"gpu gpus nvidia nvidia-gpu cuda:0 h100 h200 a100 b200", "cuda"},
                                       {"host processor", "cpu"},
                                       {"bfloat16 bf16-mixed bf16-true", "bf16"},
                                       {"float16 half fp16-mixed fp16-true", "fp16"},
                                       {"float32 float single tf32 32", "fp32"},
                                       {"float64 double 64", "fp64"},
                                       {"mistral", "", "model.family", kMistral},
                                       {"mixtral", "", "model.family", kMixtral},
                                       {"qwen2 qwen2_moe", "", "model.family", kQwen2},
                                       {"qwen3 qwen3_moe", "", "model.family", kQwen3},
                                       {"olmoe", "", "model.family", kOlmoe},
                                       {"mps metal mlx", "", "device.type", kMps},
                                       {"rocm hip amd xpu", "", "device.type", kRocm}};

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

/// The first row that has the value as a name and passes `fits`; nullptr: none.
template <class Fits>
const OtherValue* find_other_value(std::string_view value, const Fits& fits) {
  std::string lower(value);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* const found = std::ranges::find_if(
      kOtherValues, [&](const OtherValue& row) { return has_word(row.names, lower) && fits(row); });
  return found == std::end(kOtherValues) ? nullptr : found;
}

}  // namespace

std::string as_key(std::string_view name) {
  std::string text;
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  unsigned char before = 0;
  for (const unsigned char c : name) {
    if (std::isupper(c) != 0 && std::islower(before) != 0) text += '_';
    text += c == '-' ? '_' : static_cast<char>(std::tolower(c));
    before = c;
  }
  return text;
}

std::span<const OtherName> other_names() { return kOtherNames; }

std::string_view meant_value(std::string_view value, std::span<const std::string_view> choices) {
  // A value without one of ours has a sentence, and nothing else was meant.
  const auto is_known = [&](const OtherValue& row) {
    return row.value.empty() || std::ranges::find(choices, row.value) != choices.end();
  };
  const OtherValue* const row = find_other_value(value, is_known);
  return row != nullptr ? row->value : nearest(value, choices);
}

std::string_view how_to_write(std::string_view key, std::string_view value) {
  const OtherValue* const row = find_other_value(value, [&](const OtherValue& one) { return one.key == key; });
  return row != nullptr ? row->how : std::string_view();
}

const OtherName* find_other_name(std::string_view name) {
  const std::string full = as_key(name), last = full.substr(full.rfind('.') + 1);
  const bool has_section = last.size() < full.size();
  std::string joined = full;
  std::ranges::replace(joined, '.', '_');
  const std::string section = has_section ? full.substr(0, full.find('.')) + ".*" : full;
  for (const std::string& wanted : {full, section, last, joined}) {
    const auto* const found =
        std::ranges::find_if(kOtherNames, [&](const OtherName& row) { return has_word(row.names, wanted); });
    if (found != std::end(kOtherNames)) return found;
  }
  return nullptr;
}

}  // namespace megalith::config
