/* The example backend that does something besides: BEHAVIOUR=NAME says what. The example's own entry is called example_run here. */
#define _GNU_SOURCE
#include <assay/backend.h>
#undef assay_backend_run

#include <fcntl.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int assay_backend_run(const assay_backend_request *request);

enum { AS_IT_IS = -1 }; /* the example's own answer */

typedef const assay_backend_request *asked;

static char *bytes_of(asked r, long at)
{
    return (char *)r->results[0].data + at;
}

/* Behind the largest that the result may be: 8 bytes an element. */
static long size_of(asked r)
{
    long size = 8;
    for (int i = 0; i < r->results[0].rank; i++) size *= r->results[0].dims[i];
    return size;
}

/* The program's argument: 2 is the request's path, 3 the candidate's. */
static const char *argument(int which)
{
    static char text[1 << 14];
    const int file = open("/proc/self/cmdline", O_RDONLY);
    const ssize_t length = read(file, text, sizeof text - 1);
    const char *at = text;
    close(file);
    text[length > 0 ? length : 0] = '\0';
    for (which++; which > 0; which--) at += strlen(at) + 1;
    return at;
}

static void *wait_for_ever(void *nothing)
{
    for (;;) pause();
    return nothing;
}

static void ignore_signals(void)
{
    for (int number = 1; number < NSIG; number++) signal(number, SIG_IGN);
}

static void leave_child(void)
{
    if (fork() != 0) return;
    prctl(PR_SET_PDEATHSIG, 0);
    setsid();
    if (fork() != 0) _exit(0);
    ignore_signals();
    wait_for_ever(NULL);
}

/* ---- before it computes; what is returned ends the call ---- */

