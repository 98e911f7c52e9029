/* The deadlines of both kinds of captures, as in splunk_profiler/capture/schedule.py, and of looks. Needs the mutex.
 *
 * A capture of all threads is due one period after the previous one. Focused captures are due at multiples of
 * their period in between. A capture of all threads replaces a focused one at the same time. A look at event loops,
 * which comes with each capture, is due where there was none for its period.
 */
#include "ticker_state.h"

static int64_t next_all_ns(const capture_schedule *schedule)
{
    return schedule->all_ns > 0 ? schedule->grid_start_ns + schedule->all_ns : NEVER_NS;
}

void schedule_start(capture_schedule *schedule, int64_t all_ns, int64_t focused_ns, int64_t phase_ns)
{
    *schedule = (capture_schedule){
        all_ns, focused_ns, monotonic_ns() - phase_ns, NEVER_NS, schedule->look_ns, NEVER_NS,
    };
}

/* Moves the next deadlines at once. That of all threads counts from the previous one; the focused grid starts
 * again. */
void schedule_set_periods(capture_schedule *schedule, int64_t all_ns, int64_t focused_ns)
{
    if (schedule->all_ns == 0 && all_ns > 0) {
        schedule->grid_start_ns = monotonic_ns(); /* there were no such deadlines until now */
    }
    if (schedule->focused_ns != focused_ns) {
        schedule->next_focused_ns = NEVER_NS;
    }
    schedule->all_ns = all_ns;
    schedule->focused_ns = focused_ns;
}

static int64_t next_capture_ns(const capture_schedule *schedule)
{
    int64_t all_ns = next_all_ns(schedule);
    return all_ns <= schedule->next_focused_ns ? all_ns : schedule->next_focused_ns;
}

int64_t schedule_next_ns(capture_schedule *schedule, bool has_traces, bool has_loops)
{
    int64_t focused_ns = schedule->focused_ns;
    if (focused_ns == 0 || !has_traces) {
        schedule->next_focused_ns = NEVER_NS;
    }
    else if (schedule->next_focused_ns == NEVER_NS) {
        int64_t elapsed_periods = (monotonic_ns() - schedule->grid_start_ns) / focused_ns;
        schedule->next_focused_ns = schedule->grid_start_ns + (elapsed_periods + 1) * focused_ns;
    }
    if (schedule->look_ns == 0 || !has_loops) {
        schedule->next_look_ns = NEVER_NS;
    }
    else if (schedule->next_look_ns == NEVER_NS) {
        schedule->next_look_ns = monotonic_ns() + schedule->look_ns;
    }
    int64_t capture_ns = next_capture_ns(schedule);
    return capture_ns <= schedule->next_look_ns ? capture_ns : schedule->next_look_ns;
}

schedule_tick schedule_pop(capture_schedule *schedule, int64_t now_ns)
{
    int64_t all_ns = next_all_ns(schedule), capture_ns = next_capture_ns(schedule);
    if (schedule->next_look_ns != NEVER_NS) {
        schedule->next_look_ns = now_ns + schedule->look_ns;
    }
    if (now_ns < capture_ns) {
        int64_t next_ns = capture_ns < schedule->next_look_ns ? capture_ns : schedule->next_look_ns;
        return (schedule_tick){
            .deadline_ns = now_ns, .period_ns = schedule->look_ns, .next_ns = next_ns, .is_look = true};
    }
    bool is_focused = now_ns < all_ns;
    int64_t deadline_ns = is_focused ? schedule->next_focused_ns : all_ns;
    int64_t period_ns = is_focused ? schedule->focused_ns : schedule->all_ns;
    int64_t skipped = (now_ns - deadline_ns) / period_ns;
    deadline_ns += skipped * period_ns; /* one capture after a stall, not a burst */
    int64_t next_ns = deadline_ns + period_ns;
    if (is_focused) {
        schedule->next_focused_ns = next_ns;
        next_ns = next_ns < all_ns ? next_ns : all_ns;
    }
    else {
        schedule->grid_start_ns = deadline_ns;
        schedule->next_focused_ns = NEVER_NS;
    }
    return (schedule_tick){deadline_ns, period_ns, next_ns, skipped, is_focused, .is_look = false};
}
