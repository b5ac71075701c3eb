/* What figures.c measures, over RWAPI. A message of 16 bytes or less is a small message (rwapi_send), a larger one is a write with a small
 * message behind it. Small messages carry numbers. */
#include <sched.h>
#include <rwapi_ext.h>

static rwapi_net_t source_net, target_net, their_net;
static rwapi_sid_t sids[SLOTS];

static void over_abort(void) {}

static void over_fail(const char *what) { fail("%s: %s", what, rwapi_error_string(errno)); }

static void over_begin(int *argc, char ***argv) {
    if (rwapi_init(*argc, *argv) < 0) exit(1);
    me = rwapi_rank();
    nodes = rwapi_size();
    other = me == 0 ? nodes - 1 : 0;
}

/* Nothing was there. MPIs give their core away now and then while they poll; without that, a node on a busy machine polls to the end of its
 * time slice while the other waits for the core. */
static void idle(void) {
    static unsigned polls;
    if (sleeps) rwapi_wait(1000);
    else if (++polls % 32 == 0) sched_yield();
}

static void over_tell(uint64_t value, double more) {
    rwapi_small_t small;
    memcpy(small.bytes, &value, 8);
    memcpy(small.bytes + 8, &more, 8);
    while (rwapi_send(other, small) < 0) {
        if (errno != EAGAIN) over_fail("rwapi_send");
        idle();
    }
}

static uint64_t over_hear(double *more) {
    int node, found;
    rwapi_small_t small;
    uint64_t value;
    while (!(found = rwapi_receive(&node, &small))) idle();
    if (found < 0) over_fail("a node is gone");
    memcpy(&value, small.bytes, 8);
    memcpy(more, small.bytes + 8, 8);
    return value;
}

static void over_place(void) {
    double ignored;
    source = rwapi_alloc(SLOTS * size_max, &source_net);
    target = rwapi_alloc(SLOTS * size_max, &target_net);
    if (!source || !target) over_fail("rwapi_alloc");
    if (me != 0 && me != nodes - 1) return;
    over_tell(target_net, 0);
    their_net = over_hear(&ignored);
}

static void over_meet(void) {
    if (rwapi_barrier() < 0) over_fail("rwapi_barrier");
}

static void over_prepare(size_t size, uint64_t messages) {
    (void)size;
    (void)messages;
}

static int over_windowed(size_t size) { return size > 16; }
static int over_has_bytes(size_t size) { return size > 16; }

/* Waits until the bytes in the slot of message `number` may change. */
static void over_free_slot(uint64_t number) {
    rwapi_sid_t *sid = &sids[number % SLOTS];
    for (int sent = 0; *sid && !sent;) {
        sent = rwapi_issent(*sid);
        if (sent < 0) over_fail("rwapi_issent");
        if (!sent) idle();
    }
    *sid = 0;
}

static void over_send(uint64_t number, size_t size) {
    if (size <= 16) {
        over_tell(number, 0);
        return;
    }
    size_t slot = number % SLOTS;
    rwapi_small_t small = {{0}};
    memcpy(small.bytes, &number, 8);
    while ((sids[slot] = rwapi_write_notify(other, source_net + slot * size, their_net + slot * size, size, small)) < 0) {
        if (errno != EAGAIN) over_fail("rwapi_write_notify");
        idle();
    }
}

static uint64_t over_receive(size_t size) {
    double ignored;
    (void)size;
    return over_hear(&ignored);
}

static void over_put(uint64_t number, size_t size) {
    size_t slot = number % SLOTS;
    rwapi_sid_t sid;
    while ((sid = rwapi_write(other, source_net + slot * size, their_net + slot * size, size)) < 0) {
        if (errno != EAGAIN) over_fail("rwapi_write");
        idle();
    }
    for (int sent; (sent = rwapi_issent(sid)) != 1; idle())
        if (sent < 0) over_fail("rwapi_issent");
}

/* Writes are visible once a later message was received. */
static void over_visible(void) {}

static int over_end(void) { return rwapi_finalize() < 0; }
