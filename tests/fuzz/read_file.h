/* What the targets of containers do with a file. */
#pragma once

#include "fixtures/fixture.h"

/* Opens it as every command would that is given it, and reads all that there is. */
void fuzz_read_file(const char *path);
/* Writes a small fixture of many types with attributes, a recipe and lists, as seed for the containers: `path` says
 * which. */
void fuzz_write_fixture(const char *path, bool small);
