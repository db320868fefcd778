/* Users' own profiles (docs/comparing.md, "A profile of your own"): read from YAML, and kept in the goldens that have
 * error scales for them. */
#pragma once

#include "compare/profile.h"
#include "fixtures/fixture.h"

/* Unknown keys, bad values and the names of built-in profiles are refused, with `origin`, line, key, what was expected
 * and what was found. */
assay_status assay_profile_parse(assay_context *ctx, const char *origin, const char *text, size_t size,
                                 assay_profile *profile);
assay_status assay_profile_read_file(assay_context *ctx, const char *path, assay_profile *profile);

enum { ASSAY_PROFILE_YAML_SIZE = 512 };
/* Every key, a line each. Two profiles are the same where their texts are. */
void assay_profile_to_yaml(const assay_profile *profile, char text[ASSAY_PROFILE_YAML_SIZE]);

/* The golden's own profiles: the root attribute `profiles`, a text for each. *profiles is allocated; NULL where there
 * are none. */
assay_status assay_profiles_of_golden(assay_context *ctx, const assay_fixture_reader *golden, assay_profile **profiles,
                                      int *count);

/* Profiles that the golden's case lists and the golden cannot have: a text for each, "f16: why". */
#define ASSAY_PROFILES_LEFT_OUT "profiles_left_out"
/* Why the golden has not this one; NULL: it does not say. */
const char *assay_profile_left_out(const assay_fixture_reader *golden, const char *name);

/* The profile of a name: built in, in a YAML file, or the golden's own (NULL: there is none); without a name the usual one of
 * a grid ("bfloat16"). `option` is what messages call it. */
assay_status assay_profile_named(assay_context *ctx, const char *option, const char *name,
                                 const assay_fixture_reader *golden, const char *dtype, assay_profile *profile);

/* Refuses where the golden has another profile of that name, with the first line that differs. */
assay_status assay_profile_check_golden(assay_context *ctx, const assay_fixture_reader *golden,
                                        const assay_profile *profile);
