/* stream: one direction, without pause, every byte checked.
 *
 * The ranks of the first half each send to one rank of the second half, through a window of non-blocking messages with
 * distinct buffers. The receiver checks each message against a pattern made from (seed, pair, message number) and notes
 * when it arrived; so the log shows the bandwidth in slices of 100 ms, and each time that nothing arrived.
 *
 * `rerail lab run ... -- stream --seconds 20` is the program of the demo and of the standstill measurements.
 *
 * The log has one JSON object in a line:
 *   {"kind":"start","t_unix_ns":...,"size":...,"window":...,"mpi":"MPICH 5.0.2"}
 *   {"kind":"slice","t_unix_ns":...,"bytes":...,"messages":...,"gap_us_max":...}   the 100 ms that begin at t_unix_ns
 *   {"kind":"gap","t_unix_ns":...,"us":...}       nothing arrived for `us` from t_unix_ns on (only above --gap-ms)
 *   {"kind":"end","t_unix_ns":...,"messages":...,"bytes":...,"seconds":...,"gap_us_p99":...,"gap_us_max":...}
 * gap_us_p99 is that of the first --baseline seconds, which a schedule of faults should leave alone.
 *
 * With --turns there is no window: messages go to and fro within each pair, or all ranks exchange with MPI_Alltoall, again and
 * again. The log is that of the first rank, and what arrives is a whole turn.
 */
#include "common.h"

#define SLICE_NS (NS_PER_S / 10)
#define WARM_UP_MESSAGES 64
#define BASELINE_GAPS_MAX (1 << 20)

static const char usage[] =
    "usage: stream [options]\n"
    "  --seconds T      stream for T seconds (default 10)\n"
    "  --size BYTES     size of a message, for instance 64KiB or 1MiB (default 64KiB)\n"
    "  --window N       messages in flight (default 16)\n"
    "  --verify on|off  check every byte at the receiver (default on)\n"
    "  --bw             windows of N messages and a 1-byte answer, as osu_bw does; nothing is checked\n"
    "  --turns KIND     pingpong or alltoall, in the place of the stream\n"
    "  --seed N         seed of the pattern (default 1)\n"
    "  --log FILE       write the log here (more than one pair: FILE.1, FILE.2, ...)\n"
    "  --gap-ms X       log each time without arrival above X ms (default 5)\n"
    "  --baseline T     seconds at the beginning that count as free of faults (default 1)\n";

struct options {
    double seconds;
    size_t size;
    int window;
    int verify;
    int round_trips;
    enum { STREAM, PINGPONG, ALLTOALL } turns;
    uint64_t seed;
    const char *log;
    double gap_ms;
    double baseline;
};

static struct options parse(int argc, char **argv) {
    struct options o = {.seconds = 10, .size = 65536, .window = 16, .verify = 1, .seed = 1, .gap_ms = 5, .baseline = 1};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--seconds")) o.seconds = parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--size")) o.size = parse_bytes(option_value(argc, argv, &i));
        else if (!strcmp(name, "--window")) o.window = (int)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--verify")) {
            const char *value = option_value(argc, argv, &i);
            if (strcmp(value, "on") && strcmp(value, "off")) fail(EXIT_USAGE, "--verify is on or off, not '%s'", value);
            o.verify = !strcmp(value, "on");
        } else if (!strcmp(name, "--bw")) o.round_trips = 1;
        else if (!strcmp(name, "--turns")) {
            const char *value = option_value(argc, argv, &i);
            if (strcmp(value, "pingpong") && strcmp(value, "alltoall"))
                fail(EXIT_USAGE, "--turns is pingpong or alltoall, not '%s'", value);
            o.turns = strcmp(value, "alltoall") ? PINGPONG : ALLTOALL;
        } else if (!strcmp(name, "--seed")) o.seed = (uint64_t)parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--log")) o.log = option_value(argc, argv, &i);
        else if (!strcmp(name, "--gap-ms")) o.gap_ms = parse_number(name, option_value(argc, argv, &i));
        else if (!strcmp(name, "--baseline")) o.baseline = parse_number(name, option_value(argc, argv, &i));
        else {
            if (strcmp(name, "--help")) fprintf(stderr, "stream: unknown option '%s'\n", name);
            fputs(usage, stderr);
            _exit(strcmp(name, "--help") ? EXIT_USAGE : 0);
        }
    }
    if (o.size < 8) fail(EXIT_USAGE, "--size must be at least 8 bytes");
    if (o.turns && o.round_trips) fail(EXIT_USAGE, "--bw and --turns exclude each other");
    if (o.window < 1 || o.window > 4096) fail(EXIT_USAGE, "--window must lie between 1 and 4096");
    return o;
}

