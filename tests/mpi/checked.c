/* checked: a random MPI program in which every byte, every length, every source and every tag is checked.
 *
 * All ranks draw the same plan from the seed, so each knows what it must send and what must arrive, and nothing deadlocks. A
 * failure prints the seed and the round; `checked --seed N --first ROUND` begins there.
 *
 * What it looks for, beside wrong bytes:
 *   - order: messages of one source match in the order they were sent, wildcards included;
 *   - a send buffer that is needed after its completion: it is overwritten the moment MPI says it is free;
 *   - a receive buffer that is written after its completion: it is filled with a canary and looked at again later;
 *   - bytes written beside the buffer, or into the holes of a strided one.
 *
 * Rounds run in turn on GROUP communicators, with a barrier after GROUP rounds: a wildcard receive can therefore never match a
 * message of a later round, though ranks run ahead of each other.
 */
#include "common.h"

#include <malloc.h>
#include <signal.h>

#define GROUP 8
#define MESSAGES_MAX 48
#define ROUND_BYTES_MAX (40u << 20) /* to one rank in one round: bounds the memory of the program */
#define GUARD 64
#define GUARD_BYTE 0xA5
#define CANARY_BYTE 0x5C
#define SCRIBBLE_BYTE 0xDB
#define TAG_UNMATCHED 4097

static const char usage[] =
    "usage: checked [options]\n"
    "  --seconds T    run for about T seconds (default 10)\n"
    "  --rounds N     or for N rounds\n"
    "  --seed N       the plan to run (default 1)\n"
    "  --first N      begin at round N (to come back to a failure)\n"
    "  --max BYTES    largest message (default 16MiB)\n"
    "  --watchdog T   give up, and say where, when a group of rounds takes longer than T seconds (default: never)\n";

struct options {
    double seconds;
    uint64_t rounds;
    uint64_t seed;
    uint64_t first;
    size_t max;
    unsigned watchdog;
};

static struct options opt = {.seconds = 10, .seed = 1, .max = 16u << 20};
static int rank, ranks;
static uint64_t round_now;
static const char *volatile doing = "starting";
static MPI_Comm comms[GROUP], idle_comm;
static uint64_t messages_checked, bytes_checked, cancels;

/* ---- the plan ---- */

struct random {
    uint64_t state;
};

static uint64_t draw(struct random *r) {
    r->state += 0x9E3779B97F4A7C15ull;
    return mix64(r->state);
}

static uint64_t draw_below(struct random *r, uint64_t bound) { return bound ? draw(r) % bound : 0; }

/* Log-uniform: as many messages between 1 and 2 KiB as between 1 and 2 MiB; and now and then exactly a power of two or one
 * beside it, where the limits of protocols lie. */
static size_t draw_size(struct random *r, size_t max) {
    if (draw_below(r, 16) == 0) return 0;
    unsigned bits = 0;
    while (bits < 40 && ((size_t)1 << bits) <= max) bits++;
    unsigned magnitude = (unsigned)draw_below(r, bits);
    size_t size = (size_t)1 << magnitude;
    switch (draw_below(r, 4)) {
    case 0: break;
    case 1: size += draw_below(r, 3) - 1; break;
    default: size += draw_below(r, size);
    }
    return size < max ? size : max;
}

struct message {
    int from, to, tag;
    size_t bytes;
    int synchronous;
    size_t send_block, receive_block; /* 0: contiguous, otherwise the block length of an MPI_Type_vector */
    uint64_t key;
};

/* How the receives of one rank in one round are written. */
enum style { EXACT, ANY_SOURCE, ANY_TAG, ANY_BOTH, STYLES };

static size_t draw_block(struct random *r, size_t bytes) {
    static const size_t blocks[] = {1, 8, 24, 100, 1000, 4096, 65536};
    if (draw_below(r, 4)) return 0;
    size_t block = blocks[draw_below(r, sizeof blocks / sizeof *blocks)];
    /* At most 64 Ki blocks: a vector of single bytes in 16 MiB tests the MPI library's loop and nothing of ours. */
    if (bytes == 0 || bytes % block || bytes / block > 65536) return 0;
    return block;
}

/* ---- buffers with guards, contiguous or strided ---- */

