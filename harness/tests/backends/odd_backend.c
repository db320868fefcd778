/* Backends that are not right, chosen by ODD_BACKEND at compile time: what `assay run` must survive and name. */
#include <assay/backend.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ABORTS 1
#define SEGFAULTS 2
#define LOOPS 3
#define WRITES_BEHIND 4
#define WRITES_BEFORE 5
#define LEAVES_NAN 6
#define DOES_NOT_REPEAT 7
#define UNSUPPORTED 8
#define GIVES_UP 9
#define BAD_TYPE 10
#define EXITS 11
#define ZEROS 12
#define NOT_WRITTEN 13
#define UNKNOWN_CODE 14
#define EXITS_LATER 15
#define HIDES 16
#define CACHES 17
#define FORWARD_ONLY 18

#if ODD_BACKEND != 0
static int64_t count_of(const assay_backend_result *r)
{
    int64_t count = 1;
    for (int32_t axis = 0; axis < r->rank; axis++) count *= r->dims[axis];
    return count;
}

/* Zeros in float32 wherever a result is required; returns outputs/y. */
static assay_backend_result *write_zeros(const assay_backend_request *request)
{
    assay_backend_result *y = &request->results[0];
    for (int32_t i = 0; i < request->result_count; i++) {
        assay_backend_result *r = &request->results[i];
        r->written = r->required;
        memset(r->data, 0, (size_t)count_of(r) * 4);
        if (strcmp(r->path, "outputs/y") == 0) y = r;
    }
    return y;
}

int assay_backend_run(const assay_backend_request *request)
{
    static int calls = 0;
    if (ODD_BACKEND == FORWARD_ONLY) { /* and nothing else: no word that there is no gradient */
        for (int32_t i = 0; i < request->result_count; i++) {
            assay_backend_result *r = &request->results[i];
            if (r->required && strncmp(r->path, "gradients/", 10) != 0) memset(r->data, 0, (size_t)count_of(r) * 4);
        }
        return ASSAY_BACKEND_DONE;
    }
    assay_backend_result *y = write_zeros(request);
    calls++;
    switch (ODD_BACKEND) {
    case ABORTS:
        fprintf(stderr, "assertion of the backend\n");
        abort();
    case SEGFAULTS:
        raise(SIGSEGV);
        break;
    case LOOPS:
        for (volatile int i = 0;; i++) {
        }
    case WRITES_BEHIND:
        ((char *)y->data)[count_of(y) * 8] = 1;
        break;
    case WRITES_BEFORE:
        ((char *)y->data)[-1] = 1;
        break;
    case LEAVES_NAN:
        memset(y->data, 0xff, 4);
        break;
    case DOES_NOT_REPEAT:
        printf("printed, and flushed when the process ends\n");
        ((float *)y->data)[0] = (float)calls;
        break;
    case UNSUPPORTED:
        snprintf(request->message, (size_t)request->message_size, "no such op here");
        return ASSAY_BACKEND_UNSUPPORTED;
    case GIVES_UP:
        snprintf(request->message, (size_t)request->message_size, "out of\n\tluck");
        return ASSAY_BACKEND_ERROR;
    case BAD_TYPE:
        y->type = (assay_backend_type)99;
        break;
    case EXITS:
        exit(0);
    case NOT_WRITTEN:
        for (int32_t i = 0; i < request->result_count; i++) request->results[i].written = 0;
        break;
    case EXITS_LATER: /* when it is called for the second time */
        if (calls == 2) _exit(0);
        break;
    case HIDES: /* that its second call gives something else: nobody can say so on standard error */
        ((float *)y->data)[0] = (float)calls;
        close(STDERR_FILENO);
        break;
    case CACHES: /* what it gives is of this process; the second call repeats the first's */
        ((float *)y->data)[0] = (float)getpid();
        break;
    case UNKNOWN_CODE:
        return 42;
    default:
        break;
    }
    return ASSAY_BACKEND_DONE;
}
#else
int some_other_function(void);
int some_other_function(void)
{
    return 0;
}
#endif
