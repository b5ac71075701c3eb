/* figures: the benchmarks of the RWAPI paper (section 4, figure 1) between node 0 and the last node, and a write that is waited for.
 *
 *   one-way     as many messages as possible, whether or not the other has received them
 *   round-trip  a message is sent when the one before it has been answered
 *   both-ways   both nodes send, and receive, at the same time
 *   put         one-sided: a write begins when the one before it is in place at the target, which does nothing but wait
 *
 * `rerail bench --rwapi` compiles this file twice: over RWAPI (over_rwapi.h), and with OVER_MPI over an MPI (over_mpi.h). The loops, the
 * number of messages under way and the checks are the same, so that ratios compare transports. Each message carries its number, and both
 * nodes check what they receive. Prints, for each test and size,
 *
 *   span TEST BYTES STANDSTILL_MS BEGIN_UNIX_NS END_UNIX_NS
 *   bench TEST BYTES MICROSECONDS
 *
 * Microseconds of a message: the mean for one-way; otherwise the median of all messages, halved for round-trip, because a machine that
 * does something else now and then says nothing of the transport. The standstill is the longest time between two messages, which a median
 * hides.
 *
 * With --cuts 1 the phase TEST-BYTES of the lab's schedule begins with a measurement, which lasts until the lab has done all that was due.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Messages under way at most, each in a place of its own. */
enum { SLOTS = 64 };

static int me, nodes, other;
static unsigned char *source, *target;
/* the largest size of all tests */
static size_t size_max;
static int sleeps;

static void fail(const char *format, ...);

/* What over_rwapi.h and over_mpi.h have:
 *
 * over_begin(argc, argv)    sets me, nodes and other
 * over_place()              makes source and target, of SLOTS * size_max bytes
 * over_meet()               a barrier of all nodes
 * over_prepare(size, n)     before n messages of this size arrive
 * over_send(number, size)   sends message `number` from its slot of source
 * over_receive(size)        waits for the next message; its number, as far as the transport carries it, or 0
 * over_windowed(size)       whether the program, and not the transport, limits how many messages are under way
 * over_put(number, size)    writes to the same slot of target, and waits until it is in place
 * over_visible()            makes what was put visible here
 * over_tell(value, more)    sends two values beside the messages
 * over_hear(&more)          waits for them
 * over_end()
 */
#ifdef OVER_MPI
#include "over_mpi.h"
#else
#include "over_rwapi.h"
#endif

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "figures: node %d: ", me);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    over_abort();
    exit(1);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* By the clock of the lab's events. */
static long long unix_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* What is measured now. */
static struct {
    const char *test;
    size_t size;
    /* the last message sent, and received */
    uint64_t sent, received;
    double us, standstill_us;
    uint64_t messages;
    /* of each message, where the test takes them */
    double *samples;
    size_t used, room;
} run;

static void sample(double us) {
    if (us > run.standstill_us) run.standstill_us = us;
    if (run.used == run.room) {
        run.room = run.room ? 2 * run.room : 1 << 16;
        run.samples = realloc(run.samples, run.room * sizeof *run.samples);
        if (!run.samples) fail("out of memory");
    }
    run.samples[run.used++] = us;
}

static void check_slot(uint64_t number) {
    const unsigned char *slot = target + number % SLOTS * run.size;
    if (slot[0] != (unsigned char)number || slot[run.size - 1] != (unsigned char)number)
        fail("%s of %zu bytes: message %llu came before its bytes", run.test, run.size, (unsigned long long)number);
}

static void send_next(void) {
    uint64_t number = ++run.sent;
    unsigned char *slot = source + number % SLOTS * run.size;
    over_free_slot(number);
    slot[0] = slot[run.size - 1] = (unsigned char)number;
    over_send(number, run.size);
}

static void receive_next(void) {
    uint64_t due = ++run.received, number = over_receive(run.size);
    if (number && number != due)
        fail("%s: message %llu came where %llu was due", run.test, (unsigned long long)number, (unsigned long long)due);
    if (over_has_bytes(run.size)) check_slot(due);
}

