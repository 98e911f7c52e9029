/* schedule.c: the deadlines of a ticker. All of it needs the ticker's mutex. */
#ifndef SPLUNK_PROFILER_WALKER_SCHEDULE_H
#define SPLUNK_PROFILER_WALKER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* The next deadlines of both kinds of captures, on one grid, and of looks at event loops. */
typedef struct {
    int64_t all_ns, focused_ns; /* periods; 0: no such captures */
    int64_t grid_start_ns;      /* the last deadline of all threads */
    int64_t next_focused_ns;    /* next deadline of a focused capture, or NEVER_NS */
    int64_t look_ns;            /* longest time between looks; 0: none are wanted */
    int64_t next_look_ns;       /* or NEVER_NS */
} capture_schedule;

#pragma GCC visibility push(hidden)

#define NEVER_NS INT64_MAX

typedef struct {
    int64_t deadline_ns;
    int64_t period_ns; /* distance from the previous deadline of its kind */
    int64_t next_ns;   /* when it is too late: the next deadline of its kind, or an earlier one of all threads */
    int64_t skipped;   /* missed deadlines of its kind before it */
    bool is_focused;
    bool is_look; /* nothing is to be captured */
} schedule_tick;

/* The first capture of all threads is due `phase_ns` before a period is over. */
void schedule_start(capture_schedule *schedule, int64_t all_ns, int64_t focused_ns, int64_t phase_ns);
void schedule_set_periods(capture_schedule *schedule, int64_t all_ns, int64_t focused_ns);
/* Return the next deadline. Focused ones need traces in the filter, looks event loops that run. */
int64_t schedule_next_ns(capture_schedule *schedule, bool has_traces, bool has_loops);
/* Return the due deadline that schedule_next_ns returned. */
schedule_tick schedule_pop(capture_schedule *schedule, int64_t now_ns);

#pragma GCC visibility pop

#endif