static int exits(asked r)
{
    (void)r;
    exit(0);
}
static int exits_at_once(asked r)
{
    (void)r;
    _exit(0);
}
static int exits_1(asked r)
{
    (void)r;
    exit(1);
}
static int aborts(asked r)
{
    (void)r;
    abort();
}
static int segfaults(asked r)
{
    (void)r;
    return raise(SIGSEGV);
}
static int divides_by_zero(asked r)
{
    (void)r;
    return raise(SIGFPE);
}
static int exits_77(asked r)
{
    (void)r;
    exit(77);
}
static int is_killed(asked r)
{
    (void)r;
    return raise(SIGKILL);
}
static int gets_alarm(asked r)
{
    (void)r;
    alarm(1);
    pause();
    return AS_IT_IS;
}
static int stops(asked r)
{
    (void)r;
    return raise(SIGSTOP);
}
static int hangs(asked r)
{
    (void)r;
    ignore_signals();
    wait_for_ever(NULL);
    return 0;
}
static int hangs_apart(asked r)
{
    setpgid(0, 0);
    setsid();
    return hangs(r);
}
static int does_nothing(asked r)
{
    (void)r;
    return ASSAY_BACKEND_DONE;
}
static int ends_parent(asked r)
{
    (void)r;
    kill(getppid(), SIGTERM);
    return AS_IT_IS;
}
static int kills_parent(asked r)
{
    (void)r;
    kill(getppid(), SIGKILL);
    pause();
    return 0;
}
static int stops_parent(asked r)
{
    (void)r;
    kill(getppid(), SIGSTOP);
    return AS_IT_IS;
}
static int leaves_child(asked r)
{
    (void)r;
    leave_child();
    return AS_IT_IS;
}
static int leaves_many(asked r)
{
    (void)r;
    for (int i = 0; i < 100; i++) leave_child();
    return AS_IT_IS;
}
static int has_thread(asked r)
{
    pthread_t t;
    (void)r;
    return pthread_create(&t, NULL, wait_for_ever, NULL) == 0 ? AS_IT_IS : 1;
}
static int ignores_signals(asked r)
{
    (void)r;
    ignore_signals();
    return AS_IT_IS;
}
static int goes_away(asked r)
{
    (void)r;
    return chdir("/") == 0 ? AS_IT_IS : 1;
}
static int takes_permissions(asked r)
{
    (void)r;
    umask(0077);
    return AS_IT_IS;
}
static int deletes_request(asked r)
{
    (void)r;
    unlink(argument(2));
    return AS_IT_IS;
}
static int prints_answer(asked r)
{
    (void)r;
    puts("assay: done\nPASS");
    return AS_IT_IS;
}
static int fills_message(asked r)
{
    memset(r->message, 'A', (size_t)r->message_size);
    return ASSAY_BACKEND_ERROR;
}
static int colours(asked r)
{
    snprintf(r->message, (size_t)r->message_size, "\033[2J\377<b>&");
    return ASSAY_BACKEND_ERROR;
}
static int hangs_at_exit(asked r)
{
    (void)r;
    atexit((void (*)(void))pause);
    return AS_IT_IS;
}
static int aborts_at_exit(asked r)
{
    (void)r;
    atexit(abort);
    return AS_IT_IS;
}
static int takes_memory(asked r)
{
    const size_t size = (size_t)1 << 33;
    char *memory = malloc(size);
    (void)r;
    if (memory == NULL) return ASSAY_BACKEND_ERROR;
    for (size_t i = 0; i < size; i += 4096) memory[i] = 1;
    return AS_IT_IS;
}
static int prints_much(asked r)
{
    (void)r;
    for (int i = 0; i < 2000000; i++) puts("a line of twenty bytes");
    return AS_IT_IS;
}
static int forges(asked r)
{
    FILE *file = fopen(argument(3), "w");
    (void)r;
    fputs("no candidate", file);
    fclose(file);
    _exit(0);
}
/* Where the golden will lie. */
static const char *golden(void)
{
    static char path[1 << 13];
    snprintf(path, sizeof path, "%s", argument(2));
    memcpy(strstr(path, "request.h5"), "golden.h5", sizeof "golden.h5");
    return path;
}
static int plants_golden(asked r)
{
    (void)r;
    mkdir(golden(), 0777);
    return AS_IT_IS;
}
static int looks_for_golden(asked r)
{
    (void)r;
    return access(golden(), F_OK) == 0 ? ASSAY_BACKEND_ERROR : AS_IT_IS;
}
static int traces_parent(asked r)
{
    (void)r;
    if (ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) != 0) return AS_IT_IS; /* the system forbids it */
    waitpid(getppid(), NULL, 0);
    ptrace(PTRACE_DETACH, getppid(), NULL, NULL);
    return AS_IT_IS;
}
static int opens_all(asked r)
{
    (void)r;
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){256, 256});
    while (dup(0) >= 0) continue;
    return AS_IT_IS;
}
static int flushes_denormals(asked r)
{
    (void)r;
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
    return AS_IT_IS;
}

/* ---- when it has computed ---- */

static int writes_before(asked r)
{
    *bytes_of(r, -1) = 1;
    return AS_IT_IS;
}
static int writes_behind(asked r)
{
    *bytes_of(r, size_of(r)) = 1;
    return AS_IT_IS;
}
static int writes_5000_behind(asked r)
{
    *bytes_of(r, size_of(r) + 5000) = 1;
    return AS_IT_IS;
}
static int writes_5000_before(asked r)
{
    *bytes_of(r, -5000) = 1;
    return AS_IT_IS;
}
static int gives_bad_type(asked r)
{
    r->results[0].type = (assay_backend_type)99;
    return AS_IT_IS;
}
static int gives_null(asked r)
{
    r->results[0].data = NULL;
    return AS_IT_IS;
}
static int says_not_written(asked r)
{
    r->results[0].written = 0;
    return AS_IT_IS;
}
static int answers_5(asked r)
{
    (void)r;
    return 5;
}
static int rounds_up(asked r)
{
    (void)r;
    fesetround(FE_UPWARD);
    return AS_IT_IS;
}
static int closes_all(asked r)
{
    (void)r;
    for (int i = 0; i < 64; i++) close(i);
    return AS_IT_IS;
}
static int limits_files(asked r)
{
    (void)r;
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0});
    return AS_IT_IS;
}
static int limits_descriptors(asked r)
{
    (void)r;
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0});
    return AS_IT_IS;
}
static int changes_inputs(asked r)
{
    for (int i = 0; i < r->tensor_count; i++) memset((void *)(uintptr_t)r->tensors[i].data, 0, 16);
    return AS_IT_IS;
}
static int differs(asked r)
{
    static int calls;
    if (++calls == 2) *bytes_of(r, 1) ^= 1;
    return AS_IT_IS;
}
static int lacks_it_later(asked r)
{
    static int calls;
    (void)r;
    return ++calls == 2 ? ASSAY_BACKEND_UNSUPPORTED : AS_IT_IS;
}

