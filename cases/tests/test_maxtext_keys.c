/* The tables of MaxText's keys: what is passed over, what is kept, which values change nothing. */

#include "cases/case.h"
#include "tests/support/assay_test.h"

TEST(no_key_stands_twice)
{
    for (int i = 0; i < ASSAY_MAXTEXT_KEYS; i++) {
        const char *name = assay_maxtext_keys[i].name;
        assert_null(assay_model_key_by_name(name));
        assert_false(assay_maxtext_key_is_neutral(name));
        assert_int_equal(assay_maxtext_key_by_name(name), i);
    }
    for (int i = 0; i < ASSAY_MODEL_KEYS; i++) {
        assert_int_equal(assay_maxtext_key_by_name(assay_model_keys[i].name), -1);
        if (assay_maxtext_key_is_neutral(assay_model_keys[i].name)) fail_msg("%s", assay_model_keys[i].name);
    }
}

TEST(whole_names_alone_are_neutral)
{
    static const char *const neutral[] = {"base_config",
                                          "scan_layers",
                                          "megablox",
                                          "mtp_num_layers",
                                          "gdn_chunk_size",
                                          "image_size_for_vit",
                                          "ici_expert_parallelism",
                                          "sa_block_q",
                                          "lora"};
    static const char *const others[] = {"",
                                         " ",
                                         "scan",
                                         "scan_layer",
                                         "layers",
                                         "scan_layers ",
                                         "for_vit",
                                         "emb_dim",
                                         "dtype",
                                         "num_kv_heads",
                                         "moba",
                                         "ici_expert",
                                         "hidden_size",
                                         "base_config run_name",
                                         "base_emb_dim"};
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++) assert_true(assay_maxtext_key_is_neutral(neutral[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (assay_maxtext_key_is_neutral(others[i])) fail_msg("%s", others[i]);
    }
}

TEST(values_that_change_nothing)
{
    static const struct {
        int key;
        const char *value;
        bool nothing;
    } rows[] = {
        {ASSAY_MAXTEXT_moba, "false", true},
        {ASSAY_MAXTEXT_moba, "False", true},
        {ASSAY_MAXTEXT_moba, "true", false},
        {ASSAY_MAXTEXT_moba, "", false},
        {ASSAY_MAXTEXT_chunk_attn_window_size, "0", true},
        {ASSAY_MAXTEXT_chunk_attn_window_size, "0.0", true},
        {ASSAY_MAXTEXT_chunk_attn_window_size, "128", false},
        {ASSAY_MAXTEXT_compress_ratios, "[]", true},
        {ASSAY_MAXTEXT_compress_ratios, "[...]", false},
        {ASSAY_MAXTEXT_quantization, "", true},
        {ASSAY_MAXTEXT_quantization, "fp8_full", false},
        {ASSAY_MAXTEXT_weight_sparsity_n, "null", true},
        {ASSAY_MAXTEXT_weight_sparsity_n, "2", false},
        {ASSAY_MAXTEXT_mhc_expansion_rate, "1", true},
        {ASSAY_MAXTEXT_mhc_expansion_rate, "4", false},
        {ASSAY_MAXTEXT_attention, "flash", true},
        {ASSAY_MAXTEXT_attention, "vllm_rpa", false},
        {ASSAY_MAXTEXT_global_parameter_scale, "1.0", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool found = assay_maxtext_value_changes_nothing(&assay_maxtext_keys[rows[i].key], rows[i].value);
        if (found != rows[i].nothing) fail_msg("%s: %s", assay_maxtext_keys[rows[i].key].name, rows[i].value);
    }
}
