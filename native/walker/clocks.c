/* Reads CPU times and states of threads from the kernel, without the GIL.
 *
 * The kernel cannot say which threads had a processor at an instant: the asking thread may itself have woken
 * up on that processor. So the clocks are read at the deadline, and again some tens of microseconds later. A
 * thread that used a part of this probe counts as running with the probability of that part.
 */
#include "forks.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define COARSE_TICK_NS 1000000     /* clocks of some sandboxes have only multiples: what runs for less is not seen */
#define GOLDEN_STEP    2654435769u /* 2^32 times the golden section */
#define BUSY_DIVISOR   8 /* a thread that used an eighth of a processor may be ready; others are not checked */

int64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    return clock_gettime(clock, &time) == 0 ? time.tv_sec * SECOND_NS + time.tv_nsec : 0;
}

int64_t monotonic_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

void wait_on_condition(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / SECOND_NS, .tv_nsec = until_ns % SECOND_NS};
    pthread_cond_timedwait(condition, mutex, &until);
}

/* The kernel derives a thread's CPU clock from its id. The clock of an ended thread is an error. */
static int64_t thread_cpu_ns(pid_t native_id)
{
    return native_id <= 0 ? 0 : clock_ns((clockid_t)((~(unsigned)native_id << 3) | 6));
}

/* Meanwhile the application may close the descriptor, and have its number for a file of its own. `pread` takes nothing
 * from that, and what is no file of /proc is not closed here. */
void thread_read_stat(pid_t native_id, char text[THREAD_STAT_SIZE])
{
    (void)snprintf(text, THREAD_STAT_SIZE, "/proc/self/task/%d/stat", (int)native_id);
    int file = open(text, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : pread(file, text, THREAD_STAT_SIZE - 1, 0);
    struct statfs system;
    bool is_ours = file >= 0 && fstatfs(file, &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
    text[is_ours && length > 0 ? length : 0] = '\0';
    if (is_ours) {
        (void)close(file);
    }
}

bool thread_is_runnable(pid_t native_id)
{
    char text[THREAD_STAT_SIZE];
    thread_read_stat(native_id, text);
    const char *field = strrchr(text, ')'); /* the thread's name is the second field */
    return field != NULL && strncmp(field, ") R", 3) == 0;
}

bool native_id_parse(pid_t *native_id, PyObject *given)
{
    int overflow;
    long id = PyLong_AsLongAndOverflow(given, &overflow);
    *native_id = overflow != 0 || id < 0 || id > INT32_MAX ? 0 : (pid_t)id;
    return id != -1 || !PyErr_Occurred();
}

/* The ticker and the captures share one table. An atomic exchange hands it over. */
static void return_table(ticker_state *ticker, clock_table *table)
{
    free(atomic_exchange(&ticker->clocks.table, table));
}

clocks_change clocks_read(ticker_state *ticker, int64_t deadline_ns)
{
    clocks_change change = CLOCKS_QUIET;
    clock_table *table = atomic_exchange(&ticker->clocks.table, NULL);
    if (table == NULL) {
        return CLOCKS_UNKNOWN; /* the next capture reads the clocks itself */
    }
    table->deadline_ns = deadline_ns;
    table->process_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < table->count; i++) {
        clock_entry *entry = &table->entries[i];
        int64_t now_ns = monotonic_ns(), cpu_ns = thread_cpu_ns(entry->native_id), used_ns = cpu_ns - entry->cpu_ns;
        entry->has_run = used_ns != 0; /* less: another thread has the id */
        entry->is_busy = used_ns > (now_ns - entry->read_ns) / BUSY_DIVISOR;
        entry->read_ns = now_ns;
        entry->cpu_ns = cpu_ns;
        entry->reader_cpu_ns = entry->has_run ? clock_ns(CLOCK_THREAD_CPUTIME_ID) : 0;
        entry->state = entry->has_run ? THREAD_UNKNOWN : THREAD_WAITING; /* until the second reading */
        if (entry->has_run && !gil_keeper_is_profiler_id(entry->native_id)) {
            change = CLOCKS_RAN;
        }
        else if (change == CLOCKS_QUIET && cpu_ns % COARSE_TICK_NS == 0) {
            change = CLOCKS_UNKNOWN;
        }
    }
    table->is_quiet = change == CLOCKS_QUIET;
    table->was_quiet_since_snapshot = table->was_quiet_since_snapshot && table->is_quiet;
    if (table->is_quiet && !table->was_quiet_since_snapshot) {
        change = CLOCKS_UNKNOWN;
    }
    return_table(ticker, table);
    return change;
}

void clocks_read_again(ticker_state *ticker)
{
    clock_table *table = atomic_exchange(&ticker->clocks.table, NULL);
    if (table == NULL) {
        return;
    }
    /* Modulo 2^32: no two phases are close, and none matches a period of the application. */
    ticker->clocks.probe_phase += GOLDEN_STEP;
    for (size_t i = 0; i < table->count; i++) {
        clock_entry *entry = &table->entries[i];
        if (!entry->has_run) {
            continue;
        }
        int64_t used_ns = thread_cpu_ns(entry->native_id) - entry->cpu_ns;
        /* The reader may share the thread's processor. */
        int64_t reader_cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - entry->reader_cpu_ns;
        int64_t probe_ns = monotonic_ns() - entry->read_ns - reader_cpu_ns;
        if (used_ns > 0 && used_ns > (int64_t)((double)probe_ns * ticker->clocks.probe_phase / UINT32_MAX)) {
            entry->state = THREAD_RUNNING;
        }
        else {
            bool ready = used_ns == 0 && entry->is_busy && thread_is_runnable(entry->native_id);
            entry->state = ready ? THREAD_READY : THREAD_WAITING;
        }
    }
    return_table(ticker, table);
}

/* Return the table with the threads of a snapshot; NULL: no memory. */
static clock_table *build_table(clock_table *table, const raw_snapshot *snapshot, bool is_quiet)
{
    if (table == NULL || table->capacity < snapshot->count) {
        size_t capacity = snapshot->count * 2;
        free(table);
        table = malloc(sizeof(clock_table) + capacity * sizeof(clock_entry));
        if (table == NULL) {
            return NULL;
        }
        table->capacity = capacity;
    }
    table->deadline_ns = -1;
    table->was_quiet_since_snapshot = is_quiet;
    table->count = snapshot->count;
    int64_t now_ns = monotonic_ns();
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[i];
        table->entries[i] = (clock_entry){
            .key = thread->key, .native_id = (pid_t)thread->native_id, .cpu_ns = thread->cpu_ns, .read_ns = now_ns};
    }
    return table;
}

