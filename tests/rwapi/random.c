/* random: each node runs a random program of RWAPI calls, drawn from a seed, and checks what arrives against a reference.
 *
 *     random [--first SEED] [--seeds COUNT] [--ms TIME]
 *
 * Runs COUNT seeds, and more until TIME is over. Every node can draw the program of every other node. So a receiver knows
 * which messages must come from a node, in which order, which writes must be in place before each, and what its blocks must
 * contain after a barrier and at the end. Each writer owns a part of each block. A writer waits for rwapi_issent before it
 * writes a range again, and overwrites the source as soon as it may.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rwapi_ext.h>

enum {
    NODES = 16,           /* most nodes of a job */
    BLOCKS = 4,           /* most blocks of a node; the one behind them is freed while others write it */
    FLIGHTS = 32,         /* most writes of a node that are under way */
    SLOT = 1 << 18,       /* source memory of each of them, and the largest write */
    COPIED = 8192,        /* the source of smaller writes may change at once */
    OLD = 256,            /* writes that are over and are looked at again */
    SCRIBBLE = 0x5a,
    CANARY = 0xc3,
};

/* ---- what a seed means ---- */

enum kind { WRITE, NOTIFY, SEND, FLOOD, DOOMED, BEYOND, DEAD, WRONG, FREE_DOOMED, SWAP_SOURCE, POLL, THINK, KINDS, BARRIER, END };

struct op {
    enum kind kind;
    int target, block, count;
    size_t offset, bytes;
    uint64_t key;
};

static struct {
    uint64_t seed;
    int blocks[NODES], barriers, ops_max;
    bool bulk; /* large writes as often as small ones, by bytes */
    size_t size[NODES][BLOCKS + 1], bytes_max;
    uint32_t weights[KINDS];
} shape;

/* The program of a node, as far as it was read. */
struct plan {
    uint64_t state;
    int from, segment, left;
};

static int me, nodes;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t draw(uint64_t *state) {
    return mix(*state += 0x9e3779b97f4a7c15u);
}

static size_t below(uint64_t *state, size_t end) {
    return (size_t)(draw(state) % end);
}

/* Small numbers as often as large ones: 1 to most. */
static size_t any_size(uint64_t *state, size_t most) {
    size_t size = most >> below(state, 64u - (unsigned)__builtin_clzl(most));
    return size < 2 ? 1 : 1 + below(state, size);
}

static void draw_shape(uint64_t seed) {
    uint64_t state = mix(seed + 0x5eed);
    memset(&shape, 0, sizeof shape);
    shape.seed = seed;
    shape.barriers = (int)below(&state, 4);
    shape.ops_max = 4 + (int)(below(&state, 2) ? any_size : below)(&state, 300);
    shape.bytes_max = below(&state, 2) ? any_size(&state, SLOT) : SLOT;
    shape.bulk = below(&state, 3) == 0;
    for (int node = 0; node < nodes; node++) {
        shape.blocks[node] = 1 + (int)below(&state, BLOCKS);
        for (int block = 0; block <= BLOCKS; block++)
            shape.size[node][block] = (size_t)nodes * 64 + (below(&state, 2) ? any_size : below)(&state, (size_t)nodes << 18);
    }
    static const uint32_t most[KINDS] = {10, 10, 8, 1, 2, 1, 1, 1, 1, 1, 2, 2};
    for (int kind = 0; kind < KINDS; kind++) shape.weights[kind] = below(&state, 4) ? (uint32_t)below(&state, most[kind] + 1u) : 0;
    shape.weights[WRITE] += 2;
    shape.weights[SEND] += 1;
}

static struct plan plan_of(int from) {
    struct plan plan = {mix(shape.seed * NODES + (uint64_t)from), from, 0, 0};
    plan.left = (int)below(&plan.state, (size_t)shape.ops_max);
    return plan;
}

static size_t part(size_t size, int writer) {
    return size * (size_t)writer / (size_t)nodes;
}

