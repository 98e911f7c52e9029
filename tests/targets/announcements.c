/* Says on standard output when a process that preloads this announces a library to host profilers, by one of the two calls
 * that they trace: a prctl that names a mapping OTEL_CTX, and dlopen of a library that is loaded already.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

static void say(const char *call, const char *text)
{
    char line[4096];
    int length = snprintf(line, sizeof(line), "%s %s\n", call, text);
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
