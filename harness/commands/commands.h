/* The table of commands. */
#pragma once

#include "harness/commands/command.h"

/* All, in the order of the help text. */
extern const assay_command *const assay_commands[];
extern const int assay_command_count;
