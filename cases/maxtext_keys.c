#include "cases/maxtext_keys.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const assay_maxtext_key assay_maxtext_keys[ASSAY_MAXTEXT_KEYS] = {
#define X(key, unchanging, parts) {#key, unchanging, parts},
    ASSAY_MAXTEXT_KEY_TABLE(X)
#undef X
};

/* Every other key of configs/types.py at commit e591f30 of 2026-08-22, but for those that a case has under another name
 * (emb_dim, dtype, ...). Each between spaces. */
static const char *const NEUTRAL[] = {
    /* the run, checkpoints */
    " base_config run_name override_model_config override_logical_axis_rules log_config debug_sharding"
    " base_output_directory sharding_strategy convert_checkpoint_if_possible load_parameters_path"
    " lora_input_adapters_path hf_lora_adapter_path load_full_state_path enable_checkpointing"
    " load_checkpoint_only_once async_checkpointing checkpoint_period max_num_checkpoints_to_keep"
    " enable_single_replica_ckpt_restoring checkpoint_todelete_subdir checkpoint_todelete_full_path force_unroll"
    " checkpoint_is_quantized save_quantized_params_path enable_orbax_v1 checkpoint_conversion_fn"
    " source_checkpoint_layout save_checkpoint_on_start save_checkpoint_on_completion enable_continuous_checkpointing"
    " colocated_python_checkpointing enable_autocheckpoint checkpoint_storage_target_data_file_size_bytes"
    " checkpoint_storage_use_ocdbt checkpoint_storage_use_zarr3 checkpoint_storage_concurrent_gb"
    " enable_multi_tier_checkpointing local_checkpoint_directory local_checkpoint_period"
    " multi_tier_checkpointing_backup_interval_minutes multi_tier_checkpointing_backup_interval_steps"
    " mtc_data_parallelism enable_emergency_checkpoint use_replicator_service replicator_backup_interval_minutes ",
    /* storage of numbers (profiles say what a kernel computes in) */
    " grad_dtype weight_dtype matmul_precision activations_in_float32 dtype_mm replicate_quant_scale quant_cfg_path"
    " quantize_kvcache kv_quant_axis kv_quant_dtype quantization_local_shard_count use_qwix_quantization"
    " use_manual_quantization weight_sparsity_m weight_sparsity_update_step weight_sparsity_start_step"
    " te_comm_gemm_overlap ",
    /* initial values, the ends of the model, heads beside it */
    " dense_init_scale v_norm_with_scale mtp_num_layers mtp_loss_scaling_factor"
    " mtp_eval_target_module logits_via_embedding normalize_embedding_logits logits_dot_in_fp32 cast_logits_to_fp32"
    " final_logits_soft_cap z_loss_multiplier num_vocab_tiling vocab_tiling_ag_once ",
    /* kernels and layouts of attention; what a key of the other table turns on */
    " vocab_size_per_layer_input float32_qk_product float32_logits causal_block_size use_ragged_attention"
    " ragged_block_size enable_padding_causal_mask use_tokamax_splash use_jax_splash force_q_layout use_qk_clip"
    " qk_clip_threshold mla_qk_head_chunk_size moba_chunk_size moba_topk mla_naive_kvcache use_sliced_mla_proj"
    " indexer_head_dim indexer_n_heads indexer_topk indexer_sparse_training indexer_loss_scaling_factor"
    " indexer_use_approx_top_k indexer_approx_top_k_recall indexer_mask_exact_topk use_splash_scheduler"
    " ring_scan_unroll local_use_splash_scheduler experimental_sa_quant_q_fp8 experimental_sa_quant_k_fp8"
    " use_max_logit_estimate cost_estimate_flops_fwd cost_estimate_flops_bwd dq_reduction_steps ",
    /* kernels and layouts of the experts */
    " moe_chunk_barrier padded_base_moe_mlp_dim use_custom_sort_vjp moe_dispatch_no_expert_sharding use_ragged_sort"
    " ragged_sort_use_single_sparsecore use_gather_mosaic_kernel ragged_gather_fallback ragged_gather_reduce_fallback"
    " ragged_gather_cost_estimate_flops ragged_gather_reduce_cost_estimate_flops"
    " ragged_gather_cost_estimate_bytes_accessed ragged_gather_reduce_cost_estimate_bytes_accessed"
    " moe_fsdp_use_two_stage_all_gather use_2d_fsdp_sharding float32_weight_sum float32_gate_logits"
    " fuse_expert_scales megablox use_tokamax_gmm use_gmm_v2 log_moe_bias_norms gdn_conv_kernel_dim"
    " gdn_key_head_dim gdn_value_head_dim gdn_num_key_heads gdn_num_value_heads gdn_chunk_size use_qk_norm_in_gdn ",
    /* devices, sharding, pipelines, offloading */
    " hardware num_slices mesh_axes shard_mode scan_layers param_scan_axis context_parallel_load_balance"
    " context_parallel_strategy context_parallel_reorder_strategy custom_mesh custom_mesh_and_rule"
    " custom_mesh_and_rule_for_eval allow_split_physical_axes enable_nnx optimize_mesh_for_tpu_v6e shardy"
    " pure_nnx_decoder pure_nnx remove_size_one_mesh_axis_from_type logical_axis_rules logical_axis_rules_for_eval"
    " data_sharding context_sharding ulysses_context_sharding input_data_sharding_logical_axes sharding_tolerance"
    " check_vma shard_optimizer_over_data dense_fsdp_use_two_stage_all_gather internal_compile"
    " internal_compile_num_devices compile_xla_flags pipeline_fsdp_ag_per_repeat num_layers_per_pipeline_stage"
    " num_pipeline_repeats pipeline_parallel_layers num_pipeline_microbatches pipeline_delay_activation_forwarding"
    " pipeline_fsdp_ag_once scan_pipeline_iterations scan_pipeline_repeats scan_layers_per_stage"
    " set_remat_policy_on_pipeline_iterations set_remat_policy_on_layers_per_stage indexer_cutoff_threshold"
    " kv_proj engram optimizer_memory_host_offload parameter_memory_host_offload ",
    /* data, training */
    " tokenizer_path tokenizer_type use_chat_template chat_template_path chat_template data_template_path"
    " tokenize_train_data tokenize_eval_data add_bos add_eos use_truncation dataset_type per_device_batch_size"
    " eval_per_device_batch_size max_corpus_chars train_data_columns train_image_column eval_data_columns"
    " eval_image_column default_prompt packing grain_packing_type max_segments_per_seq num_epoch"
    " expansion_factor_real_data reuse_example_batch generate_padding_batch_train generate_padding_batch_eval"
    " enable_rampup_batch_size per_device_batch_size_start per_device_batch_size_increment global_rampup_samples"
    " colocated_python_data_input dataset_path dataset_name eval_dataset_name train_split eval_split hf_path hf_name"
    " hf_data_dir hf_train_files hf_eval_split hf_eval_files hf_access_token grain_train_files grain_eval_files"
    " grain_train_mixture_config_path grain_file_type grain_use_elastic_iterator grain_worker_count"
    " grain_per_worker_buffer_size grain_worker_count_eval grain_per_worker_buffer_size_eval grain_ram_budget_mb"
    " grain_num_threads grain_prefetch_buffer_size grain_num_threads_eval grain_prefetch_buffer_size_eval"
    " grain_data_source_max_workers grain_index_storage_option grain_shuffle_buffer_size olmo_index_path"
    " olmo_path_remap_from olmo_path_remap_to olmo_apply_ngram_filter algo dpo_beta orpo_lambda dpo_label_smoothing"
    " max_prompt_length use_dpo use_sft sft_train_on_completion_only formatting_func_path formatting_func_kwargs"
    " use_grpo enable_lora lora_rank lora_alpha lora_module_path lora_weight_qtype lora_tile_size lora_restore_path"
    " student_overrides teacher_overrides offline_data_dir distill_alpha distill_temperature distill_beta"
    " distill_feature_loss_type distill_layer_indices distill_alpha_end distill_alpha_schedule distill_temperature_end"
    " distill_temperature_schedule distill_beta_end distill_beta_schedule learn_to_init_mode"
    " lti_use_general_linear_map distill_weights_copy_map distill_student_weights_share_map attn_module_name"
    " lti_layer_indices student_params_to_update training_objective block_diffusion_mask_id block_diffusion_min_noise"
    " block_diffusion_logit_alignment block_diffusion_canvas_policy steps log_period eval_start_step eval_interval"
    " eval_steps target_eval_loss abort_on_nan_loss abort_on_inf_loss enable_dropout enable_data_shuffling"
    " data_shuffle_seed init_weights_seed max_inflight_computations sinkhorn_iterations enable_mhc_lite"
    " use_mhc_pallas_kernel mhc_pallas_kernel_fwd_block_size mhc_pallas_kernel_bwd_block_size enable_diloco"
    " diloco_sync_period diloco_outer_lr diloco_outer_momentum dcn_bandwidth_limit dcn_bandwidth_burst"
    " dcn_bandwidth_latency dcn_bandwidth_interface enable_streaming_diloco num_diloco_fragments use_sequential_layers"
    " num_communication_overlapping_steps communication_overlapping_alpha opt_type skip_step_on_spikes"
    " skip_step_interval skip_step_scaling_factor gradient_accumulation_steps use_tunix_gradient_accumulation"
    " gradient_clipping_threshold learning_rate lr_schedule_type learning_rate_final_fraction wsd_decay_steps_fraction"
    " wsd_decay_style warmup_steps_fraction learning_rate_schedule_steps trainable_parameters_mask adam_b1 adam_b2"
    " adam_eps adam_eps_root adam_weight_decay adamw_mask mu_dtype muon_beta muon_weight_decay muon_consistent_rms"
    " use_iota_embed use_untrainable_positional_embedding trainable_position_size rope_use_scale"
    " global_rope_proportion local_rope_proportion ",
    /* inference, compilation, profiles, logs */
    " max_target_length max_prefill_predict_length prompt system_prompt load_from_prefill_dir prefill_cache_dir"
    " autoregressive_decode_assert model_call_mode use_chunked_prefill prefill_chunk_size enable_model_warmup"
    " enable_llm_inference_pool multi_sampling return_log_prob decode_sampling_strategy decode_sampling_nucleus_p"
    " decode_sampling_top_k decode_sampling_temperature stack_prefill_result_cache prefill_cache_axis_order"
    " ar_cache_axis_order compute_axis_order reshape_q inference_server prefill_slice generate_slice"
    " inference_microbenchmark_prefill_lengths inference_microbenchmark_stages inference_microbenchmark_loop_iters"
    " inference_microbenchmark_log_file_path inference_microbenchmark_num_samples inference_metadata_file"
    " inference_benchmark_test enable_prefix_caching prefix_caching_hbm_byte prefix_caching_dram_byte"
    " compiled_trainstep_file compile_topology compile_topology_num_slices write_estimator_result"
    " constant_bound_config jax_cache_dir jax_distributed_initialization_timeout jax_debug_log_modules"
    " skip_jax_distributed_system enable_single_controller subslice_shape max_checkify profiler"
    " upload_all_profiler_results skip_first_n_steps_for_profiler profiler_steps profile_cleanly"
    " profile_periodically_period hide_profiler_step_metric enable_jax_profiler jax_profiler_port"
    " enable_tpu_profiling_options tpu_num_chips_to_profile_per_task tpu_num_sparse_cores_to_trace"
    " tpu_num_sparse_core_tiles_to_trace xprof_tpu_power_trace_level xprof_e2e_enable_fw_throttle_event"
    " xprof_e2e_enable_fw_power_level_event xprof_e2e_enable_fw_thermal_event profile_power_events dump_hlo dump_step"
    " dump_hlo_local_dir dump_hlo_delete_local_after dump_hlo_gcs_dir dump_hlo_module_name dump_hlo_local_module_name"
    " dump_hlo_xla_flags dump_hlo_upload_all dump_jaxpr dump_jaxpr_local_dir dump_jaxpr_delete_local_after"
    " dump_jaxpr_gcs_dir metrics_file gcs_metrics save_config_to_gcs record_internal_nn_metrics prometheus_port"
    " enable_checkpoint_cloud_logger enable_wandb wandb_project_name wandb_run_name managed_mldiagnostics"
    " managed_mldiagnostics_on_demand_profiling managed_mldiagnostics_run_group managed_mldiagnostics_region"
    " managed_mldiagnostics_storage_path enable_goodput_recording monitor_goodput goodput_upload_interval_seconds"
    " enable_pathways_goodput monitor_step_time_deviation step_deviation_interval_seconds enable_gcp_goodput_metrics"
    " enable_gcp_step_deviation_metrics elastic_enabled elastic_backup_kind elastic_timeout_seconds"
    " elastic_max_retries elastic_min_slice_count report_heartbeat_metric_for_gcp_monitoring"
    " heartbeat_reporting_interval_in_seconds report_performance_metric_for_gcp_monitoring enable_tensorboard"
    " use_vertex_tensorboard vertex_tensorboard_project vertex_tensorboard_region ",
    /* images and sound */
    " use_multimodal vision_encoder_block freeze_vision_encoder_params freeze_audio_encoder_params use_audio"
    " image_path image_placeholder max_num_images_per_example video_path audio_path video_placeholder"
    " audio_placeholder use_audio_in_video mrope_section position_id_per_seconds video_max_grid_t video_max_grid_h"
    " video_max_grid_w vision_output_length vision_projector_type vision_connector_num_layers"
    " vision_connector_hidden_size vision_connector_activation vision_connector_use_bias ",
    /* reinforcement learning */
    " trainer_devices_fraction sampler_devices_fraction chips_per_vm use_pathways num_trainer_slices"
    " num_samplers_slices rollout_data_parallelism rollout_tensor_parallelism rollout_expert_parallelism"
    " inference_replicas inference_devices_per_replica inference_rollouts use_pathways_reshard kv_cache_buffer"
    " hbm_utilization_vllm swap_space_vllm_gb enable_dp_attention enable_expert_parallel async_scheduling"
    " max_num_batched_tokens max_num_seqs stop_strings vllm_additional_config vllm_hf_overrides vllm_hf_config_path"
    " use_standalone_converter use_weight_converter weight_sync_debug log_weight_sync_time vllm_load_format"
    " debug_converter gcs_debug_path num_generations num_iterations grpo_beta grpo_epsilon loss_algo loss_agg_mode"
    " use_agentic_rollout max_concurrency off_policy_steps epsilon_high reshard_chunk_size hf_subset batch_size"
    " num_batches num_test_batches eval_batch_size test_batch_start_index train_fraction train_micro_batch_size"
    " rollout_micro_batch_size dataset_processor_path eval_sampling_strategy generation_configs num_eval_passes"
    " eval_corr_lst eval_make_lst eval_mode reward_exact_answer reward_exact_format_match"
    " reward_white_space_format_match reward_partial_format_match reward_ratio_guess_to_answer_high"
    " reward_ratio_guess_to_answer_low penalty_incorrect_format penalty_incorrect_answer math_verify_timeout"
    " math_verify_num_procs reward_functions_path reward_functions reasoning_start_token reasoning_end_token"
    " reasoning_start_token_in_prompt solution_start_token solution_end_token ",
    /* what a key of the other table turns on, derived values */
    " engram_num_heads engram_head_dim engram_vocab_bases engram_max_ngram_size engram_kernel_size engram_seed"
    " num_diloco_replicas ici_parallelism dcn_parallelism using_pipeline_parallelism num_target_devices"
    " global_batch_size_to_train_on global_batch_size_to_eval_on global_batch_size_to_load"
    " global_batch_size_to_load_eval micro_batch_size_to_train_on micro_batch_size_to_eval_on checkpoint_dir"
    " metrics_dir tensorboard_dir managed_mldiagnostics_dir rampup_end_step tensors_on_device tensors_to_offload"
    " global_batch_size_to_load_start global_batch_size_to_load_increment rampup_samples_per_increment_to_load dpo"
    " lora enable_tunix_perf_metrics debug cluster rl dataset reward special_tokens evaluation vllm ",
};
static const char *const NEUTRAL_PATTERNS[] = {
    "*_for_vit",         "*_for_audio",       "wi_tile_*", "wo_tile_*",
    "ici_*_parallelism", "dcn_*_parallelism", "sa_*",      "local_sa_*",
};