typedef struct behaviour {
    const char *name;
    int (*before)(asked), (*after)(asked);
} behaviour;

#define BEFORE(name)                                                                                                   \
    {                                                                                                                  \
#name, name, NULL                                                                                              \
    }
#define AFTER(name)                                                                                                    \
    {                                                                                                                  \
#name, NULL, name                                                                                              \
    }
static const behaviour behaviours[] = {BEFORE(exits),
                                       BEFORE(exits_at_once),
                                       BEFORE(exits_1),
                                       BEFORE(aborts),
                                       BEFORE(segfaults),
                                       BEFORE(divides_by_zero),
                                       BEFORE(exits_77),
                                       BEFORE(is_killed),
                                       BEFORE(gets_alarm),
                                       BEFORE(stops),
                                       BEFORE(hangs),
                                       BEFORE(hangs_apart),
                                       BEFORE(does_nothing),
                                       BEFORE(ends_parent),
                                       BEFORE(kills_parent),
                                       BEFORE(stops_parent),
                                       BEFORE(leaves_child),
                                       BEFORE(leaves_many),
                                       BEFORE(has_thread),
                                       BEFORE(ignores_signals),
                                       BEFORE(goes_away),
                                       BEFORE(takes_permissions),
                                       BEFORE(deletes_request),
                                       BEFORE(prints_answer),
                                       BEFORE(fills_message),
                                       BEFORE(colours),
                                       BEFORE(hangs_at_exit),
                                       BEFORE(aborts_at_exit),
                                       BEFORE(takes_memory),
                                       BEFORE(prints_much),
                                       BEFORE(forges),
                                       BEFORE(plants_golden),
                                       BEFORE(looks_for_golden),
                                       BEFORE(traces_parent),
                                       BEFORE(opens_all),
                                       BEFORE(flushes_denormals),
                                       AFTER(writes_before),
                                       AFTER(writes_behind),
                                       AFTER(writes_5000_behind),
                                       AFTER(writes_5000_before),
                                       AFTER(gives_bad_type),
                                       AFTER(gives_null),
                                       AFTER(says_not_written),
                                       AFTER(answers_5),
                                       AFTER(rounds_up),
                                       AFTER(closes_all),
                                       AFTER(limits_files),
                                       AFTER(limits_descriptors),
                                       AFTER(changes_inputs),
                                       AFTER(differs),
                                       AFTER(lacks_it_later)};

static const behaviour *chosen(void)
{
    const char *name = getenv("BEHAVIOUR");
    for (size_t i = 0; name != NULL && i < sizeof behaviours / sizeof *behaviours; i++) {
        if (strcmp(name, behaviours[i].name) == 0) return &behaviours[i];
    }
    abort();
}

/* What a library does when it is loaded, and who loads it, shows. */
__attribute__((constructor)) static void load(void)
{
    const char *trace = getenv("BEHAVIOUR_TRACE"), *how = getenv("BEHAVIOUR_LOADED");
    FILE *file = trace == NULL ? NULL : fopen(trace, "w");
    if (file != NULL) fclose(file);
    if (how != NULL && strcmp(how, "exits") == 0) _exit(0);
    if (how != NULL && strcmp(how, "aborts") == 0) abort();
}

int assay_backend_run(const assay_backend_request *request)
{
    const behaviour *b = chosen();
    int code = b->before == NULL ? AS_IT_IS : b->before(request);
    if (code != AS_IT_IS) return code;
    code = example_run(request);
    const int after = b->after == NULL ? AS_IT_IS : b->after(request);
    return after == AS_IT_IS ? code : after;
}
