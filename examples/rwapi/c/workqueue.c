/* A work queue: node 0 hands out --tasks tasks, the other nodes work. Task t counts the primes among --numbers numbers.
 *
 * Shows: a job that goes on when a node dies. rwapi_receive reports a dead node after its last message; node 0 then
 * hands out the tasks of this node again. Where no worker is left, node 0 works itself.
 *
 * With --die K node K ends in the middle of its second task. The launcher must let the others go on:
 * `rerail launch --keep-going`.
 */
#include "common.h"

enum kind { TASK = 1, RESULT, STOP };
enum { FREE = -1, DONE = -2 }; /* in place of the node that has a task */

/* Two tasks for each worker: it has the next one when it sends a result. */
enum { TASKS_PER_WORKER = 2 };

static long tasks = 200, numbers = 5000, die = -1;

static uint64_t count_primes(uint64_t task)
{
    const uint64_t first = task * (uint64_t)numbers;
    uint64_t primes = 0;
    for (uint64_t n = first; n < first + (uint64_t)numbers; n++) {
        bool prime = n >= 2;
        for (uint64_t d = 2; prime && d * d <= n; d++) prime = n % d != 0;
        primes += prime;
    }
    return primes;
}

/* The same number by a sieve. */
static uint64_t expected(void)
{
    const size_t end = (size_t)tasks * (size_t)numbers;
    uint8_t *composite = calloc(end, 1);
    if (!composite) fail("calloc");
    uint64_t primes = 0;
    for (size_t n = 2; n < end; n++) {
        if (composite[n]) continue;
        primes++;
        for (size_t m = n * n; m < end; m += n) composite[m] = 1;
    }
    free(composite);
    return primes;
}

static void work(void)
{
    for (int received = 1;; received++) {
        struct event event = message_await();
        if (event.gone) {
            if (event.node == 0) fail_gone(0);
            continue; /* another worker: node 0 sees to its tasks */
        }
        if (event.message.kind == STOP) return;
        if (die == rwapi_rank() && received == 2) _Exit(1);
        const uint64_t primes = count_primes(event.message.number);
        if (!message_send(0, RESULT, event.message.number, primes)) fail_gone(0);
    }
}

static bool hand_out(void)
{
    const int nodes = rwapi_size();
    int *owner = malloc((size_t)tasks * sizeof *owner); /* FREE, DONE or a node, for each task */
    int *given = calloc((size_t)nodes, sizeof *given);  /* tasks that a node has */
    bool *gone = calloc((size_t)nodes, sizeof *gone);
    if (!owner || !given || !gone) fail("malloc");
    for (long t = 0; t < tasks; t++) owner[t] = FREE;

    uint64_t total = 0;
    long done = 0, next = 0; /* no task before `next` is free */
    int workers = nodes - 1;
    while (done < tasks) {
        for (int turn = 0; turn < TASKS_PER_WORKER; turn++)
            for (int node = 1; node < nodes; node++) {
                while (next < tasks && owner[next] != FREE) next++;
                if (next == tasks || gone[node] || given[node] > turn) continue;
                /* If the node is gone, its last messages still come. Its tasks become free after them. */
                if (!message_send(node, TASK, (uint32_t)next, 0)) continue;
                owner[next] = node;
                given[node]++;
            }
        if (workers == 0) {
            while (owner[next] != FREE) next++;
            total += count_primes((uint64_t)next);
            owner[next] = DONE;
            done++;
            continue;
        }
        struct event event = message_await();
        if (event.gone) {
            gone[event.node] = true;
            workers--;
            long again = 0;
            for (long t = 0; t < tasks; t++)
                if (owner[t] == event.node) {
                    owner[t] = FREE;
                    again++;
                }
            next = 0;
            printf("workqueue: node %d is gone, %ld tasks are handed out again\n", event.node, again);
        } else if (event.message.kind == RESULT && event.message.number < (uint32_t)tasks &&
                   owner[event.message.number] == event.node) {
            total += event.message.value;
            owner[event.message.number] = DONE;
            given[event.node]--;
            done++;
        }
    }
    for (int node = 1; node < nodes; node++)
        if (!gone[node]) message_send(node, STOP, 0, 0);

    const uint64_t all = expected();
    if (total == all) printf("workqueue: %d nodes, %ld tasks, right\n", nodes, tasks);
    else
        printf("workqueue: %d nodes, %ld tasks, wrong: %llu primes instead of %llu\n", nodes, tasks,
               (unsigned long long)total, (unsigned long long)all);
    free(owner);
    free(given);
    free(gone);
    return total == all;
}

int main(int argc, char **argv)
{
    const struct argument arguments[] = {
        {"--tasks", &tasks, 1, 10000}, {"--numbers", &numbers, 1, 10000}, {"--die", &die, 1, 1000000}};
    program = "workqueue";
    parse(argc, argv, 3, arguments);
    start("workqueue", argc, argv);
    bool right = true;
    if (rwapi_rank() == 0) right = hand_out();
    else work();
    finish();
    return right ? 0 : 1;
}
