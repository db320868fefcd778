/* To be loaded before the C library (LD_PRELOAD). Allocations are counted, in each process by itself: that which is started is
 * process 0, its copies 0.1, 0.2 and so on, their copies 0.1.1; what copy 0.1 becomes (exec) is 0.1+.
 * MEMORY_LIST=FILE: PROCESS:NUMBER of the first allocation of each distinct call stack is written there, a line each; which
 * there were is in MEMORY_MET=FILE, of 8 STACKS zeros, that all processes share. MEMORY_FAILS=PROCESS:NUMBER: that one
 * fails; with MEMORY_ON set, all from then on, in that process and its later copies. MEMORY_NOTE=FILE: what failed, as
 * MODULE+OFFSET of the stack's frames, and with MEMORY_CRASH set what a crash came from. */
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
#include <sys/mman.h>
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
static atomic_bool begun; /* to fail */
static char process[128] = "0";
static int copies;
static _Thread_local bool inside; /* what the unwinder allocates is not counted */
static _Atomic uint64_t *met;

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

/* Of the places in their modules, which lie elsewhere in what a copy becomes. */
static uint64_t hash_of(const stack *s)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < s->count; i++) {
        struct dl_find_object found = {0};
        _dl_find_object((void *)s->frames[i], &found);
        hash = (hash ^ (s->frames[i] - (uintptr_t)found.dlfo_map_start)) * 1099511628211u;
    }
    return hash == 0 ? 1 : hash;
}

static void list_stack(long number)
{
    stack s = {.count = 0};
    char line[160];
    _Unwind_Backtrace(take_frame, &s);
    const uint64_t hash = hash_of(&s);
    for (size_t at = hash % STACKS;; at = (at + 1) % STACKS) {
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(&met[at], &there, hash)) break;
        if (there == hash) return;
    }
    if (write(list, line, (size_t)snprintf(line, sizeof line, "%s:%ld\n", process, number)) < 0) return;
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
        begun = true;
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

/* Whether one of this process is to fail. */
static void aim(void)
{
    const char *which = getenv("MEMORY_FAILS"), *number = which == NULL ? NULL : strrchr(which, ':');
    const size_t length = number == NULL ? 0 : (size_t)(number - which);
    const bool here = length == strlen(process) && strncmp(which, process, length) == 0;
    failing = goes_on && begun ? 0 : here ? atol(number + 1) : -1;
    calls = 0;
}

static void count_copy(void)
{
    copies++;
}

static void begin_copy(void)
{
    char own[sizeof process];
    inside = true;
    snprintf(own, sizeof own, "%.100s.%d", process, copies);
    memcpy(process, own, sizeof process);
    setenv("MEMORY_PROCESS", process, 1);
    if (goes_on && begun) setenv("MEMORY_BEGUN", "", 1);
    copies = 0;
    aim();
    inside = false;
}

static int open_named(const char *variable)
{
    const char *name = getenv(variable);
    return name == NULL ? -1 : open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

__attribute__((constructor)) static void begin(void)
{
    stack s = {.count = 0};
    const char *copy = getenv("MEMORY_PROCESS");
    inside = true;
    _Unwind_Backtrace(take_frame, &s); /* it allocates the first time */
    list = open_named("MEMORY_LIST");
    note = open_named("MEMORY_NOTE");
    if (list >= 0) {
        const int shared = open(getenv("MEMORY_MET"), O_RDWR | O_CLOEXEC);
        met = mmap(NULL, STACKS * sizeof *met, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
        if (met == MAP_FAILED) abort();
        close(shared);
    }
    if (copy != NULL) snprintf(process, sizeof process, "%.100s+", copy);
    pthread_atfork(count_copy, NULL, begin_copy);
    goes_on = getenv("MEMORY_ON") != NULL;
    begun = getenv("MEMORY_BEGUN") != NULL;
    if (getenv("MEMORY_CRASH") != NULL) {
        signal(SIGSEGV, crashed);
        signal(SIGBUS, crashed);
        signal(SIGABRT, crashed);
    }
    aim();
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
