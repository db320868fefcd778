/* The reader of case files: what it refuses, with the line and column of each refusal. */
#include <stdio.h>
#include <string.h>

#include "cases/case.h"
#include "tests/support/assay_test.h"

/* What must be refused: where, and words of the message. */
static const struct {
    const char *text, *place, *words;
} REFUSED[] = {
    {"", "1:1", "found nothing"},
    {"# nothing but this\n", "1:1", "found nothing"},
    {"---\n...\n", "2:1", "found nothing"},
    {"just words\n", "1:1", "expected a case (case: NAME, op: ...), found just words"},
    {"- case: a\n", "1:1", "found a list"},
    {"op: moe\n", "1:1", "expected the key case"},
    {"case: a\n", "1:1", "a has no operation: expected the key op"},
    {"case: a\nop: \"\"\n", "1:1", "expected the key op"},
    {"case: a\nop:\n", "2:4", "op: expected a text, found nothing"},
    {"case: a\nop: [moe]\n", "2:5", "op: expected a text, found a list"},
    {"case: a b\nop: moe\n", "1:7", "case: expected a name such as"},
    {"case: ../a\nop: moe\n", "1:7", "case: expected a name such as"},
    {"case: /a\nop: moe\n", "1:7", "case: expected a name such as"},
    {"case: a//b\nop: moe\n", "1:7", "case: expected a name such as"},
    {"case: a/\nop: moe\n", "1:7", "case: expected a name such as"},
    {"case: 'moe/*'\nop: moe\n", "1:7", "found \"moe/*\""},
    {"case: a\nop: moe\nbacth: 2\n", "3:1", "unknown key bacth in a case, did you mean batch?"},
    {"case: a\nop: moe\nzzzzzz: 2\n", "3:1", "unknown key zzzzzz in a case"},
    {"case: a\nop: moe\nmodle: x\n", "3:1", "did you mean model?"},
    {"case: a\nop: moe\nmesh.expert: 2\n", "3:1", "unknown key mesh.expert"},
    {"case: a\nop: moe\nnum_experts: 2\n", "3:1", "unknown key num_experts: keys of the model belong under config"},
    {"case: a\nop: moe\nconfig: {num_expert: 4}\n", "3:10",
     "unknown key num_expert in config, did you mean num_experts?"},
    {"case: a\nop: moe\nconfig:\n  num_experts: 4\n  emb_dim: 8\n", "5:3", "did you mean base_emb_dim?"},
    {"case: a\nop: moe\nconfig: {batch: 4}\n", "3:10", "unknown key batch in config: it belongs to the case itself"},
    {"case: a\nop: moe\nconfig: [1]\n", "3:9", "config: expected a mapping (key: value), found a list"},
    {"case: a\nop: moe\nconfig:\n", "3:8", "config: expected a mapping (key: value), found nothing"},
    {"case: a\nop: moe\nconfig: {num_experts: eight}\n", "3:23",
     "num_experts: expected a whole number from 0 to 2147483647, found eight"},
    {"case: a\nop: moe\nconfig: {num_experts: \"8\"}\n", "3:23", "found \"8\""},
    {"case: a\nop: moe\nconfig: {num_experts: 8.5}\n", "3:23", "found 8.5"},
    {"case: a\nop: moe\nconfig: {num_experts: -1}\n", "3:23", "found -1"},
    {"case: a\nop: moe\nconfig: {num_experts: 0x10}\n", "3:23", "found 0x10"},
    {"case: a\nop: moe\nconfig: {num_experts: 010}\n", "3:23", "found 010"},
    {"case: a\nop: moe\nconfig: {num_experts: 1__0}\n", "3:23", "found 1__0"},
    {"case: a\nop: moe\nconfig: {num_experts: 10_}\n", "3:23", "found 10_"},
    {"case: a\nop: moe\nconfig: {num_experts: 1e}\n", "3:23", "found 1e"},
    {"case: a\nop: moe\nconfig: {num_experts: ~}\n", "3:23", "found nothing"},
    {"case: a\nop: moe\nconfig: {num_experts: true}\n", "3:23", "found true"},
    {"case: a\nop: moe\nconfig: {n_routing_groups: -2}\n", "3:28", "from -1 to"},
    {"case: a\nop: moe\nconfig: {kv_lora_rank: 0}\n", "3:24", "from 1 to"},
    {"case: a\nop: moe\nconfig: {num_experts: 99999999999999999999999}\n", "3:23", "from 0 to 2147483647"},
    {"case: a\nop: moe\nconfig: {routed_scaling_factor: .inf}\n", "3:33", "expected a finite number, found .inf"},
    {"case: a\nop: moe\nconfig: {routed_scaling_factor: nan}\n", "3:33", "expected a finite number, found nan"},
    {"case: a\nop: moe\nconfig: {routed_scaling_factor: 1e999}\n", "3:33", "that float64 can hold, found 1e999"},
    {"case: a\nop: moe\nconfig: {routed_scaling_factor: 1e-999}\n", "3:33", "that float64 can hold, found 1e-999"},
    {"case: a\nop: moe\nconfig: {routed_scaling_factor: .}\n", "3:33", "expected a finite number"},
    {"case: a\nop: moe\nconfig: {routed_bias: 1}\n", "3:23", "routed_bias: expected true or false, found 1"},
    {"case: a\nop: moe\nconfig: {routed_bias: \"true\"}\n", "3:23", "expected true or false, found \"true\""},
    {"case: a\nop: moe\nconfig: {routed_score_func: sigmod}\n", "3:29",
     "one of \"\", sigmoid, softmax, sqrtsoftplus, found sigmod"},
    {"case: a\nop: moe\nconfig: {group_score: min}\n", "3:23", "one of \"\", top2_sum, max, found min"},
    {"case: a\nop: moe\nconfig: {mla_q: keep}\n", "3:17", "one of remat, device, offload, found keep"},
    {"case: a\nop: moe\nconfig: {decoder_layer_input: remat}\n", "3:31", "one of device, offload, found remat"},
    {"case: a\nop: moe\nconfig: {mlp_activations: [a, b, c]}\n", "3:27", "expected one or two texts, found 3"},
    {"case: a\nop: moe\nconfig: {mlp_activations: []}\n", "3:27", "expected one or two texts, found 0"},
    {"case: a\nop: moe\nconfig: {num_experts: 1, num_experts: 2}\n", "3:26",
     "num_experts is given twice, first on line 3"},
    {"case: a\nop: moe\nbatch: 1\nbatch: 2\n", "4:1", "batch is given twice, first on line 3"},
    {"case: a\nop: moe\nbatch: 0\n", "3:8", "batch: expected a whole number from 1 to 2147483647, found 0"},
    {"case: a\nop: moe\nbatch: -3\n", "3:8", "found -3"},
    {"case: a\nop: moe\nsequence: 1e10\n", "3:11",
     "sequence: expected a whole number from 1 to 2147483647, found 1e10"},
    {"case: a\nop: moe\nseed: -1\n", "3:7", "seed: expected a whole number from 0 to 18446744073709551615, found -1"},
    {"case: a\nop: moe\nseed: 18446744073709551616\n", "3:7", "seed: expected"},
    {"case: a\nop: moe\nseed: 1.5\n", "3:7", "seed: expected"},
    {"case: a\nop: moe\ndtype: bf8\n", "3:8", "dtype: expected one of float64, float32, tfloat32, bfloat16, float16"},
    {"case: a\nop: moe\ndtype: int32\n", "3:8", "found int32"},
    {"case: a\nop: moe\nmesh: {data: 1, sequence: 2}\n", "3:17",
     "unknown key sequence in mesh, expected data, fsdp, expert, tensor or mlp_tensor"},
    {"case: a\nop: moe\nmesh: {expert: 0}\n", "3:16", "mesh.expert: expected a whole number from 1"},
    {"case: a\nop: moe\nmesh: 4\n", "3:7", "mesh: expected a mapping (key: value), found 4"},
    {"case: a\nop: moe\npositions: {from: 1}\n", "3:13", "unknown key from in positions, expected start or step"},
    {"case: a\nop: moe\npositions: {start: -1}\n", "3:20", "positions.start: expected a whole number from 0"},
    {"case: a\nop: moe\nmodel: deepsek3-tiny\n", "3:8",
     "no model is called deepsek3-tiny, did you mean deepseek3-tiny"},
    {"case: a\nop: moe\nmodel: nowhere/m.yml\n", "3:8", "model: nowhere/m.yml: No such file"},
    {"case: a\nop: moe\nmodel: [a]\n", "3:8", "model: expected a name, a path or a mapping, found a list"},
    {"case: a\nop: moe\nmodel: {}\n", "3:8", "expected MaxText's model keys"},
    {"case: a\nop: moe\nmodel: {global_num_kv_heads: 4}\n", "3:8", "expected MaxText's model keys"},
    {"case: a\nop: moe\nmodel: {num_experts: 8, routed_scaling_facto: 2.827}\n", "3:25",
     "unknown key routed_scaling_facto in model, did you mean routed_scaling_factor?"},
    {"case: a\nop: mla\nmodel:\n  kv_lora_rank: 8\n  rope_factr: 32\n", "5:3",
     "unknown key rope_factr in model, did you mean rope_factor?"},
    {"case: a\nop: moe\nmodel: {num_experts: 8, use_indexr: true}\n", "3:25", "did you mean use_indexer?"},
    {"case: a\nop: moe\nmodel: {num_experts: 8, emb_dim: 8}\n", "3:25", "did you mean base_emb_dim?"},
    {"case: a\nop: moe\nmodel: {num_experts: 8, n_routed_experts: 8}\n", "3:25",
     "unknown key n_routed_experts in model"},
    {"case: a\nop: moe\nmodel: {num_experts: 8, dtype: float32}\n", "3:25",
     "unknown key dtype in model: it belongs to the case itself"},
    {"case: a\nop: moe\nconfig: {scan_layers: true}\n", "3:10", "unknown key scan_layers in config"},
    {"case: a\nop: moe\nmodel: {decoder_block: bananas}\n", "3:24",
     "decoder_block: expected one of \"\", default, llama2"},
    {"case: a\nop: moe\nconfig: {decoder_block: bananas}\n", "3:25", "found bananas"},
    {"case: a\nop: moe\nmodel: {num_experts: x}\n", "3:22", "num_experts: expected a whole number"},
    {"case: a\nop: moe\nmodel: &m {num_experts: 2}\nconfig: {<<: *m}\n", "4:10", "merge keys (<<) are not read"},
    {"case: a\nop: moe\ninputs: x\n", "3:9", "inputs: expected a mapping (key: value), found x"},
    {"case: a\nop: moe\ninputs: {x: 1}\n", "3:13", "x: expected a mapping (key: value), found 1"},
    {"case: a\nop: moe\ninputs: {/x: {}}\n", "3:10", "expected a tensor such as x or weights/wi_0 in inputs, found /x"},
    {"case: a\nop: moe\ninputs: {x: {Scale: 1}}\n", "3:14", "unknown key Scale in inputs of x"},
    {"case: a\nop: moe\ninputs: {x: {distribution: nomal}}\n", "3:28",
     "unknown distribution nomal, did you mean normal? (there are normal, uniform"},
    {"case: a\nop: moe\ninputs: {x: {scale: big}}\n", "3:21", "scale: expected a finite number, found big"},
    {"case: a\nop: moe\ninputs: {x: {low: -1, high: 1}}\n", "3:13", "x: the distribution normal has no low and high"},
    {"case: a\nop: moe\ninputs: {x: {distribution: uniform, low: 2}}\n", "3:13",
     "x: expected low <= high, found low 2, high 1"},
    {"case: a\nop: moe\ninputs: {x: {distribution: integers, high: 1.5}}\n", "3:13",
     "expects whole numbers for low and high"},
    {"case: a\nop: moe\ninputs: {x: {distribution: experts}}\n", "3:13", "the distribution experts needs high"},
    {"case: a\nop: moe\ninputs: {x: {distribution: values}}\n", "3:13", "values is missing"},
    {"case: a\nop: moe\ninputs: {x: {distribution: normal, values: [1]}}\n", "3:13",
     "values are for the distribution values"},
    {"case: a\nop: moe\ninputs: {x: {values: []}}\n", "3:22", "values: expected a list of at least one number"},
    {"case: a\nop: moe\ninputs: {x: {values: 3}}\n", "3:22", "values: expected a list of at least one number, found 3"},
    {"case: a\nop: moe\ninputs: {x: {values: [1, two]}}\n", "3:26", "values: expected a finite number, found two"},
    {"case: a\nop: moe\ninputs: {x: {tail_nan_rows: -1}}\n", "3:29", "tail_nan_rows: expected a whole number from 0"},
    {"case: a\nop: moe\ninputs: {x: {}, x: {}}\n", "3:17", "x is given twice"},
    {"case: a\nop: moe\ninputs: {x: {scale: 1, scale: 2}}\n", "3:24", "scale is given twice"},
    {"case: a\nop: moe\ngradients: {a: b}\n", "3:12", "gradients: expected a text, found a mapping"},
    {"case: a\nop: moe\ngradients:\n", "3:11", "gradients: expected a text, found nothing"},
    {"case: a\nop: moe\ngradients: [a, [b]]\n", "3:16", "gradients: expected a text, found a list"},
    {"case: a\nop: moe\nprofiles: [bf16, '']\n", "3:18", "profiles: expected texts, none of them empty"},
    {"case: a\nop: moe\n? [a]\n: b\n", "3:3", "a case: expected a key, found a list"},
    {"case: a\nop: moe\ndescription: |\n  one\n  two\n", "3:14", "description: expected one line of text"},
    {"case: a\nop: \"m\\0e\"\n", "2:5", "op: expected one line of text, found a control character"},
    {"case: a\nop: moe\n\tbatch: 2\n", "3:1", "found a tab: YAML wants spaces"},
    {"case: a\nop: moe\nconfig: {num_experts: 8\n", "4:1", "while parsing a flow mapping"},
    {"case: a\nop: moe\ntags: [a, b\n", "4:1", "while parsing a flow sequence"},
    {"case: a\nop: \"moe\n", "3:1", "found unexpected end of stream"},
    {"case: a\nop: moe\nbatch: *two\n", "3:8", "found undefined alias"},
    {"case: a\n  op: moe\n", "2:5", "mapping values are not allowed"},
    {"case: a\nop: \x01\n", "2:5", "what is no text: control characters are not allowed"},
    {"case: a\nop: \xff\n", "2:5", "what is no text: invalid leading UTF-8 octet"},
    {"\x89HDF\r\n\x1a\n", "1:1", "what is no text"},
    {"case: a\nop: moe\n---\ncase: b\n", "4:1", "b has no operation"},
};

TEST(refuses_with_place_and_words)
{
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        assay_context ctx = {.threads = 1};
        assay_case *cases = (assay_case *)&ctx;
        int count = -1;
        char start[32];
        snprintf(start, sizeof start, "t.yml:%s: ", REFUSED[i].place);
        assay_status status =
            assay_cases_parse(&ctx, "t.yml", REFUSED[i].text, strlen(REFUSED[i].text), &cases, &count);
        bool right = status == ASSAY_BAD_INPUT && strncmp(ctx.message, start, strlen(start)) == 0 &&
                     strstr(ctx.message, REFUSED[i].words) != NULL && strchr(ctx.message, '\n') == NULL;
        if (!right) {
            print_error("%s\nexpected %s%s\ngot      %s\n", REFUSED[i].text, start, REFUSED[i].words, ctx.message);
        }
        assert_true(right);
        assert_null(cases);
        assert_int_equal(count, 0);
    }
}
