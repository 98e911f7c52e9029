/* Forks as C libraries do: without the GIL, with a lock of their own, from threads that Python does not know. */
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The child returns as well. */
int soak_fork(void)
{
    return fork();
}

static int fork_and_end_the_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    return child;
}

int soak_fork_exit(void)
{
    return fork_and_end_the_child();
}

/* With a lock that other threads want while they hold the GIL. */
int soak_fork_holding(void)
{
    pthread_mutex_lock(&lock);
    int child = fork_and_end_the_child();
    pthread_mutex_unlock(&lock);
    return child;
}

void soak_touch(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

static void *fork_here(void *child)
{
    *(int *)child = fork_and_end_the_child();
    return NULL;
}

/* On a thread without a thread state. */
int soak_fork_on_thread(void)
{
    pthread_t thread;
    int child = -1;
    if (pthread_create(&thread, NULL, fork_here, &child) != 0) {
        return -1;
    }
    pthread_join(thread, NULL);
    return child;
}
