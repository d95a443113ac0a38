/* A server's clocks, preloaded into it. The file that DLOCK_CLOCK names has three numbers, which may change at any time:
   microseconds that are added to the wall clock; if it is not 0, the time at which all clocks are stopped; and by how much the wall
   clock is ahead of that then.

   libfaketime does not get along with the allocator of most servers: both ask for the other while they begin. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct file {
    int64_t ahead_us, still_us, wall_us;
};
static const volatile struct file none;
static const volatile struct file *file_seen = &none;

__attribute__((constructor)) static void follow(void) {
    const char *path = getenv("DLOCK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *seen = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED) _exit(126);
    close(file);
    file_seen = seen;
}

/* By the kernel itself: the C library's own would be this function. */
int clock_gettime(clockid_t clock, struct timespec *at) {
    const int64_t second = 1000000000;
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int is_steady = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
    int64_t ns, still_us = file_seen->still_us;
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (failed || !(is_wall || is_steady)) return failed;
    ns = at->tv_sec * second + at->tv_nsec;
    if (still_us) ns = (still_us + (is_wall ? file_seen->wall_us : 0)) * 1000;
    if (is_wall) ns += file_seen->ahead_us * 1000;
    at->tv_sec = ns / second;
    at->tv_nsec = ns % second;
    return 0;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* Valkey since 8.1 loads modules so that they see their own C library before what is preloaded: the server's clock and the
   module's would be two. */
void *dlopen(const char *path, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(path, flags & ~RTLD_DEEPBIND);
}
