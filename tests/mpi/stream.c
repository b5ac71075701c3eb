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
        else if (!strcmp(name, "--seed")) o.seed = (uint64_t)parse_number(name, option_value(argc, argv, &i));
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

static void write_slice(FILE *log, const struct slice *s, int64_t to_unix) {
    if (!log) return;
    fprintf(log, "{\"kind\":\"slice\",\"t_unix_ns\":%lld,\"bytes\":%llu,\"messages\":%llu,\"gap_us_max\":%.1f}\n",
            (long long)((int64_t)s->begin + to_unix), (unsigned long long)s->bytes, (unsigned long long)s->messages,
            (double)s->gap_max / 1e3);
    fflush(log);
}

static void receive_stream(const struct options *o, int pair, int pairs, int peer) {
    struct window w = make_window(o);
    FILE *log = NULL;
    if (o->log) {
        char path[4096];
        if (pairs > 1) snprintf(path, sizeof path, "%s.%d", o->log, pair + 1);
        else snprintf(path, sizeof path, "%s", o->log);
        log = fopen(path, "w");
        if (!log) fail(EXIT_USAGE, "stream: could not write the log %s: %s", path, strerror(errno));
    }
    float *baseline = malloc(sizeof(float) * BASELINE_GAPS_MAX);
    if (!baseline) fail(1, "out of memory");
    size_t baseline_gaps = 0;
    for (int i = 0; i < o->window; i++)
        MPI_Irecv(w.buffers[i], (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &w.requests[i]);

    uint64_t number = 0, begin = 0, last = 0, longest = 0, measured_bytes = 0, measured_messages = 0;
    int64_t to_unix = (int64_t)(realtime_ns() - monotonic_ns());
    struct slice slice = {0};
    for (;;) {
        int slot = (int)(number % (uint64_t)o->window);
        int done = 0;
        MPI_Status status;
        uint64_t now;
        /* Test, not Wait: slices without a byte must reach the log while they pass, so that a reader sees a standstill live. */
        for (;;) {
            MPI_Test(&w.requests[slot], &done, &status);
            now = monotonic_ns();
            while (begin && now >= slice.begin + SLICE_NS) {
                write_slice(log, &slice, to_unix);
                slice = (struct slice){.begin = slice.begin + SLICE_NS};
            }
            if (done) break;
        }
        int bytes;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        if (bytes == 0) break;
        if ((size_t)bytes != o->size)
            fail(EXIT_WRONG_DATA, "stream: message %llu has %d bytes instead of %zu", (unsigned long long)number, bytes, o->size);
        if (o->verify) {
            uint64_t key = pattern_key(o->seed, (uint64_t)pair, number);
            int64_t wrong = pattern_check(w.buffers[slot], o->size, key);
            if (wrong >= 0)
                fail(EXIT_WRONG_DATA, "stream: wrong byte in message %llu at offset %lld: %#04x instead of %#04x (seed %llu)",
                     (unsigned long long)number, (long long)wrong, w.buffers[slot][wrong], pattern_byte(key, (uint64_t)wrong),
                     (unsigned long long)o->seed);
        }
        number++;
        MPI_Irecv(w.buffers[slot], (int)o->size, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &w.requests[slot]);
        if (number < WARM_UP_MESSAGES) continue;
        if (number == WARM_UP_MESSAGES) {
            begin = last = slice.begin = now;
            to_unix = (int64_t)(realtime_ns() - monotonic_ns());
            if (pair == 0) announce_start();
            if (log) {
                fprintf(log, "{\"kind\":\"start\",\"t_unix_ns\":%lld,\"size\":%zu,\"window\":%d,\"mpi\":\"%s\"}\n",
                        (long long)((int64_t)now + to_unix), o->size, o->window, mpi_library());
                fflush(log);
            }
            continue;
        }
        uint64_t gap = now - last;
        if (gap > longest) longest = gap;
        if (gap > slice.gap_max) slice.gap_max = gap;
        if (log && (double)gap > o->gap_ms * 1e6) {
            fprintf(log, "{\"kind\":\"gap\",\"t_unix_ns\":%lld,\"us\":%.1f}\n", (long long)((int64_t)last + to_unix),
                    (double)gap / 1e3);
            fflush(log);
        }
        if ((double)(now - begin) < o->baseline * 1e9 && baseline_gaps < BASELINE_GAPS_MAX)
            baseline[baseline_gaps++] = (float)((double)gap / 1e3);
        slice.bytes += (uint64_t)bytes;
        slice.messages++;
        measured_bytes += (uint64_t)bytes;
        measured_messages++;
        last = now;
    }
    MPI_Waitall(o->window, w.requests, MPI_STATUSES_IGNORE);
    double seconds = last > begin ? (double)(last - begin) / 1e9 : 0;
    qsort(baseline, baseline_gaps, sizeof(float), compare_float);
    double p99 = baseline_gaps ? baseline[(size_t)((double)(baseline_gaps - 1) * 0.99)] : 0;
    if (log) {
        write_slice(log, &slice, to_unix);
        fprintf(log,
                "{\"kind\":\"end\",\"t_unix_ns\":%lld,\"messages\":%llu,\"bytes\":%llu,\"seconds\":%.6f,\"gap_us_p99\":%.1f,"
                "\"gap_us_max\":%.1f,\"verified\":%s}\n",
                (long long)((int64_t)last + to_unix), (unsigned long long)measured_messages, (unsigned long long)measured_bytes,
                seconds, p99, (double)longest / 1e3, o->verify ? "true" : "false");
        fclose(log);
    }
    printf("stream: %llu messages of %zu bytes in %.2f s, %.1f MB/s, %s; longest time without arrival %.1f ms (p99 of the first "
           "%.1f s: %.2f ms) [%s]\n",
           (unsigned long long)number, o->size, seconds, seconds > 0 ? (double)measured_bytes / seconds / 1e6 : 0,
           o->verify ? "every byte right" : "not checked", (double)longest / 1e6, o->baseline, p99 / 1e3, mpi_library());
    fflush(stdout);
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
    if (o.round_trips) {
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
