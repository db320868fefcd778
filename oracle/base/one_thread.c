/* What GCC calls for a parallel region, in whose place the linker takes this one (CMakeLists.txt). With one thread
 * libgomp makes a team for it and frees it again, which costs more than most small loops: 8 million times for the
 * catalogue. Here the loop is run where it stands. Inside of a region it would share its work with that one's threads:
 * such a region is libgomp's. */
#include <omp.h>

typedef void region(void *data);

void __real_GOMP_parallel(region *run, void *data, unsigned threads, unsigned flags);
void __wrap_GOMP_parallel(region *run, void *data, unsigned threads, unsigned flags);

void __wrap_GOMP_parallel(region *run, void *data, unsigned threads, unsigned flags)
{
    if (threads == 1 && omp_get_level() == 0) {
        run(data);
    } else {
        __real_GOMP_parallel(run, data, threads, flags);
    }
}