enum { TAG_DATA = 7, TAG_ANSWER = 8 };

struct window {
    unsigned char **buffers;
    MPI_Request *requests;
};

static struct window make_window(const struct options *o) {
    struct window w = {malloc(sizeof(void *) * (size_t)o->window), malloc(sizeof(MPI_Request) * (size_t)o->window)};
    if (!w.buffers || !w.requests) fail(1, "out of memory");
    for (int i = 0; i < o->window; i++) {
        w.buffers[i] = allocate(o->size);
        memset(w.buffers[i], 0, o->size);
        w.requests[i] = MPI_REQUEST_NULL;
    }
    return w;
}

/* ---- the stream ---- */

static void send_stream(const struct options *o, int pair, int peer) {
    struct window w = make_window(o);
    uint64_t number = 0;
    uint64_t end = 0;
    /* Without a check there is no need to write the buffers again: then this measures the transport alone. */
    if (!o->verify)
        for (int i = 0; i < o->window; i++) pattern_fill(w.buffers[i], o->size, (uint64_t)i);
    for (;;) {
        if (number == WARM_UP_MESSAGES) end = monotonic_ns() + (uint64_t)(o->seconds * 1e9);
        if (end && monotonic_ns() >= end) break;
        int slot = (int)(number % (uint64_t)o->window);
        MPI_Wait(&w.requests[slot], MPI_STATUS_IGNORE);
        if (o->verify) pattern_fill(w.buffers[slot], o->size, pattern_key(o->seed, (uint64_t)pair, number));
        MPI_Isend(w.buffers[slot], (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &w.requests[slot]);
        number++;
    }
    MPI_Waitall(o->window, w.requests, MPI_STATUSES_IGNORE);
    /* An empty message for each receive that the peer has posted means the end. */
    for (int i = 0; i < o->window; i++) MPI_Send(NULL, 0, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD);
}

static int compare_float(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

struct slice {
    uint64_t begin; /* CLOCK_MONOTONIC */
    uint64_t bytes;
    uint64_t messages;
    uint64_t gap_max;
};

/* What arrived when, and the log of it. */
struct record {
    FILE *log;
    const struct options *o;
    float *baseline;
    size_t baseline_gaps;
    uint64_t begin, last, longest, bytes, messages;
    int64_t to_unix;
    struct slice slice;
};

static struct record open_record(const struct options *o, int pair, int pairs) {
    struct record r = {.o = o, .baseline = malloc(sizeof(float) * BASELINE_GAPS_MAX)};
    if (!r.baseline) fail(1, "out of memory");
    if (o->log) {
        char path[4096];
        if (pairs > 1) snprintf(path, sizeof path, "%s.%d", o->log, pair + 1);
        else snprintf(path, sizeof path, "%s", o->log);
        r.log = fopen(path, "w");
        if (!r.log) fail(EXIT_USAGE, "stream: could not write the log %s: %s", path, strerror(errno));
    }
    return r;
}

static void write_slice(struct record *r) {
    const struct slice *s = &r->slice;
    if (!r->log) return;
    fprintf(r->log, "{\"kind\":\"slice\",\"t_unix_ns\":%lld,\"bytes\":%llu,\"messages\":%llu,\"gap_us_max\":%.1f}\n",
            (long long)((int64_t)s->begin + r->to_unix), (unsigned long long)s->bytes, (unsigned long long)s->messages,
            (double)s->gap_max / 1e3);
    fflush(r->log);
}

/* Writes the slices that are over. */
static void pass_slices(struct record *r, uint64_t now) {
    while (r->begin && now >= r->slice.begin + SLICE_NS) {
        write_slice(r);
        r->slice = (struct slice){.begin = r->slice.begin + SLICE_NS};
    }
}

static void begin_record(struct record *r, uint64_t now, int announces) {
    r->begin = r->last = r->slice.begin = now;
    r->to_unix = (int64_t)(realtime_ns() - monotonic_ns());
    if (announces) announce_start();
    if (!r->log) return;
    fprintf(r->log, "{\"kind\":\"start\",\"t_unix_ns\":%lld,\"size\":%zu,\"window\":%d,\"mpi\":\"%s\"}\n",
            (long long)((int64_t)now + r->to_unix), r->o->size, r->o->turns ? 1 : r->o->window, mpi_library());
    fflush(r->log);
}

static void note_arrival(struct record *r, uint64_t now, uint64_t bytes) {
    uint64_t gap = now - r->last;
    if (gap > r->longest) r->longest = gap;
    if (gap > r->slice.gap_max) r->slice.gap_max = gap;
    if (r->log && (double)gap > r->o->gap_ms * 1e6) {
        fprintf(r->log, "{\"kind\":\"gap\",\"t_unix_ns\":%lld,\"us\":%.1f}\n", (long long)((int64_t)r->last + r->to_unix),
                (double)gap / 1e3);
        fflush(r->log);
    }
    if ((double)(now - r->begin) < r->o->baseline * 1e9 && r->baseline_gaps < BASELINE_GAPS_MAX)
        r->baseline[r->baseline_gaps++] = (float)((double)gap / 1e3);
    r->slice.bytes += bytes;
    r->slice.messages++;
    r->bytes += bytes;
    r->messages++;
    r->last = now;
}

/* Ends the log; `number` messages came in all, of which the first do not count. */
static void close_record(struct record *r, uint64_t number, const char *what) {
    const struct options *o = r->o;
    double seconds = r->last > r->begin ? (double)(r->last - r->begin) / 1e9 : 0;
    qsort(r->baseline, r->baseline_gaps, sizeof(float), compare_float);
    double p99 = r->baseline_gaps ? r->baseline[(size_t)((double)(r->baseline_gaps - 1) * 0.99)] : 0;
    if (r->log) {
        write_slice(r);
        fprintf(r->log,
                "{\"kind\":\"end\",\"t_unix_ns\":%lld,\"messages\":%llu,\"bytes\":%llu,\"seconds\":%.6f,\"gap_us_p99\":%.1f,"
                "\"gap_us_max\":%.1f,\"verified\":%s}\n",
                (long long)((int64_t)r->last + r->to_unix), (unsigned long long)r->messages, (unsigned long long)r->bytes,
                seconds, p99, (double)r->longest / 1e3, o->verify ? "true" : "false");
        fclose(r->log);
    }
    printf("stream: %llu %s of %zu bytes in %.2f s, %.1f MB/s, %s; longest time without arrival %.1f ms (p99 of the first "
           "%.1f s: %.2f ms) [%s]\n",
           (unsigned long long)number, what, o->size, seconds, seconds > 0 ? (double)r->bytes / seconds / 1e6 : 0,
           o->verify ? "every byte right" : "not checked", (double)r->longest / 1e6, o->baseline, p99 / 1e3, mpi_library());
    fflush(stdout);
    free(r->baseline);
}

static void check(const struct options *o, const void *buffer, size_t bytes, uint64_t key, uint64_t number) {
    int64_t wrong = o->verify ? pattern_check(buffer, bytes, key) : -1;
    if (wrong >= 0)
        fail(EXIT_WRONG_DATA, "stream: wrong byte in message %llu at offset %lld: %#04x instead of %#04x (seed %llu)",
             (unsigned long long)number, (long long)wrong, ((const unsigned char *)buffer)[wrong],
             pattern_byte(key, (uint64_t)wrong), (unsigned long long)o->seed);
}

static void receive_stream(const struct options *o, int pair, int pairs, int peer) {
    struct window w = make_window(o);
    struct record r = open_record(o, pair, pairs);
    for (int i = 0; i < o->window; i++)
        MPI_Irecv(w.buffers[i], (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &w.requests[i]);

    uint64_t number = 0;
    for (;;) {
        int slot = (int)(number % (uint64_t)o->window);
        int done = 0;
        MPI_Status status;
        uint64_t now;
        /* Test, not Wait: slices without a byte must reach the log while they pass, so that a reader sees a standstill live. */
        for (;;) {
            MPI_Test(&w.requests[slot], &done, &status);
            now = monotonic_ns();
            pass_slices(&r, now);
            if (done) break;
        }
        int bytes;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        if (bytes == 0) break;
        if ((size_t)bytes != o->size)
            fail(EXIT_WRONG_DATA, "stream: message %llu has %d bytes instead of %zu", (unsigned long long)number, bytes, o->size);
        check(o, w.buffers[slot], o->size, pattern_key(o->seed, (uint64_t)pair, number), number);
        number++;
        MPI_Irecv(w.buffers[slot], (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &w.requests[slot]);
        if (number < WARM_UP_MESSAGES) continue;
        if (number == WARM_UP_MESSAGES) begin_record(&r, now, pair == 0);
        else note_arrival(&r, now, (uint64_t)bytes);
    }
    MPI_Waitall(o->window, w.requests, MPI_STATUSES_IGNORE);
    close_record(&r, number, "messages");
}

/* ---- turns ---- */

/* The first word of a message in turns: whether it is of the last turn. What follows is the pattern. */
#define HEAD_BYTES 8
enum { GOES_ON = 1, ENDS = 2 };

/* The message of rank `from` to rank `to` in turn `number`. */
static uint64_t turn_key(const struct options *o, int from, int to, uint64_t number) {
    return pattern_key(o->seed, (uint64_t)from << 16 | (uint64_t)to, number);
}

static void write_turn(const struct options *o, unsigned char *message, uint64_t key, uint64_t head) {
    memcpy(message, &head, HEAD_BYTES);
    if (o->verify) pattern_fill(message + HEAD_BYTES, o->size - HEAD_BYTES, key);
}

/* Checks a message; whether it is of the last turn. */
static int read_turn(const struct options *o, const unsigned char *message, uint64_t key, uint64_t number) {
    uint64_t head;
    memcpy(&head, message, HEAD_BYTES);
    if (head != GOES_ON && head != ENDS)
        fail(EXIT_WRONG_DATA, "stream: turn %llu begins with %#llx", (unsigned long long)number, (unsigned long long)head);
    check(o, message + HEAD_BYTES, o->size - HEAD_BYTES, key, number);
    return head == ENDS;
}

/* Turns of a pair, or of all. The leader says in each message whether the turn is the last. */
static void take_turns(const struct options *o, int rank, int ranks, int pair, int peer) {
    int all = o->turns == ALLTOALL;
    int leads = all ? rank == 0 : rank < ranks / 2;
    int to_first = all ? 0 : peer, to_end = all ? ranks : peer + 1;
    size_t stride = o->size;
    unsigned char *out = allocate(stride * (size_t)(to_end - to_first)), *in = allocate(stride * (size_t)(to_end - to_first));
    memset(in, 0, stride * (size_t)(to_end - to_first));
    struct record r = {0};
    if (leads) r = open_record(o, pair, all ? 1 : ranks / 2);
    uint64_t number = 0, end = 0;
    for (int last = 0; !last; number++) {
        uint64_t now = monotonic_ns();
        int wants_end = leads && end && now >= end;
        /* The follower answers the leader: `last` of this turn is known when the leader's message is here. */
        if (!all && !leads) {
            MPI_Recv(in, (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            last = read_turn(o, in, turn_key(o, peer, rank, number), number);
        }
        for (int to = to_first; to < to_end; to++)
            write_turn(o, out + stride * (size_t)(to - to_first), turn_key(o, rank, to, number), wants_end || last ? ENDS : GOES_ON);
        if (all) {
            MPI_Alltoall(out, (int)o->size, MPI_BYTE, in, (int)o->size, MPI_BYTE, MPI_COMM_WORLD);
            for (int from = 0; from < ranks; from++) {
                int ends = read_turn(o, in + stride * (size_t)from, turn_key(o, from, rank, number), number);
                if (from == 0) last = ends;
            }
        } else {
            MPI_Send(out, (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD);
            if (leads) {
                MPI_Recv(in, (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                last = read_turn(o, in, turn_key(o, peer, rank, number), number);
            }
        }
        if (!leads) continue;
        now = monotonic_ns();
        pass_slices(&r, now);
        if (number + 1 == WARM_UP_MESSAGES) {
            begin_record(&r, now, rank == 0);
            end = now + (uint64_t)(o->seconds * 1e9);
        } else if (number + 1 > WARM_UP_MESSAGES) {
            note_arrival(&r, now, (uint64_t)o->size * (uint64_t)(to_end - to_first));
        }
    }
    if (leads) close_record(&r, number, all ? "exchanges among all" : "round trips");
    free(out);
    free(in);
}

/* ---- windows with an answer, as osu_bw ---- */

/* The first byte of a window says whether it is the last. */
enum { MORE = 1, LAST = 2 };

static void send_windows(const struct options *o, int pair, int peer) {
    struct window w = make_window(o);
    uint64_t begin = 0, windows = 0;
    uint64_t warm = monotonic_ns() + NS_PER_S / 2;
    uint64_t longest = 0;
    for (int last = 0; !last;) {
        uint64_t now = monotonic_ns();
        if (!begin && now >= warm) {
            begin = now;
            windows = 0;
            if (pair == 0) announce_start();
        }
        last = begin && (double)(now - begin) >= o->seconds * 1e9;
        for (int i = 0; i < o->window; i++) {
            w.buffers[i][0] = last ? LAST : MORE;
            MPI_Isend(w.buffers[i], (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &w.requests[i]);
        }
        MPI_Waitall(o->window, w.requests, MPI_STATUSES_IGNORE);
        char answer;
        MPI_Recv(&answer, 1, MPI_BYTE, peer, TAG_ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        uint64_t took = monotonic_ns() - now;
        if (took > longest) longest = took;
        windows++;
    }
    double seconds = (double)(monotonic_ns() - begin) / 1e9;
    double bytes = (double)windows * o->window * (double)o->size;
    printf("stream: %zu bytes, window %d: %.1f MB/s over %.2f s; longest window %.1f ms [%s]\n", o->size, o->window,
           bytes / seconds / 1e6, seconds, (double)longest / 1e6, mpi_library());
    fflush(stdout);
}

static void receive_windows(const struct options *o, int peer) {
    struct window w = make_window(o);
    for (;;) {
        for (int i = 0; i < o->window; i++)
            MPI_Irecv(w.buffers[i], (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &w.requests[i]);
        MPI_Waitall(o->window, w.requests, MPI_STATUSES_IGNORE);
        char answer = 0;
        MPI_Send(&answer, 1, MPI_BYTE, peer, TAG_ANSWER, MPI_COMM_WORLD);
        if (w.buffers[0][0] == LAST) break;
    }
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2 || ranks % 2) fail(EXIT_USAGE, "stream needs an even number of ranks, not %d", ranks);
    int pairs = ranks / 2;
    int pair = rank % pairs;
    int sends = rank < pairs;
    int peer = sends ? rank + pairs : rank - pairs;
    MPI_Barrier(MPI_COMM_WORLD);
    if (o.turns) {
        take_turns(&o, rank, ranks, pair, peer);
    } else if (o.round_trips) {
        if (sends) send_windows(&o, pair, peer);
        else receive_windows(&o, peer);
    } else {
        if (sends) send_stream(&o, pair, peer);
        else receive_stream(&o, pair, pairs, peer);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