struct buffer {
    unsigned char *memory, *data;
    size_t bytes, block, extent;
    MPI_Datatype type;
    int count;
};

static size_t stride_of(size_t block) { return block + 8 + block / 2; }

static struct buffer make_buffer(size_t bytes, size_t block) {
    struct buffer b = {.bytes = bytes, .block = block, .extent = bytes, .type = MPI_BYTE, .count = (int)bytes};
    if (block) {
        size_t blocks = bytes / block;
        b.extent = (blocks - 1) * stride_of(block) + block;
        MPI_Type_vector((int)blocks, (int)block, (int)stride_of(block), MPI_BYTE, &b.type);
        MPI_Type_commit(&b.type);
        b.count = 1;
    }
    b.memory = malloc(b.extent + 2 * GUARD);
    if (!b.memory) fail(1, "out of memory");
    b.data = b.memory + GUARD;
    memset(b.memory, GUARD_BYTE, b.extent + 2 * GUARD);
    return b;
}

static void free_buffer(struct buffer *b) {
    if (b->block) MPI_Type_free(&b->type);
    free(b->memory);
    b->memory = NULL;
}

static unsigned char *scratch(size_t bytes) {
    static unsigned char *memory;
    static size_t have;
    if (bytes > have) {
        free(memory);
        have = bytes;
        memory = allocate(have);
    }
    return memory;
}

static void fill_buffer(struct buffer *b, uint64_t key) {
    if (!b->block) {
        pattern_fill(b->data, b->bytes, key);
        return;
    }
    unsigned char *packed = scratch(b->bytes);
    pattern_fill(packed, b->bytes, key);
    for (size_t i = 0; i < b->bytes / b->block; i++) memcpy(b->data + i * stride_of(b->block), packed + i * b->block, b->block);
}

static int all_bytes_are(const unsigned char *at, size_t bytes, unsigned char value) {
    if (bytes == 0) return 1;
    return at[0] == value && memcmp(at, at + 1, bytes - 1) == 0;
}

/* Checks the first `got` bytes of the contents, and that nothing else was touched. */
static void check_buffer(const struct buffer *b, size_t got, uint64_t key, const char *what, int from) {
    const unsigned char *packed = b->data;
    if (b->block) {
        unsigned char *copy = scratch(b->bytes);
        for (size_t i = 0; i < b->bytes / b->block; i++) memcpy(copy + i * b->block, b->data + i * stride_of(b->block), b->block);
        packed = copy;
        size_t hole = stride_of(b->block) - b->block;
        for (size_t i = 0; i + 1 < b->bytes / b->block; i++)
            if (!all_bytes_are(b->data + i * stride_of(b->block) + b->block, hole, GUARD_BYTE))
                fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu, %s from %d: the hole after block %zu of %zu bytes was written",
                     rank, (unsigned long long)round_now, what, from, i, b->block);
    }
    int64_t wrong = pattern_check(packed, got, key);
    if (wrong >= 0)
        fail(EXIT_WRONG_DATA,
             "checked: rank %d, round %llu, %s from %d: wrong byte at offset %lld of %zu: %#04x instead of %#04x (seed %llu)", rank,
             (unsigned long long)round_now, what, from, (long long)wrong, got, packed[wrong], pattern_byte(key, (uint64_t)wrong),
             (unsigned long long)opt.seed);
    if (!b->block && !all_bytes_are(b->data + got, b->bytes - got + GUARD, GUARD_BYTE))
        fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu, %s from %d: bytes written behind the %zu of the message", rank,
             (unsigned long long)round_now, what, from, got);
    if (!all_bytes_are(b->memory, GUARD, GUARD_BYTE) || !all_bytes_are(b->data + b->extent, GUARD, GUARD_BYTE))
        fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu, %s from %d: bytes written beside the buffer", rank,
             (unsigned long long)round_now, what, from);
    messages_checked++;
    bytes_checked += got;
}

static void check_status(const MPI_Status *status, const struct message *m) {
    int bytes;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    if (status->MPI_SOURCE != m->from || status->MPI_TAG != m->tag || (size_t)bytes != m->bytes)
        fail(EXIT_WRONG_DATA,
             "checked: rank %d, round %llu: got %d bytes with tag %d from %d where %zu bytes with tag %d from %d were next (seed %llu)",
             rank, (unsigned long long)round_now, bytes, status->MPI_TAG, status->MPI_SOURCE, m->bytes, m->tag, m->from,
             (unsigned long long)opt.seed);
}

