/* CPU times, states and priorities of threads, asked of the kernel without the GIL. */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define PROCESSOR_FIELD 39 /* of /proc/self/task/ID/stat: the last one that the thread had */

static int64_t clock_or_zero(clockid_t clock)
{
    struct timespec used;
    return clock_gettime(clock, &used) == 0 ? used.tv_sec * 1000000000LL + used.tv_nsec : 0;
}

static int64_t process_cpu_ns(void)
{
    return clock_or_zero(CLOCK_PROCESS_CPUTIME_ID);
}

/* The kernel numbers a thread's CPU clock by the thread's id; one of a thread that has ended is an error. */
static int64_t thread_cpu_ns(pid_t native_id)
{
    return native_id <= 0 ? 0 : clock_or_zero((clockid_t)((~(unsigned)native_id << 3) | 6));
}

/* Whether a thread's clock goes with the time, from one look to the next. The caller may be put aside in between. */
static bool has_processor(pid_t native_id)
{
    int64_t used_ns = thread_cpu_ns(native_id), now_ns = monotonic_ns();
    used_ns = thread_cpu_ns(native_id) - used_ns;
    return used_ns > (monotonic_ns() - now_ns) / 2;
}

/* Of a thread that uses no CPU time at this moment. */
static thread_state state_of(pid_t native_id)
{
    char text[1024];
    (void)snprintf(text, sizeof(text), "/proc/self/task/%d/stat", (int)native_id);
    int file = open(text, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return THREAD_UNKNOWN;
    }
    ssize_t length = read(file, text, sizeof(text) - 1);
    (void)close(file);
    text[length > 0 ? length : 0] = '\0';
    const char *field = strrchr(text, ')'); /* the name, which is the second field */
    field = field == NULL ? NULL : strchr(field, ' ');
    if (field == NULL) {
        return THREAD_UNKNOWN;
    }
    if (field[1] != 'R') {
        return THREAD_WAITS; /* for the GIL, too */
    }
    for (int number = 3; field != NULL && number < PROCESSOR_FIELD; number++) {
        field = strchr(field + 1, ' ');
    }
    return field != NULL && atoi(field) == sched_getcpu() ? THREAD_DISPLACED : THREAD_READY;
}

int thread_nice(pid_t native_id)
{
    errno = 0;
    int nice = native_id <= 0 ? 0 : getpriority(PRIO_PROCESS, (id_t)native_id);
    return errno == 0 ? nice : 0;
}

bool native_id_take(pid_t *native_id, PyObject *given)
{
    int overflow;
    long id = PyLong_AsLongAndOverflow(given, &overflow);
    *native_id = overflow != 0 || id < 0 || id > INT32_MAX ? 0 : (pid_t)id;
    return id != -1 || !PyErr_Occurred();
}

/* ---- the table: one, which the ticker and the captures hand to each other ---- */

static void put_back(core *c, clock_table *table)
{
    free(atomic_exchange(&c->clocks, table));
}

bool clocks_read(core *c, int64_t deadline_ns)
{
    bool displaced = false;
    clock_table *table = atomic_exchange(&c->clocks, NULL);
    if (table == NULL) {
        return false; /* the capture that has it, or that comes first, reads them itself */
    }
    table->deadline_ns = deadline_ns;
    table->process_ns = process_cpu_ns();
    for (size_t i = 0; i < table->count; i++) {
        clock_entry *entry = &table->entries[i];
        int64_t before_ns = entry->cpu_ns;
        entry->cpu_ns = thread_cpu_ns(entry->native_id);
        entry->state = entry->cpu_ns > before_ns ? THREAD_RUNS : THREAD_WAITS;
    }
    for (size_t i = 0; i < table->count; i++) { /* who uses time right now has a processor */
        clock_entry *entry = &table->entries[i];
        if (entry->state == THREAD_RUNS && !has_processor(entry->native_id)) {
            entry->state = state_of(entry->native_id);
            displaced = displaced || entry->state == THREAD_DISPLACED;
        }
    }
    table->read_ns = monotonic_ns();
    put_back(c, table);
    return displaced;
}

void clocks_settle(core *c)
{
    clock_table *table = atomic_exchange(&c->clocks, NULL);
    if (table == NULL) {
        return;
    }
    int64_t elapsed_ns = monotonic_ns() - table->read_ns;
    for (size_t i = 0; i < table->count; i++) {
        clock_entry *entry = &table->entries[i];
        if (entry->state == THREAD_DISPLACED) {
            bool goes_on = thread_cpu_ns(entry->native_id) - entry->cpu_ns > elapsed_ns / 2;
            entry->state = goes_on ? THREAD_RUNS : THREAD_READY;
        }
    }
    put_back(c, table);
}

/* The table with the threads of a snapshot, or NULL: no memory. */
static clock_table *listing(clock_table *table, const raw_snapshot *snapshot)
{
    if (table == NULL || table->room < snapshot->count) {
        size_t room = snapshot->count * 2;
        free(table);
        table = malloc(sizeof(clock_table) + room * sizeof(clock_entry));
        if (table == NULL) {
            return NULL;
        }
        table->room = room;
    }
    table->deadline_ns = -1;
    table->count = snapshot->count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[i];
        table->entries[i] = (clock_entry){thread->key, (pid_t)thread->native_id, thread->cpu_ns, THREAD_UNKNOWN};
    }
    return table;
}

void clocks_fill(core *c, raw_snapshot *snapshot, int64_t deadline_ns, bool is_last)
{
    clock_table *table = atomic_exchange(&c->clocks, NULL);
    bool fits = table != NULL && !snapshot->focused && table->deadline_ns == deadline_ns;
    size_t next = 0, known = fits ? table->count : 0;
    snapshot->process_cpu_ns = fits ? table->process_ns : process_cpu_ns();
    for (size_t i = 0; i < snapshot->count; i++) {
        raw_thread *thread = &snapshot->threads[i];
        while (next < known && table->entries[next].key < thread->key) {
            next++;
        }
        const clock_entry *entry = next < known && table->entries[next].key == thread->key ? &table->entries[next] : NULL;
        if (entry != NULL && entry->native_id == (pid_t)thread->native_id) {
            thread->cpu_ns = entry->cpu_ns;
            thread_state state = entry->state == THREAD_DISPLACED ? THREAD_READY : entry->state;
            thread->state = thread->state == THREAD_RUNS && state != THREAD_RUNS ? THREAD_READY : state;
        }
        else {
            thread->cpu_ns = thread_cpu_ns((pid_t)thread->native_id);
        }
    }
    put_back(c, is_last ? listing(table, snapshot) : table);
}
