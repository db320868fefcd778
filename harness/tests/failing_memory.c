/* To be loaded before the C library (LD_PRELOAD). Allocations of the process are counted; with MEMORY_COPIES set those of its
 * copies too, on from where each was made. (A copy that examines a file has memory of its own: what fails there is the file's.)
 * MEMORY_LIST=FILE: the number of the first allocation of each distinct call stack is written there, a line each.
 * MEMORY_FAILS=N: the Nth one fails; with MEMORY_ON set, all from then on. MEMORY_NOTE=FILE: what failed, as MODULE+OFFSET of
 * the stack's frames, and with MEMORY_CRASH set what a crash came from. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

enum { DEEPEST = 24, STACKS = 1 << 18 };

static atomic_long calls;
static long failing = -1;
static int list = -1, note = -1;
static bool goes_on, noted;
static _Thread_local bool inside; /* what the unwinder allocates is not counted */
static uint64_t met[STACKS];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

typedef struct stack {
    uintptr_t frames[DEEPEST];
    int count;
} stack;

static _Unwind_Reason_Code take_frame(struct _Unwind_Context *context, void *data)
{
    stack *s = data;
    if (s->count == DEEPEST) return _URC_END_OF_STACK;
    s->frames[s->count++] = _Unwind_GetIP(context);
    return _URC_NO_REASON;
}

static void write_stack(const char *what, const stack *s)
{
    char text[8192];
    int used = snprintf(text, sizeof text, "%s", what);
    for (int i = 0; i < s->count; i++) {
        Dl_info found;
        if (dladdr((void *)s->frames[i], &found) == 0 || found.dli_fname == NULL) continue;
        const char *name = strrchr(found.dli_fname, '/');
        used +=
            snprintf(text + used, sizeof text - (size_t)used, " %.40s+0x%lx", name == NULL ? found.dli_fname : name + 1,
                     (unsigned long)(s->frames[i] - (uintptr_t)found.dli_fbase));
    }
    text[used++] = '\n';
    if (write(note, text, (size_t)used) < 0) return;
}

static void list_stack(long number)
{
    stack s = {.count = 0};
    uint64_t hash = 14695981039346656037u;
    char line[32];
    _Unwind_Backtrace(take_frame, &s);
    for (int i = 0; i < s.count; i++) hash = (hash ^ s.frames[i]) * 1099511628211u;
    if (hash == 0) hash = 1;
    pthread_mutex_lock(&guard);
    size_t at = hash % STACKS;
    while (met[at] != 0 && met[at] != hash) at = (at + 1) % STACKS;
    const bool is_new = met[at] == 0;
    met[at] = hash;
    pthread_mutex_unlock(&guard);
    if (is_new && write(list, line, (size_t)snprintf(line, sizeof line, "%ld\n", number)) < 0) return;
}

static bool fails(void)
{
    bool failed = false;
    if (inside || (list < 0 && failing < 0)) return false;
    const long number = atomic_fetch_add(&calls, 1);
    inside = true;
    if (list >= 0) list_stack(number);
    if (failing >= 0 && (number == failing || (goes_on && number > failing))) {
        failed = true;
        if (note >= 0 && !noted) {
            stack s = {.count = 0};
            noted = true;
            _Unwind_Backtrace(take_frame, &s);
            write_stack("failed", &s);
        }
    }
    inside = false;
    if (failed) errno = ENOMEM;
    return failed;
}

static void crashed(int number)
{
    stack s = {.count = 0};
    inside = true;
    _Unwind_Backtrace(take_frame, &s);
    write_stack("crashed", &s);
    signal(number, SIG_DFL);
    raise(number);
}

static void begin_copy(void)
{
    if (getenv("MEMORY_COPIES") != NULL) return;
    failing = list = -1;
}

static int open_named(const char *variable)
{
    const char *name = getenv(variable);
    return name == NULL ? -1 : open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* What the process starts, a backend above all, is spared. */
__attribute__((constructor)) static void begin(void)
{
    stack s = {.count = 0};
    const char *number = getenv("MEMORY_FAILS");
    unsetenv("LD_PRELOAD");
    inside = true;
    _Unwind_Backtrace(take_frame, &s); /* it allocates the first time */
    list = open_named("MEMORY_LIST");
    note = open_named("MEMORY_NOTE");
    pthread_atfork(NULL, NULL, begin_copy);
    goes_on = getenv("MEMORY_ON") != NULL;
    if (getenv("MEMORY_CRASH") != NULL) {
        signal(SIGSEGV, crashed);
        signal(SIGBUS, crashed);
        signal(SIGABRT, crashed);
    }
    failing = number == NULL ? -1 : atol(number);
    inside = false;
}

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    return fails() ? NULL : __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size)
{
    return fails() ? NULL : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    void *taken = fails() ? NULL : __libc_memalign(alignment, size);
    if (taken == NULL) return ENOMEM;
    *memory = taken;
    return 0;
}