/* A slot is used again when the message in it was received: an answer says so for each half of the slots. */
static void one_way_send(uint64_t messages) {
    uint64_t answered = 0;
    double standstill = 0;
    for (uint64_t i = 0; i < messages; i++) {
        if (over_windowed(run.size) && i - answered >= SLOTS) {
            over_hear(&standstill);
            answered += SLOTS / 2;
        }
        send_next();
    }
    for (; over_windowed(run.size) && answered < messages; answered += SLOTS / 2) over_hear(&standstill);
    over_hear(&standstill);
    if (standstill > run.standstill_us) run.standstill_us = standstill;
}

static void one_way_receive(uint64_t messages) {
    double former = now_us(), standstill = 0;
    for (uint64_t i = 1; i <= messages; i++) {
        receive_next();
        /* reading the clock would be a large part of a small message */
        if (run.size > 16 || i % 8 == 0) {
            double now = now_us();
            if (now - former > standstill) standstill = now - former;
            former = now;
        }
        if (over_windowed(run.size) && i % (SLOTS / 2) == 0) over_tell(1, 0);
    }
    over_tell(1, standstill);
}

static void one_way(uint64_t messages) { me == 0 ? one_way_send(messages) : one_way_receive(messages); }

static void round_trip(uint64_t messages) {
    for (uint64_t i = 0; i < messages; i++) {
        double begin = now_us();
        if (me == 0) send_next();
        receive_next();
        if (me != 0) send_next();
        sample(now_us() - begin);
    }
}

static void both_ways(uint64_t messages) {
    for (uint64_t i = 0; i < messages; i++) {
        double begin = now_us();
        send_next();
        receive_next();
        sample(now_us() - begin);
    }
}

static void put(uint64_t messages) {
    double ignored;
    if (me != 0) {
        run.received += messages;
        over_hear(&ignored);
        over_visible();
        for (uint64_t i = 0; i < SLOTS; i++) check_slot(run.received - i);
        over_tell(1, 0);
        return;
    }
    for (uint64_t i = 0; i < messages; i++) {
        double begin = now_us();
        uint64_t number = ++run.sent;
        unsigned char *slot = source + number % SLOTS * run.size;
        slot[0] = slot[run.size - 1] = (unsigned char)number;
        over_put(number, run.size);
        sample(now_us() - begin);
    }
    over_tell(1, 0);
    /* the slots are checked */
    over_hear(&ignored);
}

static const struct {
    const char *name;
    void (*once)(uint64_t);
    /* what of a sample is the time of a message; 0: the mean of the whole time counts */
    double share;
    /* whether node 0 sends, and receives, messages */
    int out, in;
} tests[] = {
    {"one-way", one_way, 0, 1, 0},
    {"round-trip", round_trip, 0.5, 1, 1},
    {"both-ways", both_ways, 1, 1, 1},
    {"put", put, 1, 0, 0},
};

/* Some messages of a measurement, the same number on both nodes. */
static void chunk(int t, uint64_t messages) {
    int receives = me == 0 ? tests[t].in : tests[t].out;
    over_prepare(run.size, receives ? messages : 0);
    double begin = now_us();
    tests[t].once(messages);
    run.us += now_us() - begin;
    run.messages += messages;
}

static void forget_figures(void) {
    run.us = run.standstill_us = 0;
    run.messages = run.used = 0;
}

static int earlier(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The name of a file of the lab, for the measurement that runs now. */
static void phase_path(char *path, size_t room, const char *suffix) {
    snprintf(path, room, "%s/%s-%zu%s", getenv("RERAIL_LAB_PHASES"), run.test, run.size, suffix);
}

static void announce(const char *suffix) {
    char path[512];
    phase_path(path, sizeof path, suffix);
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) fail("%s cannot be created: %s", path, strerror(errno));
    close(file);
}

/* Whether the file is there. */
static int exists(const char *suffix) {
    char path[512];
    phase_path(path, sizeof path, suffix);
    return access(path, F_OK) == 0;
}

