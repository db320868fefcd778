/* The table of commands. */
#ifndef ASSAY_HARNESS_COMMANDS_H
#define ASSAY_HARNESS_COMMANDS_H

#include "harness/commands/command.h"

/* All, in the order of the help text. */
extern const assay_command *const assay_commands[];
extern const int assay_command_count;

#endif