/* Some ranks are late, so that messages arrive before their receives are posted. */
static void dawdle(struct random *own) {
    if (draw_below(own, 4)) return;
    uint64_t end = monotonic_ns() + draw_below(own, 3000000);
    while (monotonic_ns() < end) {
    }
}

/* ---- windows of point-to-point messages ---- */

static int draw_messages(struct random *r, struct message *list, enum style *styles, size_t max) {
    int count = 1 + (int)draw_below(r, MESSAGES_MAX);
    size_t *to_rank = calloc((size_t)ranks, sizeof(size_t));
    if (!to_rank) fail(1, "out of memory");
    for (int i = 0; i < ranks; i++) styles[i] = (enum style)draw_below(r, STYLES);
    for (int i = 0; i < count; i++) {
        struct message *m = &list[i];
        m->from = (int)draw_below(r, (uint64_t)ranks);
        m->to = (int)draw_below(r, (uint64_t)ranks);
        /* A wildcard receive needs room for the largest message that may come, so those are bounded more tightly. */
        size_t wildcard_max = count > 16 ? 1u << 20 : 4u << 20;
        m->bytes = draw_size(r, styles[m->to] == EXACT || max < wildcard_max ? max : wildcard_max);
        if (to_rank[m->to] + m->bytes > ROUND_BYTES_MAX) m->bytes &= 0xFFF;
        to_rank[m->to] += m->bytes;
        /* Few tags, so that several messages share one and their order is seen; one tag where only the source is wild. */
        m->tag = styles[m->to] == ANY_SOURCE ? 5 : (int)draw_below(r, 4);
        m->synchronous = draw_below(r, 5) == 0;
        m->send_block = draw_block(r, m->bytes);
        m->receive_block = draw_block(r, m->bytes);
        m->key = draw(r);
    }
    free(to_rank);
    return count;
}

struct posted {
    struct buffer buffer;
    const struct message *message; /* NULL: a wildcard receive, not yet matched */
    MPI_Status status;
    int is_send;
};

static int take_next(const struct message *list, int count, char *taken, int from, int to) {
    for (int i = 0; i < count; i++)
        if (!taken[i] && list[i].from == from && list[i].to == to) {
            taken[i] = 1;
            return i;
        }
    return -1;
}

