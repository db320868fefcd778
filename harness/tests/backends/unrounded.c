/* Linked over the example backend's round_bf16: a kernel that keeps intermediates in float32, as right as the one that
 * rounds them, with other bits. */
#include <stdint.h>

void __wrap_round_bf16(float *x, int64_t count);

void __wrap_round_bf16(float *x, int64_t count)
{
    (void)x;
    (void)count;
}
