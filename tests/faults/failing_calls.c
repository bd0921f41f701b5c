/* Preloaded (LD_PRELOAD): makes the Nth call that changes files inside one folder fail, or kills.

Covers what a process asks of libc, whoever asks: Python, safetensors (Rust), torch (C++). The
counter is in memory that forked processes share, so that N counts over a whole tree of them. Calls
that libc makes of itself (fwrite flushing its buffer) and mapped memory are not seen. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static struct state {
    long calls;       /* seen since faults_arm */
    long at;          /* the number of the one that fails; 0: none */
    int error;        /* its errno; 0: SIGKILL in place of the call */
    int lasting;      /* all after it fail as well, but those that make room */
    char folder[PATH_MAX];
    char hit[PATH_MAX + 64]; /* which call it was */
} *s;

/* At the start, and by a process that is to count apart from the one that forked it. */
__attribute__((constructor)) void faults_begin(void) {
    s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void faults_arm(const char *folder, long at, int error, int lasting) {
    memset(s, 0, sizeof *s);
    s->at = at, s->error = error, s->lasting = lasting;
    strncpy(s->folder, folder, PATH_MAX - 1);
}
long faults_calls(void) { return s->calls; }
const char *faults_hit(void) { return s->hit; }
void faults_disarm(void) { s->folder[0] = 0; }

/* 1 if this call is to fail. `path` is relative to the directory `at`, NULL: it is that of `at`. */
static int fails(const char *call, int at, const char *path) {
    char whole[2 * PATH_MAX] = "", link[64];
    if (!s || s == MAP_FAILED || !s->folder[0]) return 0;
    int before = errno;
    if (!path || path[0] != '/') {
        if (at == AT_FDCWD) {
            if (!getcwd(whole, PATH_MAX)) whole[0] = 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t n = readlink(link, whole, PATH_MAX - 1);
            whole[n < 0 ? 0 : n] = 0;
        }
        if (path) strcat(whole, "/");
    }
    if (path) strncat(whole, path, PATH_MAX - 1);
    errno = before;
    if (strncmp(whole, s->folder, strlen(s->folder))) return 0;
    long number = __atomic_add_fetch(&s->calls, 1, __ATOMIC_SEQ_CST);
    int makes_room = strstr("unlink unlinkat rmdir", call) != NULL;
    int due = number == s->at || (s->lasting && number > s->at && !makes_room);
    if (!s->at || !due) return 0;
    if (number == s->at)
        snprintf(s->hit, sizeof s->hit, "%s %.*s", call, PATH_MAX, whole + strlen(s->folder));
    if (!s->error) kill(getpid(), SIGKILL);
    errno = s->error;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
#define OPEN(name) int name(const char *path, int flags, ...) { REAL(name); MODE(flags) \
    return WRITES(flags) && fails("open", AT_FDCWD, path) ? -1 : real(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { REAL(name); MODE(flags) \
    return WRITES(flags) && fails("open", at, path) ? -1 : real(at, path, flags, mode); }
#define FOPEN(name) FILE *name(const char *path, const char *mode) { REAL(name); \
    return strpbrk(mode, "wa+") && fails("open", AT_FDCWD, path) ? NULL : real(path, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) FOPEN(fopen) FOPEN(fopen64)

/* type, name, parameters, arguments, directory, path */
#define CALL(type, name, parameters, arguments, at, path) type name parameters { REAL(name); \
    return fails(#name, at, path) ? -1 : real arguments; }
CALL(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n), fd, NULL)
CALL(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), fd, NULL)
CALL(ssize_t, pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), fd, NULL)
CALL(ssize_t, pwrite64, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o), fd, NULL)
CALL(int, ftruncate, (int fd, off_t n), (fd, n), fd, NULL)
CALL(int, ftruncate64, (int fd, off64_t n), (fd, n), fd, NULL)
#define RESERVE(name, type) int name(int fd, type o, type n) { REAL(name); \
    return fails(#name, fd, NULL) ? s->error : real(fd, o, n); }
RESERVE(posix_fallocate, off_t) RESERVE(posix_fallocate64, off64_t)
CALL(int, fsync, (int fd), (fd), fd, NULL)
CALL(int, fdatasync, (int fd), (fd), fd, NULL)
CALL(int, rename, (const char *a, const char *b), (a, b), AT_FDCWD, b)
CALL(int, renameat, (int f, const char *a, int g, const char *b), (f, a, g, b), g, b)
CALL(int, mkdir, (const char *p, mode_t m), (p, m), AT_FDCWD, p)
CALL(int, mkdirat, (int f, const char *p, mode_t m), (f, p, m), f, p)
CALL(int, unlink, (const char *p), (p), AT_FDCWD, p)
CALL(int, unlinkat, (int f, const char *p, int flags), (f, p, flags), f, p)
CALL(int, rmdir, (const char *p), (p), AT_FDCWD, p)
CALL(int, chmod, (const char *p, mode_t m), (p, m), AT_FDCWD, p)