static void window_round(struct random *r, struct random *own, MPI_Comm comm) {
    static struct message list[MESSAGES_MAX];
    static struct posted posted[2 * MESSAGES_MAX];
    static MPI_Request requests[2 * MESSAGES_MAX];
    enum style *styles = malloc(sizeof(enum style) * (size_t)ranks);
    if (!styles) fail(1, "out of memory");
    int count = draw_messages(r, list, styles, opt.max);
    int reverse_tags = (int)draw_below(r, 2);
    int sends_first = (int)draw_below(own, 2);
    enum style style = styles[rank];
    free(styles);
    int n = 0, receives = 0;
    dawdle(own);

    MPI_Request unmatched = MPI_REQUEST_NULL;
    unsigned char nothing[32];
    if (draw_below(own, 3) == 0)
        MPI_Irecv(nothing, sizeof nothing, MPI_BYTE, MPI_ANY_SOURCE, TAG_UNMATCHED, idle_comm, &unmatched);

    for (int pass = 0; pass < 2; pass++) {
        if (pass == sends_first) {
            /* Exact receives: in the order of the list or by falling tag, which leaves the order within (source, tag) alone. */
            doing = "posting receives";
            for (int tag_pass = 0; tag_pass < (style == EXACT && reverse_tags ? 4 : 1); tag_pass++) {
                for (int i = 0; i < count; i++) {
                    const struct message *m = &list[i];
                    if (m->to != rank) continue;
                    if (style == EXACT && reverse_tags && m->tag != 3 - tag_pass) continue;
                    struct posted *p = &posted[n];
                    int source = style == ANY_SOURCE || style == ANY_BOTH ? MPI_ANY_SOURCE : m->from;
                    int tag = style == ANY_TAG || style == ANY_BOTH ? MPI_ANY_TAG : m->tag;
                    size_t room = m->bytes;
                    /* Any of the messages may come to a wildcard: room for the largest. */
                    for (int j = 0; style != EXACT && j < count; j++)
                        if (list[j].to == rank && list[j].bytes > room) room = list[j].bytes;
                    *p = (struct posted){.buffer = make_buffer(room, style == EXACT ? m->receive_block : 0),
                                         .message = style == EXACT ? m : NULL};
                    MPI_Irecv(p->buffer.data, p->buffer.count, p->buffer.type, source, tag, comm, &requests[n]);
                    n++;
                    receives++;
                }
            }
        } else {
            doing = "posting sends";
            for (int i = 0; i < count; i++) {
                const struct message *m = &list[i];
                if (m->from != rank) continue;
                struct posted *p = &posted[n];
                *p = (struct posted){.buffer = make_buffer(m->bytes, m->send_block), .message = m, .is_send = 1};
                fill_buffer(&p->buffer, m->key);
                if (m->synchronous)
                    MPI_Issend(p->buffer.data, p->buffer.count, p->buffer.type, m->to, m->tag, comm, &requests[n]);
                else MPI_Isend(p->buffer.data, p->buffer.count, p->buffer.type, m->to, m->tag, comm, &requests[n]);
                n++;
            }
        }
    }

    doing = "waiting for a window of messages";
    int left = n;
    int *done = malloc(sizeof(int) * (size_t)(n + 1));
    MPI_Status *statuses = malloc(sizeof(MPI_Status) * (size_t)(n + 1));
    if (!done || !statuses) fail(1, "out of memory");
    while (left > 0) {
        int finished;
        MPI_Waitsome(n, requests, &finished, done, statuses);
        for (int i = 0; i < finished; i++) {
            struct posted *p = &posted[done[i]];
            p->status = statuses[i];
            /* Free to use again, says MPI: then a retransmission from this memory would carry this. */
            if (p->is_send) memset(p->buffer.data, SCRIBBLE_BYTE, p->buffer.extent);
        }
        left -= finished;
    }
    free(done);
    free(statuses);

    /* Posting order: the k-th wildcard receive that took a message of source s has the k-th message that s sent here. */
    char taken[MESSAGES_MAX] = {0};
    for (int i = 0; i < n; i++) {
        struct posted *p = &posted[i];
        if (p->is_send) continue;
        const struct message *m = p->message;
        if (!m) {
            int next = take_next(list, count, taken, p->status.MPI_SOURCE, rank);
            if (next < 0)
                fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu: a message too many from rank %d (seed %llu)", rank,
                     (unsigned long long)round_now, p->status.MPI_SOURCE, (unsigned long long)opt.seed);
            m = &list[next];
        }
        check_status(&p->status, m);
        check_buffer(&p->buffer, m->bytes, m->key, "message", m->from);
        memset(p->buffer.data, CANARY_BYTE, p->buffer.extent);
    }

    if (unmatched != MPI_REQUEST_NULL) {
        doing = "cancelling a receive";
        MPI_Status status;
        int cancelled = 0;
        MPI_Cancel(&unmatched);
        MPI_Wait(&unmatched, &status);
        MPI_Test_cancelled(&status, &cancelled);
        if (!cancelled) fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu: a receive that nothing matches was not cancelled", rank, (unsigned long long)round_now);
        cancels++;
    }
    for (int i = 0; i < n; i++) {
        if (!posted[i].is_send && !all_bytes_are(posted[i].buffer.data, posted[i].buffer.extent, CANARY_BYTE))
            fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu: a receive buffer was written after its completion (seed %llu)", rank,
                 (unsigned long long)round_now, (unsigned long long)opt.seed);
        free_buffer(&posted[i].buffer);
    }
}

/* ---- receives by probe ---- */

