/* Says on standard output which of these calls a process makes that preloads this, and whether it is the main thread that
 * makes them: the two by which a library is announced to host profilers (a prctl that names a mapping OTEL_CTX, and dlopen
 * of a library that is loaded already), bind, opendir and pthread_create.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

static void say(const char *call, const char *text)
{
    char line[4096];
    const char *thread = syscall(SYS_gettid) == getpid() ? "main" : "other";
    int length = snprintf(line, sizeof(line), "%s %s %s\n", call, text, thread);
    (void)!write(STDOUT_FILENO, line, (size_t)length);
}

int prctl(int option, ...)
{
    unsigned long values[4];
    va_list all;
    va_start(all, option);
    for (int i = 0; i < 4; i++) {
        values[i] = va_arg(all, unsigned long);
    }
    va_end(all);
    if (option == PR_SET_VMA) {
        say("prctl", (const char *)values[3]);
    }
    int (*real)(int, ...) = (int (*)(int, ...))dlsym(RTLD_NEXT, "prctl");
    return real(option, values[0], values[1], values[2], values[3]);
}

void *dlopen(const char *file, int flags)
{
    void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    void *loaded = file == NULL || file[0] != '/' ? NULL : real(file, RTLD_LAZY | RTLD_NOLOAD);
    if (loaded != NULL) {
        say("dlopen", file);
    }
    return real(file, flags);
}

int bind(int descriptor, const struct sockaddr *address, socklen_t size)
{
    if (address->sa_family == AF_UNIX && size > sizeof(address->sa_family)) {
        say("bind", ((const struct sockaddr_un *)address)->sun_path);
    }
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    return real(descriptor, address, size);
}

DIR *opendir(const char *name)
{
    say("opendir", name);
    DIR *(*real)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    return real(name);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    say("pthread_create", "-");
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attributes, start, argument);
}
