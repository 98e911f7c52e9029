/* Registers handlers of forks as gRPC does. The first may fork itself, as a signal handler in the middle of it does. */
#include <stdbool.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

extern int __register_atfork(void (*prepare)(void), void (*in_parent)(void), void (*in_child)(void), void *module);

static int prepare_count, parent_count;
static bool forks_in_handler;

static int fork_and_wait(void)
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    return waitpid(child, &status, 0) == child ? status : -1;
}

static void prepare(void)
{
    prepare_count++;
    if (forks_in_handler) {
        forks_in_handler = false;
        (void)fork_and_wait();
    }
}

static void in_parent(void)
{
    parent_count++;
}

int register_handlers(void)
{
    return __register_atfork(prepare, in_parent, NULL, NULL);
}

/* Return how often the handlers have been called in the parent by now; -1: not as often as before the forks. */
int fork_once(int in_handler)
{
    forks_in_handler = in_handler != 0;
    return fork_and_wait() == 0 && prepare_count == parent_count ? parent_count : -1;
}
