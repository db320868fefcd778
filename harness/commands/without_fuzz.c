#include "harness/commands/command.h"

const assay_command assay_command_fuzz = {.name = "fuzz"};
