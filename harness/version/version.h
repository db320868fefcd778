/* Which assay this is. */
#pragma once

#include "oracle/base/status.h"

/* "0.2.0 (commit be43447abcde, avx512)"; without the commit where the source is no repository, with "-dirty" behind it where
 * files differ from it. */
const char *assay_version_text(assay_isa isa);

/* The linker's digest of the program or shared library that this is a part of: another code, another text. In hexadecimal;
 * "" where the linker left none. */
void assay_build_id(char text[65]);
