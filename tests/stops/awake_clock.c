/* Preloaded into a process: its CLOCK_MONOTONIC is behind by the nanoseconds in the file that PAUSEFL_ASLEEP names, as if its
   machine had slept for so long. CLOCK_BOOTTIME is left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile long long *asleep_ns;

__attribute__((constructor)) static void map_sleep(void) {
    const char *path = getenv("PAUSEFL_ASLEEP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *asleep_ns, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) asleep_ns = page;
}

static void add(struct timespec *time, long long ns) {
    ns += time->tv_nsec;
    time->tv_sec += ns / 1000000000;
    time->tv_nsec = ns % 1000000000;
    if (time->tv_nsec < 0) time->tv_nsec += 1000000000, time->tv_sec--;
}

static int is_awake_clock(clockid_t clock) {
    return asleep_ns && (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW);
}

/* The kernel's own clock goes on: what is to wait until a time of the shifted one waits until that time of the kernel's. */
static const struct timespec *until(clockid_t clock, const struct timespec *time, struct timespec *later) {
    if (!time || !is_awake_clock(clock)) return time;
    *later = *time;
    add(later, *asleep_ns);
    return later;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int status = real(clock, now);
    if (status == 0 && is_awake_clock(clock)) add(now, -*asleep_ns);
    return status;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    REAL(clock_nanosleep);
    struct timespec later;
    return real(clock, flags, flags & TIMER_ABSTIME ? until(clock, time, &later) : time, left);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *time) {
    REAL(sem_clockwait);
    struct timespec later;
    return real(semaphore, clock, until(clock, time, &later));
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *time) {
    REAL(pthread_cond_clockwait);
    struct timespec later;
    return real(condition, mutex, clock, until(clock, time, &later));
}

/* The interpreter waits for itself in this way. Whose clock it is, the condition alone knows; a date is no uptime. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *time) {
    REAL(pthread_cond_timedwait);
    struct timespec later;
    return real(condition, mutex, time->tv_sec < 1000000000 ? until(CLOCK_MONOTONIC, time, &later) : time);
}