/* Return the thread's reading, or NULL. `index` is where to go on: both lists have the oldest thread first. */
static const clock_entry *find_entry(const clock_table *table, size_t *index, const raw_thread *thread)
{
    while (*index < table->count && table->entries[*index].key < thread->key) {
        (*index)++;
    }
    const clock_entry *entry = *index < table->count ? &table->entries[*index] : NULL;
    bool matches = entry != NULL && entry->key == thread->key && entry->native_id == (pid_t)thread->native_id;
    return matches ? entry : NULL;
}

/* Give a thread the times and the state of its reading. */
static void fill_thread(raw_thread *thread, const clock_entry *entry)
{
    thread->cpu_ns = entry->cpu_ns;
    thread->state = thread->state == THREAD_RUNNING && entry->state != THREAD_RUNNING ? THREAD_READY : entry->state;
    if (thread->state == THREAD_WAITING && thread->wants_gil) {
        thread->state = THREAD_WANTS_GIL;
    }
}

void clocks_fill(ticker_state *ticker, raw_snapshot *snapshot, int64_t deadline_ns, bool is_last)
{
    size_t index = 0;
    clock_table *table = atomic_exchange(&ticker->clocks.table, NULL);
    bool fits = table != NULL && !snapshot->is_focused && table->deadline_ns == deadline_ns;
    bool is_quiet = fits && table->is_quiet;
    snapshot->process_cpu_ns = fits ? table->process_ns : clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < snapshot->count; i++) {
        raw_thread *thread = &snapshot->threads[i];
        const clock_entry *entry = fits ? find_entry(table, &index, thread) : NULL;
        if (entry == NULL) {
            thread->cpu_ns = thread_cpu_ns((pid_t)thread->native_id);
        }
        else {
            fill_thread(thread, entry);
        }
        is_quiet = is_quiet && entry != NULL
                   && (thread->state == THREAD_WAITING || gil_keeper_is_profiler_id((pid_t)thread->native_id));
    }
    return_table(ticker, is_last ? build_table(table, snapshot, is_quiet) : table);
}
