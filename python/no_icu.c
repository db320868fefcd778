/* The functions of ICU that libxml2 names: no converter can be opened. libxml2 reads and writes UTF-8 by itself. */
#include <stddef.h>
#include <stdint.h>

enum { UNSUPPORTED = 16 }; /* U_UNSUPPORTED_ERROR */

void *ucnv_open_72(const char *name, int *error);
void ucnv_close_72(void *converter);
void ucnv_convertEx_72(void *to, void *from, char **target, const char *target_end, const char **source,
                       const char *source_end, uint16_t *start, uint16_t **pivot, uint16_t **pivot_target,
                       const uint16_t *pivot_end, int8_t reset, int8_t flush, int *error);
void ucnv_setFromUCallBack_72(void *converter, void (*action)(void), const void *context, void (**old_action)(void),
                              const void **old_context, int *error);
void ucnv_setToUCallBack_72(void *converter, void (*action)(void), const void *context, void (**old_action)(void),
                            const void **old_context, int *error);

void *ucnv_open_72(const char *name, int *error)
{
    (void)name;
    *error = UNSUPPORTED;
    return NULL;
}

void ucnv_close_72(void *converter)
{
    (void)converter;
}

void ucnv_convertEx_72(void *to, void *from, char **target, const char *target_end, const char **source,
                       const char *source_end, uint16_t *start, uint16_t **pivot, uint16_t **pivot_target,
                       const uint16_t *pivot_end, int8_t reset, int8_t flush, int *error)
{
    (void)to, (void)from, (void)target, (void)target_end, (void)source, (void)source_end, (void)start;
    (void)pivot, (void)pivot_target, (void)pivot_end, (void)reset, (void)flush;
    *error = UNSUPPORTED;
}

void ucnv_setFromUCallBack_72(void *converter, void (*action)(void), const void *context, void (**old_action)(void),
                              const void **old_context, int *error)
{
    (void)converter, (void)action, (void)context, (void)old_action, (void)old_context;
    *error = UNSUPPORTED;
}

void ucnv_setToUCallBack_72(void *converter, void (*action)(void), const void *context, void (**old_action)(void),
                            const void **old_context, int *error)
{
    (void)converter, (void)action, (void)context, (void)old_action, (void)old_context;
    *error = UNSUPPORTED;
}

/* Named as what a converter does with what it cannot convert. */
void UCNV_TO_U_CALLBACK_STOP_72(void);
void UCNV_FROM_U_CALLBACK_STOP_72(void);

void UCNV_TO_U_CALLBACK_STOP_72(void) {}

void UCNV_FROM_U_CALLBACK_STOP_72(void) {}
