#include "harness/commands/commands.h"

const assay_command *const assay_commands[] = {
    &assay_command_list,    &assay_command_show,      &assay_command_generate, &assay_command_request,
    &assay_command_compare, &assay_command_run,       &assay_command_fuzz,     &assay_command_check,
    &assay_command_between, &assay_command_verify,    &assay_command_power,    &assay_command_tolerance,
    &assay_command_trace,   &assay_command_calibrate, &assay_command_convert,  &assay_command_shared_object,
};
const int assay_command_count = sizeof assay_commands / sizeof *assay_commands;