static struct op next_op(struct plan *plan) {
    struct op op = {.kind = END};
    if (plan->left-- <= 0) {
        if (plan->segment == shape.barriers) return op;
        op.kind = BARRIER;
        plan->segment++;
        plan->left = (int)below(&plan->state, (size_t)shape.ops_max);
        return op;
    }
    uint32_t sum = 0;
    for (int kind = 0; kind < KINDS; kind++) sum += shape.weights[kind];
    size_t pick = below(&plan->state, sum);
    for (op.kind = 0; pick >= shape.weights[op.kind]; op.kind++) pick -= shape.weights[op.kind];
    op.target = (int)below(&plan->state, (size_t)nodes);
    op.block = op.kind == DOOMED ? BLOCKS : (int)below(&plan->state, (size_t)shape.blocks[op.target]);
    size_t size = shape.size[op.target][op.block], begin = part(size, plan->from), room = part(size, plan->from + 1) - begin;
    if (room > shape.bytes_max) room = shape.bytes_max;
    op.bytes = shape.bulk ? 1 + below(&plan->state, room) : any_size(&plan->state, room);
    room = part(size, plan->from + 1) - begin;
    op.offset = begin + below(&plan->state, room - op.bytes + 1);
    op.key = draw(&plan->state);
    op.count = op.kind == SEND || op.kind == NOTIFY ? 1 : 0;
    if (op.kind == FLOOD) {
        op.count = 300 + (int)below(&plan->state, 500);
        /* more than a window only where no node stops to receive: behind the last barrier */
        if (plan->segment < shape.barriers) op.count = 1;
    }
    return op;
}

static bool writes_to_me(const struct op *op) {
    return (op->kind == WRITE || op->kind == NOTIFY) && op->target == me;
}

static uint8_t byte_of(uint64_t key, size_t at) {
    return (uint8_t)(mix(key ^ at >> 3) >> 8 * (at & 7));
}

static void fill(uint8_t *to, uint64_t key, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mix(key ^ at >> 3);
        for (size_t i = 0; i < 8 && at + i < bytes; i++) to[at + i] = (uint8_t)(word >> 8 * i);
    }
}

/* ---- what went wrong ---- */

static struct { uint64_t messages, writes, large, refused, proven, early, again, barriers, busy_frees, doomed; } tally;

#define FAIL(...)                                                                                     \
    do {                                                                                              \
        fprintf(stderr, "random: node %d of %d: seed %llu: ", me, nodes, (unsigned long long)shape.seed); \
        fprintf(stderr, __VA_ARGS__);                                                                 \
        fprintf(stderr, "\n");                                                                        \
        exit(3);                                                                                      \
    } while (0)
#define CHECK(holds, ...) do { if (!(holds)) FAIL(__VA_ARGS__); } while (0)

/* ---- own memory and what must be in it ---- */

static struct {
    uint8_t *memory, *reference;
    rwapi_net_t net;
    size_t size;
} block[BLOCKS + 1];
static uint8_t *fresh; /* stands where the block stood that was freed; no node has its address */
static rwapi_net_t there[NODES][BLOCKS + 1], dead[NODES];

/* What is known of a sender: its program up to the last message received, and the writes that this message brought. */
static struct sender {
    struct plan plan;
    uint64_t received;
    int published, flood;
    struct op *before;
    size_t writes, room;
} senders[NODES];
static uint64_t sent[NODES];

/* A later write of the sender that may have put this byte here. */
static bool explained_by(const struct sender *sender, int number, size_t at, uint8_t value, struct op *by) {
    struct plan plan = sender->plan;
    do {
        *by = next_op(&plan);
        if (writes_to_me(by) && by->block == number && at - by->offset < by->bytes && byte_of(by->key, at - by->offset) == value)
            return true;
    } while (by->kind != END);
    return false;
}

/* Compares a range with the reference; a byte may belong to a later write of its writer. `exact`: there is no later one. */
static void compare(int number, const uint8_t *reference, size_t from, size_t bytes, int writer, bool exact, const char *when) {
    const volatile uint8_t *memory = block[number].memory;
    if (memcmp(block[number].memory + from, reference + from, bytes) == 0) return;
    struct op by = {.bytes = 0};
    for (size_t at = from; at < from + bytes; at++) {
        uint8_t value = memory[at];
        if (value == reference[at]) continue;
        if (at - by.offset < by.bytes && byte_of(by.key, at - by.offset) == value) continue;
        CHECK(!exact && explained_by(&senders[writer], number, at, value, &by),
              "%s: byte %zu of block %d, of %zu bytes, which node %d writes, is %#x and not %#x", when, at, number,
              block[number].size, writer, value, reference[at]);
        tally.early++;
    }
}

