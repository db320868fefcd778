#include "harness/fuzz/forks.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/backends/backend.h"

enum { ALIGNMENT = 64 };

typedef struct order {
    const char *library;
    assay_host *host;
    int calls;
    double timeout;
    int64_t memory;
} order;

typedef struct answer {
    assay_status status;
    assay_process_result result;
} answer;

/* In a process of its own. */
static int work(void *data)
{
    const order *o = data;
    const struct rlimit no_core = {0, 0}; /* of the shared memory, a hundred times a minute */
    /* whoever forked may have handlers of its own, as test frameworks do */
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    setrlimit(RLIMIT_CORE, &no_core);
    if (o->memory > 0) setrlimit(RLIMIT_DATA, &(struct rlimit){(rlim_t)o->memory, (rlim_t)o->memory});
    const assay_backend_function backend = assay_host_load(o->library, o->host->message, ASSAY_HOST_MESSAGE);
    if (backend == NULL) return EXIT_FAILURE;
    for (int i = 0; i < o->calls; i++) {
        const int code = assay_host_call(o->host, backend);
        if (code != ASSAY_BACKEND_EXIT_DONE) return code;
    }
    return ASSAY_BACKEND_EXIT_DONE;
}

static bool move(ssize_t (*how)(int, void *, size_t), int line, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t moved = how(line, (char *)bytes + done, size - done);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return false;
        done += (size_t)moved;
    }
    return true;
}

static ssize_t give(int line, void *bytes, size_t size)
{
    return send(line, bytes, size, MSG_NOSIGNAL);
}

/* The process that waits for orders, until nobody can give any. */
static void serve(int line)
{
    order o;
    assay_context ctx = {.threads = 1};
    signal(SIGINT, SIG_IGN); /* whoever is interrupted still wants to report */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (move(read, line, &o, sizeof o)) {
        answer a = {0};
        a.status = assay_process_call(&ctx, work, &o, o.timeout, &a.result);
        if (!move(give, line, &a, sizeof a)) break;
    }
    _exit(0);
}

void assay_forks_stop(assay_forks *forks)
{
    if (forks->process > 0) {
        close(forks->line);
        while (waitpid(forks->process, NULL, 0) < 0 && errno == EINTR) continue;
    }
    if (forks->memory != NULL) munmap(forks->memory, (size_t)forks->size);
    *forks = (assay_forks){.line = -1};
}

static assay_status take(assay_context *ctx, void *self, const char *what, int64_t bytes, void **out)
{
    assay_forks *forks = self;
    const int64_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (whole > forks->size - forks->used)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the case is too large for the %" PRId64 " bytes of shared memory",
                          what, forks->size);
    *out = forks->memory + forks->used;
    forks->used += whole;
    return ASSAY_OK;
}

assay_host_memory assay_forks_memory(assay_forks *forks)
{
    forks->used = 0;
    return (assay_host_memory){forks, take};
}

assay_status assay_forks_call(assay_context *ctx, assay_forks *forks, assay_host *host, int calls, double timeout,
                              int64_t memory, assay_process_result *result)
{
    order o = {forks->library, host, calls, timeout, memory};
    answer a;
    if (!move(give, forks->line, &o, sizeof o) || !move(read, forks->line, &a, sizeof a))
        return assay_fail(ctx, ASSAY_IO, "the process that starts the backend's processes is gone");
    *result = a.result;
    if (a.status != ASSAY_OK) return assay_fail(ctx, a.status, "a process for the backend cannot be started");
    return ASSAY_OK;
}

/* An object that cannot be loaded is no backend. */
static assay_status try_to_load(assay_context *ctx, assay_forks *forks)
{
    enum { SECONDS = 300 };
    assay_process_result result;
    void *place = NULL, *message = NULL;
    const assay_host_memory memory = assay_forks_memory(forks);
    MUST(memory.take(ctx, memory.self, "host", sizeof(assay_host), &place));
    MUST(memory.take(ctx, memory.self, "message", ASSAY_HOST_MESSAGE, &message));
    assay_host *host = place;
    *host = (assay_host){.message = message};
    MUST(assay_forks_call(ctx, forks, host, 0, SECONDS, 0, &result));
    if (result.end == ASSAY_PROCESS_EXITED && result.code == ASSAY_BACKEND_EXIT_DONE) return ASSAY_OK;
    host->message[ASSAY_HOST_MESSAGE - 1] = '\0';
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%.300s",
                      host->message[0] != '\0' ? host->message : "the shared object cannot be loaded");
}

assay_status assay_forks_start(assay_context *ctx, assay_forks *forks, const char *library, int64_t bytes)
{
    int lines[2] = {-1, -1};
    *forks = (assay_forks){.library = library, .line = -1, .size = bytes};
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return assay_fail(ctx, ASSAY_NO_MEMORY, "%" PRId64 " bytes of shared memory: %s", bytes, strerror(errno));
    forks->memory = memory;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, lines) == 0) forks->process = fork();
    if (lines[0] < 0 || forks->process < 0) {
        const int reason = errno;
        if (lines[0] >= 0) close(lines[0]), close(lines[1]);
        forks->process = 0;
        assay_forks_stop(forks);
        return assay_fail(ctx, ASSAY_IO, "a process for the backend cannot be started: %s", strerror(reason));
    }
    if (forks->process == 0) {
        close(lines[0]);
        serve(lines[1]);
    }
    close(lines[1]);
    forks->line = lines[0];
    const assay_status status = try_to_load(ctx, forks);
    if (status != ASSAY_OK) assay_forks_stop(forks);
    return status;
}
