/* figures: the benchmarks of the RWAPI paper (section 4, figure 1) between node 0 and the last node.
 *
 *   one-way     as many messages as possible, whether or not the other has received them
 *   round-trip  a message is sent when the one before it has been answered
 *   both-ways   both nodes send, and receive, at the same time
 *
 * A message of 16 bytes or less is a small message (rwapi_send), a larger one is a write with a small message behind it. Every small
 * message carries its number, and every write a byte that says it; both are checked. Prints, for each test and size,
 *   TEST BYTES MICROSECONDS MEGABYTES_PER_SECOND
 *
 * Microseconds of a message: the mean for one-way; the median of all trips, halved for round-trip, because a machine that does something
 * else now and then says nothing of the transport.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <rwapi_ext.h>

#define SLOTS 64

static int me, nodes, other;
static unsigned char *source, *target;
static rwapi_net_t source_net, target_net, their_net;
static size_t size_max = 1 << 20;
static int sleeps, quiet;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void fail(const char *what) {
    fprintf(stderr, "figures: node %d: %s: %s\n", me, what, rwapi_error_string(errno));
    exit(1);
}

static void idle(void) {
    if (sleeps) rwapi_wait(1000);
}

static rwapi_small_t numbered(unsigned long long number) {
    rwapi_small_t small = {{0}};
    memcpy(small.bytes, &number, 8);
    return small;
}

/* the number of the next message of the other node; 0 when there is none */
static unsigned long long next(void) {
    int node;
    rwapi_small_t small;
    unsigned long long number;
    int found = rwapi_receive(&node, &small);
    if (found < 0) fail("a node is gone");
    if (!found) return 0;
    memcpy(&number, small.bytes, 8);
    return number;
}

static unsigned long long expected;

/* takes what has come; how many messages */
static int take(size_t size) {
    unsigned long long number = next();
    if (!number) return 0;
    if (number != ++expected) {
        fprintf(stderr, "figures: node %d: message %llu came where %llu was due\n", me, number, expected);
        exit(1);
    }
    if (size > 16) {
        unsigned char *slot = target + (number % SLOTS) * size;
        if (slot[0] != (unsigned char)number || slot[size - 1] != (unsigned char)number) {
            fprintf(stderr, "figures: node %d: message %llu came before its bytes\n", me, number);
            exit(1);
        }
    }
    return 1;
}

static rwapi_sid_t sids[SLOTS];

/* sends message `number` if there is room */
static int put(unsigned long long number, size_t size) {
    if (size <= 16) {
        if (!rwapi_send(other, numbered(number))) return 1;
        if (errno != EAGAIN) fail("rwapi_send");
        return 0;
    }
    size_t slot = number % SLOTS;
    if (sids[slot]) {
        int sent = rwapi_issent(sids[slot]);
        if (sent < 0) fail("rwapi_issent");
        if (!sent) return 0;
        sids[slot] = 0;
    }
    source[slot * size] = source[slot * size + size - 1] = (unsigned char)number;
    rwapi_sid_t sid = rwapi_write_notify(other, source_net + slot * size, their_net + slot * size, size, numbered(number));
    if (sid < 0) {
        if (errno != EAGAIN) fail("rwapi_write_notify");
        return 0;
    }
    sids[slot] = sid;
    return 1;
}

static void report(const char *test, size_t size, double us, unsigned long long messages) {
    if (me == 0 && !quiet) {
        printf("%s %zu %.3f %.3f\n", test, size, us / (double)messages, (double)(messages * size) / us);
        fflush(stdout);
    }
}

static unsigned long long sent;

/* Messages may lie in SLOTS places: a place is used again when the message in it was taken, which the window of the receiver's
 * acknowledgements says: one for each half of the places. */
static void one_way(size_t size, unsigned long long messages) {
    unsigned long long seen = 0;
    double begin = now_us();
    if (me == 0) {
        unsigned long long last = sent + messages, base = sent;
        while (sent < last) {
            int moved = 0;
            if (size <= 16 || sent - base < seen + SLOTS) moved = put(sent + 1, size);
            if (moved) sent++;
            else if (next()) {
                seen += SLOTS / 2;
            } else idle();
        }
        /* the last has come */
        while (next() != ~0ull) idle();
    } else {
        unsigned long long taken = 0;
        while (taken < messages) {
            if (!take(size)) {
                idle();
                continue;
            }
            taken++;
            if (size > 16 && taken % (SLOTS / 2) == 0)
                while (rwapi_send(other, numbered(1)) < 0) {
                    if (errno != EAGAIN) fail("rwapi_send");
                    idle();
                }
        }
        while (rwapi_send(other, numbered(~0ull)) < 0) idle();
    }
    report("one-way", size, now_us() - begin, messages);
}