static void apply(const struct op *op, uint8_t *reference) {
    fill(reference + op->offset, op->key, op->bytes);
}

/* All blocks, after a barrier or at the end: the reference of each sender is read on to its place there. */
static void compare_all(int barrier, const char *when) {
    for (int number = 0; number < shape.blocks[me]; number++) {
        size_t size = block[number].size;
        uint8_t *expected = malloc(size);
        CHECK(expected, "no memory");
        memcpy(expected, block[number].reference, size);
        for (int node = 0; node < nodes; node++) {
            struct plan plan = senders[node].plan;
            while (plan.segment < barrier || barrier > shape.barriers) {
                struct op op = next_op(&plan);
                if (op.kind == END) break;
                if (writes_to_me(&op) && op.block == number) apply(&op, expected);
            }
            size_t begin = part(size, node);
            compare(number, expected, begin, part(size, node + 1) - begin, node, barrier > shape.barriers, when);
        }
        free(expected);
        size_t end = (size + 4095) & ~(size_t)4095;
        for (size_t at = size; at < end; at++) CHECK(!block[number].memory[at], "%s: byte %zu behind block %d was written", when, at, number);
    }
}

/* ---- messages ---- */

enum { PUBLISH = 1, PLANNED = 2 };
static bool last_seed;

static rwapi_small_t message(uint64_t kind, uint64_t number, uint64_t value) {
    uint64_t words[2] = {kind << 48 | number, value};
    rwapi_small_t small;
    memcpy(&small, words, sizeof small);
    return small;
}

static uint64_t value_of(const struct op *op, int from, int left) {
    return mix(op->key + (uint64_t)(from * 4096 + left));
}

/* Reads the program of a sender on to its next message to this node. */
static uint64_t next_value(struct sender *sender, int from) {
    static struct op op[NODES];
    while (sender->flood == 0) {
        op[from] = next_op(&sender->plan);
        CHECK(op[from].kind != END, "node %d sends a message that is not in its program", from);
        if (writes_to_me(&op[from])) {
            apply(&op[from], block[op[from].block].reference);
            if (sender->writes == sender->room) {
                sender->room = sender->room ? 2 * sender->room : 64;
                sender->before = realloc(sender->before, sender->room * sizeof op[from]);
                CHECK(sender->before, "no memory");
            }
            sender->before[sender->writes++] = op[from];
        }
        if (op[from].target == me) sender->flood = op[from].count;
    }
    return value_of(&op[from], from, sender->flood--);
}

static void take(int from, const rwapi_small_t *small) {
    struct sender *sender = &senders[from];
    uint64_t words[2];
    memcpy(words, small, sizeof words);
    uint64_t number = words[0] & 0xffffffffffff, kind = words[0] >> 48 & 0xff;
    CHECK(number == ++sender->received, "message %llu of node %d comes where %llu is due", (unsigned long long)number, from,
          (unsigned long long)sender->received);
    tally.messages++;
    int expected = shape.blocks[from] + 2;
    CHECK((kind == PUBLISH) == (sender->published < expected), "message %llu of node %d is of kind %llu", (unsigned long long)number,
          from, (unsigned long long)kind);
    if (kind == PUBLISH) {
        int place = sender->published++;
        if (place == shape.blocks[from]) there[from][BLOCKS] = words[1];
        else if (place > shape.blocks[from]) dead[from] = words[1];
        else there[from][place] = words[1];
        if (from == 0) last_seed = words[0] >> 56;
        return;
    }
    CHECK(next_value(sender, from) == words[1], "message %llu of node %d has wrong bytes", (unsigned long long)number, from);
    for (size_t i = 0; i < sender->writes; i++) {
        const struct op *op = &sender->before[i];
        compare(op->block, block[op->block].reference, op->offset, op->bytes, from, false, "a message came before the write before it");
    }
    tally.proven += sender->writes;
    sender->writes = 0;
}

/* Takes all that has arrived. Whether there was something. */
static bool receive(void) {
    int from, found;
    rwapi_small_t small;
    bool any = false;
    while ((found = rwapi_receive(&from, &small)) == 1) {
        take(from, &small);
        any = true;
    }
    if (found < 0 && errno == EHOSTDOWN) FAIL("node %d is gone", from);
    CHECK(found == 0, "rwapi_receive: %s", strerror(errno));
    return any;
}

