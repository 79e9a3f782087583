/* Wall clock of a process that is wrong by a number of seconds, which may change while it runs. The clock of durations
 * stays as it is. `cc -shared -fPIC`, and LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *seconds;
static int (*system_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    system_clock = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *mapped = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
        seconds = mapped == MAP_FAILED ? NULL : mapped;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!system_clock)
        system_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = system_clock(clock, now);
    if (!failed && seconds && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec at;
    int failed = clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now)
        *now = at.tv_sec;
    return at.tv_sec;
}
