#include "harness/commands/ending.h"

#include <signal.h>
#include <stddef.h>

#include "oracle/base/leftovers.h"

void assay_end_by_signal(int number)
{
    sigset_t one;
    assay_leftovers_remove();
    signal(number, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, number);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

void assay_end_cleanly(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = assay_end_by_signal}, before;
    for (int i = 0; i < 3; i++) sigaddset(&action.sa_mask, numbers[i]); /* one of them is enough */
    for (int i = 0; i < 3; i++) {
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
}