int assay_maxtext_key_by_name(const char *name)
{
    for (int i = 0; i < ASSAY_MAXTEXT_KEYS; i++) {
        if (strcmp(name, assay_maxtext_keys[i].name) == 0) return i;
    }
    return -1;
}

static bool is_number(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0';
}

static bool same_value(const char *a, const char *b)
{
    double x, y;
    if (is_number(a, &x) && is_number(b, &y)) return x == y;
    return strcasecmp(a, b) == 0;
}

bool assay_maxtext_value_changes_nothing(const assay_maxtext_key *key, const char *value)
{
    char one[64];
    for (const char *p = key->unchanging;; p++) {
        const size_t length = strcspn(p, "|");
        memcpy(one, p, length);
        one[length] = '\0';
        if (same_value(one, value)) return true;
        p += length;
        if (*p == '\0') return false;
    }
}

bool assay_maxtext_key_is_neutral(const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof NEUTRAL / sizeof *NEUTRAL && strchr(name, ' ') == NULL; i++) {
        for (const char *at = strstr(NEUTRAL[i], name); at != NULL && length > 0; at = strstr(at + 1, name)) {
            if (at[-1] == ' ' && at[length] == ' ') return true;
        }
    }
    for (size_t i = 0; i < sizeof NEUTRAL_PATTERNS / sizeof *NEUTRAL_PATTERNS; i++) {
        if (fnmatch(NEUTRAL_PATTERNS[i], name, 0) == 0) return true;
    }
    return false;
}