static void probe_round(struct random *r, struct random *own, MPI_Comm comm) {
    static struct message list[MESSAGES_MAX];
    static struct buffer out[MESSAGES_MAX];
    static MPI_Request requests[MESSAGES_MAX];
    enum style *styles = malloc(sizeof(enum style) * (size_t)ranks);
    if (!styles) fail(1, "out of memory");
    int count = draw_messages(r, list, styles, opt.max);
    free(styles);
    int sends = 0, expected = 0;
    for (int i = 0; i < count; i++) {
        struct message *m = &list[i];
        if (m->from == rank) {
            out[sends] = make_buffer(m->bytes, m->send_block);
            fill_buffer(&out[sends], m->key);
            MPI_Isend(out[sends].data, out[sends].count, out[sends].type, m->to, m->tag, comm, &requests[sends]);
            sends++;
        }
        if (m->to == rank) expected++;
    }
    dawdle(own);
    char taken[MESSAGES_MAX] = {0};
    for (int got = 0; got < expected; got++) {
        doing = "probing";
        MPI_Status status;
        MPI_Message handle = MPI_MESSAGE_NULL;
        int found = 0, way = (int)draw_below(own, 4), bytes;
        switch (way) {
        case 0:
            while (!found) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &status);
            break;
        case 1: MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status); break;
        case 2:
            while (!found) MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &handle, &status);
            break;
        default: MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &handle, &status);
        }
        int next = take_next(list, count, taken, status.MPI_SOURCE, rank);
        if (next < 0) fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu: a probe found a message too many", rank, (unsigned long long)round_now);
        const struct message *m = &list[next];
        check_status(&status, m);
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        struct buffer in = make_buffer((size_t)bytes, 0);
        doing = "receiving what was probed";
        if (way < 2) MPI_Recv(in.data, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, comm, &status);
        else MPI_Mrecv(in.data, bytes, MPI_BYTE, &handle, &status);
        check_status(&status, m);
        check_buffer(&in, m->bytes, m->key, "probed message", m->from);
        free_buffer(&in);
    }
    doing = "waiting for sends";
    MPI_Waitall(sends, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < sends; i++) free_buffer(&out[i]);
}

/* ---- blocking calls ---- */

static void sendrecv_round(struct random *r, struct random *own, MPI_Comm comm) {
    doing = "MPI_Sendrecv";
    int shift = (int)draw_below(r, (uint64_t)ranks);
    size_t bytes = draw_size(r, opt.max);
    uint64_t key = draw(r);
    int to = (rank + shift) % ranks, from = (rank - shift + ranks) % ranks;
    dawdle(own);
    struct buffer out = make_buffer(bytes, draw_block(r, bytes)), in = make_buffer(bytes, 0);
    fill_buffer(&out, pattern_key(key, (uint64_t)rank, 0));
    MPI_Status status;
    MPI_Sendrecv(out.data, out.count, out.type, to, 9, in.data, in.count, in.type, from, 9, comm, &status);
    check_status(&status, &(struct message){.from = from, .tag = 9, .bytes = bytes});
    check_buffer(&in, bytes, pattern_key(key, (uint64_t)from, 0), "MPI_Sendrecv", from);
    free_buffer(&out);
    free_buffer(&in);
}

/* Ranks in pairs, the lower sends first, in a blocking mode each. */
static void blocking_round(struct random *r, struct random *own, MPI_Comm comm) {
    doing = "blocking sends in pairs";
    size_t bytes = draw_size(r, opt.max);
    int synchronous = (int)draw_below(r, 2), distance = 1 << draw_below(r, 3);
    uint64_t key = draw(r);
    int peer = rank ^ distance;
    if (peer >= ranks) return;
    dawdle(own);
    struct buffer out = make_buffer(bytes, 0), in = make_buffer(bytes, 0);
    fill_buffer(&out, pattern_key(key, (uint64_t)rank, 0));
    for (int turn = 0; turn < 2; turn++) {
        if ((rank < peer) == (turn == 0)) {
            if (synchronous) MPI_Ssend(out.data, out.count, out.type, peer, 10, comm);
            else MPI_Send(out.data, out.count, out.type, peer, 10, comm);
            memset(out.data, SCRIBBLE_BYTE, out.extent);
        } else {
            MPI_Status status;
            MPI_Recv(in.data, in.count, in.type, peer, 10, comm, &status);
            check_status(&status, &(struct message){.from = peer, .tag = 10, .bytes = bytes});
            check_buffer(&in, bytes, pattern_key(key, (uint64_t)peer, 0), "blocking message", peer);
        }
    }
    free_buffer(&out);
    free_buffer(&in);
}