static void put_next(size_t size) {
    while (!put(sent + 1, size)) idle();
    sent++;
}

static void take_next(size_t size) {
    while (!take(size)) idle();
}

static int earlier(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void trips(size_t size, unsigned long long messages, int both) {
    double *took = malloc(messages * sizeof *took);
    if (!took) exit(1);
    for (unsigned long long i = 0; i < messages; i++) {
        double begin = now_us();
        if (both || me == 0) {
            put_next(size);
            take_next(size);
        } else {
            take_next(size);
            put_next(size);
        }
        took[i] = now_us() - begin;
    }
    qsort(took, messages, sizeof *took, earlier);
    report(both ? "both-ways" : "round-trip", size, took[messages / 2] / (both ? 1 : 2), 1);
    free(took);
}

static void run(const char *test, size_t size, unsigned long long messages) {
    if (me != 0 && me != nodes - 1) return;
    if (!strcmp(test, "one-way")) one_way(size, messages);
    else trips(size, messages, !strcmp(test, "both-ways"));
}

static void meet(void) {
    if (rwapi_barrier() < 0) fail("rwapi_barrier");
    sent = expected = 0;
    memset(sids, 0, sizeof sids);
    memset(target, 0, SLOTS * size_max);
    if (rwapi_barrier() < 0) fail("rwapi_barrier");
}

int main(int argc, char **argv) {
    int ms = 200;
    const char *tests = "one-way,round-trip,both-ways", *sizes = "16,1024,16384,32768,262144,1048576";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--ms")) ms = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--test")) tests = argv[i + 1];
        else if (!strcmp(argv[i], "--size")) sizes = argv[i + 1];
        else if (!strcmp(argv[i], "--sleep")) sleeps = atoi(argv[i + 1]);
        else {
            fprintf(stderr, "usage: figures [--test one-way,round-trip,both-ways] [--size BYTES,...] [--ms MS] [--sleep 0|1]\n");
            return 2;
        }
    }
    if (rwapi_init(argc, argv) < 0) return 1;
    me = rwapi_rank();
    nodes = rwapi_size();
    if (nodes < 2) {
        fprintf(stderr, "figures: two nodes are needed\n");
        return 2;
    }
    other = me == 0 ? nodes - 1 : 0;
    if (me == 0 || me == nodes - 1) {
        source = rwapi_alloc(SLOTS * size_max, &source_net);
        target = rwapi_alloc(SLOTS * size_max, &target_net);
        if (!source || !target) fail("rwapi_alloc");
        while (rwapi_send(other, numbered(target_net)) < 0) idle();
        while (!(their_net = next())) idle();
    } else {
        /* barriers are for all */
        source = target = rwapi_alloc(SLOTS * size_max, &source_net);
    }
    char *list = strdup(tests), *rest = list, *test;
    while ((test = strsep(&rest, ","))) {
        const char *at = sizes;
        for (char *end; *at; at = *end ? end + 1 : end) {
            size_t size = (size_t)strtoull(at, &end, 10);
            if (size < 1 || size > size_max) {
                fprintf(stderr, "figures: a size is 1 to 1048576 bytes\n");
                return 2;
            }
            unsigned long long messages = 64;
            /* as many messages as take `ms`, found by trying; all nodes come to the same number, from node 0's clock */
            for (;;) {
                meet();
                double begin = now_us();
                quiet = 1;
                run(test, size, messages);
                quiet = 0;
                double us = now_us() - begin;
                unsigned long long more = 0;
                meet();
                if (me == 0) {
                    if (us < ms * 100.0) more = messages * 4;
                    else if (us < ms * 700.0) more = (unsigned long long)((double)messages * ms * 1000.0 / us);
                    for (int node = 1; node < nodes; node++)
                        while (rwapi_send(node, numbered(more + 1)) < 0) idle();
                } else {
                    while (!(more = next())) idle();
                    more--;
                }
                if (!more) break;
                messages = more;
            }
            meet();
            run(test, size, messages);
        }
    }
    free(list);
    return rwapi_finalize() < 0;
}