/* Whether node 0 has measured enough. With cuts, also whether the lab has done what it had to do meanwhile. */
static int enough(double ms, int cuts) {
    if (run.us < ms * 1e3) return 0;
    if (!cuts) return 1;
    /* a state kept here would outlive the measurement: a first chunk may already take longer than all of it */
    if (!exists("-end")) announce("-end");
    return exists("-end.done");
}

/* Node 0 decides how many messages follow, and the other node learns it: a chunk takes about a tenth of the time. */
static void lead(int t, double ms, int cuts) {
    uint64_t messages = SLOTS;
    for (;;) {
        forget_figures();
        over_tell(messages, 0);
        chunk(t, messages);
        if (run.us > ms * 25) break;
        messages *= 4;
    }
    messages = (uint64_t)((double)messages * ms * 100 / run.us) / SLOTS * SLOTS;
    if (messages < SLOTS) messages = SLOTS;
    forget_figures();
    if (cuts) {
        announce("");
        while (!exists(".done")) usleep(1000);
    }
    long long begin = unix_ns();
    do {
        over_tell(messages, 0);
        chunk(t, messages);
    } while (!enough(ms, cuts));
    long long end = unix_ns();
    over_tell(~0ull, 0);
    double us = run.us / (double)run.messages;
    if (tests[t].share > 0) {
        qsort(run.samples, run.used, sizeof *run.samples, earlier);
        us = tests[t].share * run.samples[run.used / 2];
    }
    printf("span %s %zu %.4f %lld %lld\n", run.test, run.size, run.standstill_us / 1e3, begin, end);
    printf("bench %s %zu %.4f\n", run.test, run.size, us);
    fflush(stdout);
}

static void follow(int t) {
    double ignored;
    for (uint64_t messages; (messages = over_hear(&ignored)) != ~0ull;) {
        forget_figures();
        chunk(t, messages);
    }
}

static void measure(int t, size_t size, double ms, int cuts) {
    run.test = tests[t].name;
    run.size = size;
    run.sent = run.received = 0;
    over_meet();
    memset(target, 0, SLOTS * size);
    over_meet();
    if (me == 0) lead(t, ms, cuts);
    else if (me == nodes - 1) follow(t);
}

static int usage(void) {
    fprintf(stderr, "usage: figures [--test one-way,round-trip,both-ways,put] [--size BYTES,...] [--ms MS] [--sleep 0|1] [--cuts 0|1]\n");
    return 2;
}

/* The largest of the sizes; 0 when one is wrong. */
static size_t largest(const char *sizes) {
    size_t max = 0;
    for (char *end; *sizes; sizes = *end ? end + 1 : end) {
        size_t size = (size_t)strtoull(sizes, &end, 10);
        if (end == sizes || size < 1 || size > 1 << 20 || (*end && *end != ',')) return 0;
        if (size > max) max = size;
    }
    return max;
}

int main(int argc, char **argv) {
    int cuts = 0;
    double ms = 200;
    const char *names = "one-way,round-trip,both-ways,put", *sizes = "16,1024,16384,32768,262144,1048576";
    over_begin(&argc, &argv);
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return usage();
        if (!strcmp(argv[i], "--ms")) ms = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--test")) names = argv[i + 1];
        else if (!strcmp(argv[i], "--size")) sizes = argv[i + 1];
        else if (!strcmp(argv[i], "--sleep")) sleeps = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--cuts")) cuts = atoi(argv[i + 1]);
        else return usage();
    }
    if (nodes < 2) fail("two nodes are needed");
    if (cuts && !getenv("RERAIL_LAB_PHASES")) fail("cuts need a lab");
    size_max = largest(sizes);
    if (!size_max) fail("a size is 1 to 1048576 bytes");
    over_place();
    char *list = strdup(names), *rest = list, *name;
    while ((name = strsep(&rest, ","))) {
        int t = (int)(sizeof tests / sizeof *tests) - 1;
        while (t >= 0 && strcmp(tests[t].name, name)) t--;
        if (t < 0) fail("there is no test `%s`", name);
        for (char *at = (char *)sizes; *at; at += *at == ',') measure(t, (size_t)strtoull(at, &at, 10), ms, cuts);
    }
    free(list);
    free(run.samples);
    return over_end();
}