static void persistent_round(struct random *r, struct random *own, MPI_Comm comm) {
    doing = "persistent requests";
    size_t bytes = draw_size(r, opt.max < (1u << 20) ? opt.max : (1u << 20));
    int times = 1 + (int)draw_below(r, 6);
    uint64_t key = draw(r);
    int to = (rank + 1) % ranks, from = (rank - 1 + ranks) % ranks;
    struct buffer out = make_buffer(bytes, 0), in = make_buffer(bytes, 0);
    MPI_Request requests[2];
    MPI_Recv_init(in.data, in.count, in.type, from, 11, comm, &requests[0]);
    MPI_Send_init(out.data, out.count, out.type, to, 11, comm, &requests[1]);
    for (int i = 0; i < times; i++) {
        dawdle(own);
        fill_buffer(&out, pattern_key(key, (uint64_t)rank, (uint64_t)i));
        memset(in.data, 0, bytes);
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        check_buffer(&in, bytes, pattern_key(key, (uint64_t)from, (uint64_t)i), "persistent message", from);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    free_buffer(&out);
    free_buffer(&in);
}

/* ---- collectives ---- */

static void collective_round(struct random *r, struct random *own, MPI_Comm comm) {
    uint64_t key = draw(r);
    size_t max = opt.max < (4u << 20) ? opt.max : (4u << 20);
    uint64_t which = draw_below(r, 4);
    dawdle(own);
    if (which == 0) {
        doing = "MPI_Allreduce";
        size_t words = 1 + draw_size(r, max / 8 ? max / 8 : 1);
        uint64_t *out = malloc(8 * words), *in = malloc(8 * words);
        if (!out || !in) fail(1, "out of memory");
        for (size_t i = 0; i < words; i++) out[i] = pattern_word(pattern_key(key, (uint64_t)rank, 0), i);
        MPI_Allreduce(out, in, (int)words, MPI_UINT64_T, MPI_SUM, comm);
        for (size_t i = 0; i < words; i++) {
            uint64_t sum = 0;
            for (int k = 0; k < ranks; k++) sum += pattern_word(pattern_key(key, (uint64_t)k, 0), i);
            if (in[i] != sum)
                fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu: MPI_Allreduce: wrong sum in word %zu of %zu (seed %llu)", rank,
                     (unsigned long long)round_now, i, words, (unsigned long long)opt.seed);
        }
        messages_checked++;
        bytes_checked += 8 * words;
        free(out);
        free(in);
    } else if (which == 1) {
        doing = "MPI_Bcast";
        size_t bytes = draw_size(r, max);
        int root = (int)draw_below(r, (uint64_t)ranks);
        struct buffer b = make_buffer(bytes, 0);
        if (rank == root) fill_buffer(&b, key);
        MPI_Bcast(b.data, b.count, b.type, root, comm);
        check_buffer(&b, bytes, key, "MPI_Bcast", root);
        free_buffer(&b);
    } else if (which == 2) {
        doing = "MPI_Alltoall";
        size_t bytes = draw_size(r, max / (size_t)ranks + 1);
        unsigned char *out = allocate(bytes * (size_t)ranks), *in = allocate(bytes * (size_t)ranks);
        for (int k = 0; k < ranks; k++)
            pattern_fill(out + bytes * (size_t)k, bytes, pattern_key(key, (uint64_t)rank, (uint64_t)k));
        MPI_Alltoall(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, comm);
        for (int k = 0; k < ranks; k++) {
            int64_t wrong = pattern_check(in + bytes * (size_t)k, bytes, pattern_key(key, (uint64_t)k, (uint64_t)rank));
            if (wrong >= 0)
                fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu: MPI_Alltoall: wrong byte from %d at offset %lld (seed %llu)",
                     rank, (unsigned long long)round_now, k, (long long)wrong, (unsigned long long)opt.seed);
        }
        messages_checked += (uint64_t)ranks;
        bytes_checked += bytes * (size_t)ranks;
        free(out);
        free(in);
    } else {
        doing = "MPI_Gather";
        size_t bytes = draw_size(r, max / (size_t)ranks + 1);
        int root = (int)draw_below(r, (uint64_t)ranks);
        unsigned char *out = allocate(bytes), *in = rank == root ? allocate(bytes * (size_t)ranks) : NULL;
        pattern_fill(out, bytes, pattern_key(key, (uint64_t)rank, 0));
        MPI_Gather(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, root, comm);
        for (int k = 0; rank == root && k < ranks; k++)
            if (pattern_check(in + bytes * (size_t)k, bytes, pattern_key(key, (uint64_t)k, 0)) >= 0)
                fail(EXIT_WRONG_DATA, "checked: rank %d, round %llu: MPI_Gather: wrong data of %d (seed %llu)", rank,
                     (unsigned long long)round_now, k, (unsigned long long)opt.seed);
        if (rank == root) bytes_checked += bytes * (size_t)ranks;
        messages_checked++;
        free(out);
        free(in);
    }
}