/* After EAGAIN, or while something is awaited. */
static void progress(void) {
    if (!receive()) CHECK(rwapi_wait(100) >= 0, "rwapi_wait: %s", strerror(errno));
}

static void send_to(int to, uint64_t kind, uint64_t value) {
    while (rwapi_send(to, message(kind, sent[to] + 1, value))) {
        CHECK(errno == EAGAIN, "rwapi_send to node %d: %s", to, strerror(errno));
        tally.again++;
        progress();
    }
    sent[to]++;
}

/* ---- writes ---- */

static uint8_t *source;
static rwapi_net_t source_net;
static unsigned generation;
static struct flight {
    rwapi_sid_t sid;
    struct op op;
    unsigned generation;
} flights[FLIGHTS];
static struct { rwapi_sid_t sid; bool refused; } old[OLD];
static uint64_t over;
static uint8_t *given; /* one bit for each identifier that was given */
static size_t given_bytes;

static void is_new(rwapi_sid_t sid) {
    CHECK(sid > 0, "identifier %lld", (long long)sid);
    size_t at = (size_t)sid / 8;
    CHECK(at < (size_t)1 << 28, "identifier %lld is too large for this program", (long long)sid);
    if (at >= given_bytes) {
        size_t bytes = 2 * at + 4096;
        given = realloc(given, bytes);
        CHECK(given, "no memory");
        memset(given + given_bytes, 0, bytes - given_bytes);
        given_bytes = bytes;
    }
    CHECK(!(given[at] >> sid % 8 & 1), "identifier %lld is given twice", (long long)sid);
    given[at] |= (uint8_t)(1 << sid % 8);
}

static uint8_t *slot(const struct flight *flight) {
    return source + (flight - flights) * SLOT;
}

/* Whether a write is over. Its source is overwritten then: a late repetition of the write would bring what it holds now. */
static bool is_over(struct flight *flight) {
    if (flight->sid == 0) return true;
    int done = rwapi_issent(flight->sid);
    if (done == 0) return false;
    enum kind kind = flight->op.kind;
    bool refused = done < 0 && errno == EFAULT, must = kind == BEYOND || kind == DEAD;
    CHECK(done == 1 || refused, "write %lld: %s", (long long)flight->sid, strerror(errno));
    CHECK(refused ? must || kind == DOOMED : !must, "write %lld, of kind %d, to node %d was %s", (long long)flight->sid, kind,
          flight->op.target, refused ? "refused" : "done");
    tally.refused += refused;
    if (flight->generation == generation) memset(slot(flight), SCRIBBLE, flight->op.bytes);
    old[over % OLD].sid = flight->sid;
    old[over++ % OLD].refused = refused;
    flight->sid = 0;
    return true;
}

static void await(struct flight *flight) {
    while (!is_over(flight)) progress();
}

static bool overlaps(const struct op *a, const struct op *b) {
    return a->target == b->target && a->block == b->block && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static void write_to(const struct op *op, rwapi_net_t remote) {
    struct flight *flight = NULL;
    for (int i = 0; i < FLIGHTS; i++)
        if (flights[i].sid && overlaps(&flights[i].op, op)) await(&flights[i]);
    while (!flight) {
        for (int i = 0; i < FLIGHTS && !flight; i++)
            if (is_over(&flights[i])) flight = &flights[i];
        if (!flight) progress();
    }
    uint8_t *from = slot(flight);
    fill(from, op->key, op->bytes);
    rwapi_net_t local = source_net + (rwapi_net_t)(from - source);
    rwapi_sid_t sid;
    for (;;) {
        sid = op->kind == NOTIFY ? rwapi_write_notify(op->target, local, remote, op->bytes,
                                                      message(PLANNED, sent[op->target] + 1, value_of(op, me, 1)))
                                 : rwapi_write(op->target, local, remote, op->bytes);
        if (sid != -1) break;
        CHECK(errno == EAGAIN, "a write to node %d: %s", op->target, strerror(errno));
        tally.again++;
        progress();
    }
    is_new(sid);
    sent[op->target] += op->kind == NOTIFY;
    *flight = (struct flight){sid, *op, generation};
    if (op->bytes <= COPIED) memset(from, SCRIBBLE, op->bytes);
    tally.writes++;
    tally.large += op->bytes > COPIED;
}

/* ---- other calls ---- */

static void *allocate(size_t size, rwapi_net_t *net) {
    void *memory = rwapi_alloc(size, net);
    CHECK(memory, "rwapi_alloc: %s", strerror(errno));
    return memory;
}

static void give_back(void *memory) {
    CHECK(!rwapi_free(memory), "rwapi_free: %s", strerror(errno));
}

static void swap_source(void) {
    uint8_t *before = source;
    source = allocate((size_t)SLOT * FLIGHTS, &source_net);
    if (!before) return;
    for (int i = 0; i < FLIGHTS; i++)
        if (!is_over(&flights[i]) && flights[i].generation == generation) {
            tally.busy_frees++;
            break;
        }
    generation++;
    give_back(before);
}

static void free_doomed(void) {
    if (fresh) return;
    rwapi_net_t net;
    give_back(block[BLOCKS].memory);
    fresh = allocate(block[BLOCKS].size, &net);
    memset(fresh, CANARY, block[BLOCKS].size);
    tally.doomed++;
}

static void must_fail(long long result, int error, const char *call) {
    CHECK(result == -1 && errno == error, "%s gives %lld, and errno is %s", call, result, strerror(errno));
}

static void wrong_call(const struct op *op) {
    rwapi_net_t remote = there[op->target][op->block];
    switch (op->key % 6) {
    case 0: must_fail(rwapi_send(nodes, message(PLANNED, 0, 0)), EINVAL, "a message to no node"); break;
    case 1: must_fail(rwapi_write(op->target, source_net + (rwapi_net_t)SLOT * FLIGHTS - 1, remote, 2), EFAULT, "a write from beyond a block"); break;
    case 2: must_fail(rwapi_write((op->target + 1) % (nodes + 1), source_net, remote, 1), (op->target + 1 == nodes) ? EINVAL : EFAULT, "a write to the address of another node"); break;
    case 3: must_fail(rwapi_write(op->target, source_net, remote, 0), EINVAL, "a write of no bytes"); break;
    case 4: must_fail(rwapi_free(block[0].memory + 1), EFAULT, "to free no block"); break;
    case 5: must_fail(rwapi_issent((rwapi_sid_t)1 << 60), EINVAL, "a question for no write"); break;
    }
}

static void look_again(const struct op *op) {
    uint64_t most = over < OLD ? over : OLD;
    if (most == 0) return;
    rwapi_sid_t sid = old[op->key % most].sid;
    bool refused = old[op->key % most].refused;
    int done = rwapi_issent(sid);
    /* of refused ones the library remembers 4096, which is more than this program keeps */
    CHECK(refused ? done == -1 && errno == EFAULT : done == 1, "write %lld was over, and is %d now", (long long)sid, done);
}

static void think(const struct op *op) {
    if (op->key % 4 == 0) usleep(op->key >> 8 & 1023);
    else if (op->key % 4 == 1) CHECK(rwapi_wait(1) >= 0, "rwapi_wait: %s", strerror(errno));
    else receive();
}

/* ---- a seed ---- */

static void run_op(const struct op *op, int barrier) {
    rwapi_net_t remote = there[op->target][op->block];
    struct op other = *op;
    switch (op->kind) {
    case WRITE: case NOTIFY: case DOOMED: write_to(op, remote + op->offset); break;
    case SEND: case FLOOD:
        for (int left = op->count; left; left--) send_to(op->target, PLANNED, value_of(op, me, left));
        break;
    case BEYOND:
        /* its last byte is behind the end */
        other.offset = shape.size[op->target][op->block] + 1 - op->bytes;
        other.block = BLOCKS + 1;
        write_to(&other, remote + other.offset);
        break;
    case DEAD:
        other.block = BLOCKS + 2;
        write_to(&other, dead[op->target] + op->offset % 4096);
        break;
    case WRONG: wrong_call(op); break;
    case FREE_DOOMED: free_doomed(); break;
    case SWAP_SOURCE: swap_source(); break;
    case POLL: look_again(op); break;
    case THINK: think(op); break;
    case BARRIER:
        CHECK(!rwapi_barrier(), "rwapi_barrier: %s", strerror(errno));
        tally.barriers++;
        compare_all(barrier, "after a barrier");
        break;
    default: FAIL("no such operation");
    }
}

static void begin_seed(uint64_t seed, bool last) {
    draw_shape(seed);
    rwapi_net_t gone;
    void *freed = allocate(4096 + SLOT, &gone);
    for (int number = 0; number <= BLOCKS; number++) {
        if (number < BLOCKS && number >= shape.blocks[me]) continue;
        block[number].size = shape.size[me][number];
        block[number].memory = allocate(block[number].size, &block[number].net);
        block[number].reference = calloc(1, block[number].size);
        CHECK(block[number].reference, "no memory");
    }
    give_back(freed);
    swap_source();
    for (int node = 0; node < nodes; node++) {
        senders[node].plan = plan_of(node);
        senders[node].published = senders[node].flood = 0;
        senders[node].writes = 0;
    }
    uint64_t kind = PUBLISH | (uint64_t)last << 8;
    for (int node = 0; node < nodes; node++) {
        for (int number = 0; number < shape.blocks[me]; number++) send_to(node, kind, block[number].net);
        send_to(node, kind, block[BLOCKS].net);
        send_to(node, kind, gone);
    }
    for (int node = 0; node < nodes; node++)
        while (senders[node].published < shape.blocks[node] + 2) progress();
}

/* Whether all messages of a node have come: nothing is left in its program that sends one. */
static bool all_received(const struct sender *sender) {
    if (sender->flood) return false;
    struct plan plan = sender->plan;
    for (;;) {
        struct op op = next_op(&plan);
        if (op.kind == END) return true;
        if (op.target == me && op.count) return false;
    }
}

static void end_seed(void) {
    for (int i = 0; i < FLIGHTS; i++) await(&flights[i]);
    for (int node = 0; node < nodes; node++)
        while (!all_received(&senders[node])) progress();
    CHECK(!rwapi_barrier(), "rwapi_barrier: %s", strerror(errno));
    compare_all(shape.barriers + 1, "at the end");
    for (size_t at = 0; fresh && at < block[BLOCKS].size; at++)
        CHECK(fresh[at] == CANARY, "byte %zu was written where a block was freed", at);
    for (int number = 0; number <= BLOCKS; number++) {
        if (number < BLOCKS && number >= shape.blocks[me]) continue;
        free(block[number].reference);
        give_back(number == BLOCKS && fresh ? fresh : block[number].memory);
    }
    fresh = NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    unsigned long long first = 0, count = 10, ms = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned long long value = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--first")) first = value;
        else if (!strcmp(argv[i], "--seeds")) count = value;
        else if (!strcmp(argv[i], "--ms")) ms = value;
        else return 2;
    }
    if (rwapi_init(argc, argv) < 0) return 1;
    me = rwapi_rank();
    nodes = rwapi_size();
    CHECK(nodes <= NODES, "at most %d nodes", NODES);
    const char *started = getenv("RERAIL_LAB_START"); /* the clock of a schedule starts when this file is there */
    if (me == 0 && started) {
        FILE *file = fopen(started, "w");
        CHECK(file, "%s cannot be made", started);
        fclose(file);
    }
    double begin = seconds();
    uint64_t seed = first;
    for (; !last_seed; seed++) {
        bool last = seed + 1 >= first + count && (seconds() - begin) * 1000 >= (double)ms;
        begin_seed(seed, last);
        struct plan plan = plan_of(me);
        for (;;) {
            struct op op = next_op(&plan);
            if (op.kind == END) break;
            run_op(&op, plan.segment);
        }
        end_seed();
    }
    if (rwapi_finalize() < 0) return 4;
    printf("random: node %d of %d: seeds %llu to %llu right: %llu writes (%llu large, %llu refused, %llu proven by messages), "
           "%llu messages, %llu barriers, %llu times no room, %llu blocks freed under writes, %llu sources freed under writes, "
           "%llu bytes early\n",
           me, nodes, first, (unsigned long long)seed - 1, (unsigned long long)tally.writes, (unsigned long long)tally.large,
           (unsigned long long)tally.refused, (unsigned long long)tally.proven, (unsigned long long)tally.messages,
           (unsigned long long)tally.barriers, (unsigned long long)tally.again, (unsigned long long)tally.doomed,
           (unsigned long long)tally.busy_frees, (unsigned long long)tally.early);
    return 0;
}