/* ---- the program ---- */

static void on_alarm(int signal_number) {
    (void)signal_number;
    char text[256];
    int length = snprintf(text, sizeof text, "checked: rank %d has hung in round %llu, %s (seed %llu)\n", rank,
                          (unsigned long long)round_now, doing, (unsigned long long)opt.seed);
    if (length > 0 && write(2, text, (size_t)length) < 0) _exit(4);
    _exit(4);
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--seconds")) opt.seconds = parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--rounds")) opt.rounds = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--seed")) opt.seed = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--first")) opt.first = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--max")) opt.max = parse_bytes(option_value(argc, argv, &i));
        else if (!strcmp(name, "--watchdog")) opt.watchdog = (unsigned)parse_number(name, option_value(argc, argv, &i));
        else {
            if (strcmp(name, "--help")) fprintf(stderr, "checked: unknown option '%s'\n", name);
            fputs(usage, stderr);
            _exit(strcmp(name, "--help") ? EXIT_USAGE : 0);
        }
    }
}

int main(int argc, char **argv) {
    parse(argc, argv);
    /* Keep freed memory: otherwise most of the time goes into page faults. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (opt.watchdog) signal(SIGALRM, on_alarm);
    if (opt.watchdog) alarm(opt.watchdog);
    for (int i = 0; i < GROUP; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    MPI_Comm_dup(MPI_COMM_WORLD, &idle_comm);

    uint64_t begin = monotonic_ns(), round = opt.first;
    if (rank == 0) announce_start();
    for (int more = 1; more;) {
        for (int i = 0; i < GROUP && (!opt.rounds || round < opt.first + opt.rounds); i++, round++) {
            round_now = round;
            struct random plan = {pattern_key(opt.seed, round, 0)};
            /* What one rank does by itself (being late, the way to probe) need not be known to the others. */
            struct random own = {pattern_key(opt.seed, round, (uint64_t)rank + 1)};
            uint64_t kind = draw_below(&plan, 16);
            MPI_Comm comm = comms[round % GROUP];
            if (kind < 8) window_round(&plan, &own, comm);
            else if (kind < 10) probe_round(&plan, &own, comm);
            else if (kind < 11) sendrecv_round(&plan, &own, comm);
            else if (kind < 12) blocking_round(&plan, &own, comm);
            else if (kind < 13) persistent_round(&plan, &own, comm);
            else collective_round(&plan, &own, comm);
        }
        doing = "the barrier after a group of rounds";
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            more = opt.rounds ? round < opt.first + opt.rounds : (double)(monotonic_ns() - begin) < opt.seconds * 1e9;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (opt.watchdog) alarm(opt.watchdog);
    }
    doing = "finishing";
    double seconds = (double)(monotonic_ns() - begin) / 1e9;
    uint64_t mine[3] = {messages_checked, bytes_checked, cancels}, all[3];
    MPI_Reduce(mine, all, 3, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("checked: %d ranks, %llu rounds, %llu messages, %.1f MB, %llu cancelled receives, every byte right (seed %llu, %.1f s) [%s]\n",
               ranks, (unsigned long long)(round - opt.first), (unsigned long long)all[0], (double)all[1] / 1e6,
               (unsigned long long)all[2], (unsigned long long)opt.seed, seconds, mpi_library());
        fflush(stdout);
    }
    for (int i = 0; i < GROUP; i++) MPI_Comm_free(&comms[i]);
    MPI_Comm_free(&idle_comm);
    MPI_Finalize();
    return 0;
}
