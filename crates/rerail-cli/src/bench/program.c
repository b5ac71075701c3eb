/* What `rerail bench` runs: an MPI program that measures, and prints a line for each figure:
 *
 *     bench TEST BYTES VALUE
 *
 * The unit belongs to the test: us for latency, sockets-latency and collectives, MB/s for bandwidths, messages/s for rate, per cent for
 * overlap, ms for failover, which also prints what arrived in each slice of time, in MB/s:
 *
 *     timeline BYTES SLICE_MS VALUE VALUE ...
 * Ranks form pairs, i with i + n/2, so that with one rank on each node a pair is two nodes. All pairs run at once; bandwidths and
 * rates are sums over the pairs, latency is that of the slowest.
 *
 * Every size is measured for about --ms milliseconds, after a warm-up in which every byte is checked. Windows and answers are those of the OSU
 * benchmarks: WINDOW messages from as many buffers, then an answer of one byte.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 16, RATE_WINDOW = 64, RATE_BYTES = 64, SAMPLES_MAX = 200000, SIZES_MAX = 32 };
enum { TAG_DATA = 1, TAG_ANSWER = 2, TAG_LAST = 3 };
enum { SLICE_MS = 50, SLICES_MAX = 20000 };

static int rank, ranks, pairs, peer, is_first;
static double wanted_ms = 200, stream_s = 10;
static unsigned char *out[RATE_WINDOW], *in[RATE_WINDOW];

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rerail bench: rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 3);
    exit(3);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void tell(const char *test, size_t bytes, double value) {
    if (rank == 0) {
        printf("bench %s %zu %.6g\n", test, bytes, value);
        fflush(stdout);
    }
}

static double over_ranks(double value, MPI_Op op) {
    double all;
    MPI_Allreduce(&value, &all, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
    return all;
}

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof(double), compare_double);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* A byte of message `key`; no two neighbours are alike. */
static unsigned char pattern(size_t i, unsigned key) { return (unsigned char)((i * 131 + (i >> 8) * 17 + key * 29 + 7) & 0xff); }

static void fill(unsigned char *buffer, size_t bytes, unsigned key) {
    for (size_t i = 0; i < bytes; i++) buffer[i] = pattern(i, key);
}

static void check(const unsigned char *buffer, size_t bytes, unsigned key, const char *test) {
    for (size_t i = 0; i < bytes; i++)
        if (buffer[i] != pattern(i, key)) fail("%s: wrong data at byte %zu of a message of %zu bytes", test, i, bytes);
}

/* How often `once` has to be done to take about the wanted time, the same number on every rank. */
static int repetitions(void (*once)(size_t, int), size_t bytes) {
    int n = 1;
    for (;;) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now_us();
        once(bytes, n);
        double ms = over_ranks((now_us() - begin) / 1e3, MPI_MAX);
        if (ms > wanted_ms / 10 || n > SAMPLES_MAX / 4) {
            double fit = (double)n * wanted_ms / (ms > 0.001 ? ms : 0.001);
            return fit < 1 ? 1 : fit > SAMPLES_MAX ? SAMPLES_MAX : (int)fit;
        }
        n *= 4;
    }
}

static double samples[SAMPLES_MAX];

static void ping_pong(size_t bytes, int n) {
    for (int i = 0; i < n; i++) {
        if (is_first) {
            double begin = now_us();
            MPI_Send(out[0], (int)bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD);
            MPI_Recv(in[0], (int)bytes, MPI_BYTE, peer, TAG_ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            samples[i] = (now_us() - begin) / 2;
        } else {
            MPI_Recv(in[0], (int)bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out[0], (int)bytes, MPI_BYTE, peer, TAG_ANSWER, MPI_COMM_WORLD);
        }
    }
}

static void latency(size_t bytes) {
    fill(out[0], bytes, (unsigned)rank);
    memset(in[0], 0, bytes);
    ping_pong(bytes, 3);
    check(in[0], bytes, (unsigned)peer, "latency");
    int n = repetitions(ping_pong, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    ping_pong(bytes, n);
    tell("latency", bytes, over_ranks(is_first ? median(samples, (size_t)n) : 0, MPI_MAX));
}

static void send_windows(size_t bytes, int n, int window) {
    MPI_Request requests[RATE_WINDOW];
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < window; k++) MPI_Isend(out[k], (int)bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &requests[k]);
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
        unsigned char answer;
        MPI_Recv(&answer, 1, MPI_BYTE, peer, TAG_ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static void receive_windows(size_t bytes, int n, int window) {
    MPI_Request requests[RATE_WINDOW];
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < window; k++) MPI_Irecv(in[k], (int)bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &requests[k]);
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
        unsigned char answer = 1;
        MPI_Send(&answer, 1, MPI_BYTE, peer, TAG_ANSWER, MPI_COMM_WORLD);
    }
}

static void one_way(size_t bytes, int n) { is_first ? send_windows(bytes, n, WINDOW) : receive_windows(bytes, n, WINDOW); }
static void many_small(size_t bytes, int n) { is_first ? send_windows(bytes, n, RATE_WINDOW) : receive_windows(bytes, n, RATE_WINDOW); }

static void both_ways(size_t bytes, int n) {
    MPI_Request requests[2 * WINDOW];
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < WINDOW; k++) MPI_Irecv(in[k], (int)bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &requests[k]);
        for (int k = 0; k < WINDOW; k++) MPI_Isend(out[k], (int)bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &requests[WINDOW + k]);
        MPI_Waitall(2 * WINDOW, requests, MPI_STATUSES_IGNORE);
    }
}

/* Messages per second of all pairs. */
static double messages_per_s(const char *test, void (*once)(size_t, int), size_t bytes, int window) {
    for (int k = 0; k < window; k++) {
        fill(out[k], bytes, (unsigned)(rank + k));
        memset(in[k], 0, bytes);
    }
    once(bytes, 1);
    if (!is_first || once == both_ways)
        for (int k = 0; k < window; k++) check(in[k], bytes, (unsigned)(peer + k), test);
    int n = repetitions(once, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now_us();
    once(bytes, n);
    double us = over_ranks(now_us() - begin, MPI_MAX);
    return (double)n * window * pairs * 1e6 / us;
}

static void bandwidth(size_t bytes) { tell("bandwidth", bytes, messages_per_s("bandwidth", one_way, bytes, WINDOW) * (double)bytes / 1e6); }
static void bidirectional(size_t bytes) {
    tell("bidirectional", bytes, 2 * messages_per_s("bidirectional", both_ways, bytes, WINDOW) * (double)bytes / 1e6);
}
static void rate(size_t bytes) {
    (void)bytes;
    tell("rate", RATE_BYTES, messages_per_s("rate", many_small, RATE_BYTES, RATE_WINDOW));
}

/* Failover: the last rank of the first pair streams to rank 0 for stream_s seconds while rails are broken and repaired.
 * Every message has its number at both ends. */
static void start_schedule(void) {
    const char *path = getenv("RERAIL_LAB_START");
    if (!path || !*path) return;
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) fail("could not create %s: %s", path, strerror(errno));
    close(file);
}

static void stream_out(size_t bytes) {
    MPI_Request requests[WINDOW];
    double end = now_us() + stream_s * 1e6;
    for (uint64_t number = 0, last = 0; last < WINDOW; number++) {
        int k = (int)(number % WINDOW);
        if (number >= WINDOW) MPI_Wait(&requests[k], MPI_STATUS_IGNORE);
        memcpy(out[k], &number, sizeof number);
        memcpy(out[k] + bytes - sizeof number, &number, sizeof number);
        /* as many last ones as the receiver has receives */
        if (last || now_us() > end) last++;
        MPI_Isend(out[k], (int)bytes, MPI_BYTE, peer, last ? TAG_LAST : TAG_DATA, MPI_COMM_WORLD, &requests[k]);
    }
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
}

/* By the clock of the lab's events, so that the picture can put what broke beside what arrived. */
static long long unix_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double stream_in(size_t bytes, double *slices, size_t *used, long long *begin_unix_ns) {
    MPI_Request requests[WINDOW];
    for (int k = 0; k < WINDOW; k++) MPI_Irecv(in[k], (int)bytes, MPI_BYTE, peer, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[k]);
    *begin_unix_ns = unix_ns();
    double begin = now_us(), former = begin, longest = 0;
    int last = 0;
    for (uint64_t number = 0; last < WINDOW; number++) {
        int k = (int)(number % WINDOW);
        MPI_Status status;
        MPI_Wait(&requests[k], &status);
        double now = now_us();
        uint64_t ends[2];
        memcpy(&ends[0], in[k], sizeof ends[0]);
        memcpy(&ends[1], in[k] + bytes - sizeof ends[1], sizeof ends[1]);
        if (ends[0] != number || ends[1] != number) fail("failover: message %llu is not what was sent", (unsigned long long)number);
        if (now - former > longest) longest = now - former;
        former = now;
        size_t slice = (size_t)((now - begin) / (SLICE_MS * 1e3));
        if (slice < SLICES_MAX) {
            slices[slice] += (double)bytes / (SLICE_MS * 1e3);
            *used = slice + 1;
        }
        if (status.MPI_TAG == TAG_LAST) last++;
        else MPI_Irecv(in[k], (int)bytes, MPI_BYTE, peer, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[k]);
    }
    return longest / 1e3;
}

static void failover(size_t bytes) {
    static double slices[SLICES_MAX];
    size_t used = 0;
    if (bytes < 2 * sizeof(uint64_t)) fail("failover: a message needs 16 bytes for its number");
    memset(slices, 0, sizeof slices);
    /* connected and warm before the clock starts */
    one_way(bytes, 4);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) start_schedule();
    double longest = 0;
    long long begin_unix_ns = 0;
    if (rank == pairs) stream_out(bytes);
    if (rank == 0) longest = stream_in(bytes, slices, &used, &begin_unix_ns);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0) return;
    printf("timeline %zu %d %lld", bytes, SLICE_MS, begin_unix_ns);
    for (size_t i = 0; i < used; i++) printf(" %.4g", slices[i]);
    printf("\n");
    tell("failover", bytes, longest);
}

/* Overlap: see tests/mpi/overlap.c of the project. */
static volatile uint64_t sink;

static void work(uint64_t rounds) {
    uint64_t x = rounds | 1;
    for (uint64_t i = 0; i < rounds; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    sink = x;
}

static double exchange_ms(size_t bytes, int exchange, uint64_t rounds, int n) {
    static double ms[1000];
    for (int i = -2; i < n; i++) {
        MPI_Request two[2];
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now_us();
        if (exchange) {
            MPI_Irecv(in[0], (int)bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &two[0]);
            MPI_Isend(out[0], (int)bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &two[1]);
        }
        if (rounds) work(rounds);
        if (exchange) MPI_Waitall(2, two, MPI_STATUSES_IGNORE);
        if (i >= 0) ms[i] = (now_us() - begin) / 1e3;
    }
    double here = median(ms, (size_t)n);
    MPI_Bcast(&here, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return here;
}

static void overlap(size_t bytes) {
    int n = 20;
    double alone = exchange_ms(bytes, 1, 0, n);
    double each[5];
    for (int i = 0; i < 5; i++) {
        double begin = now_us();
        work(1u << 20);
        each[i] = (now_us() - begin) / 1e3;
    }
    uint64_t rounds = (uint64_t)((double)(1u << 20) * alone / median(each, 5));
    double computing = exchange_ms(bytes, 0, rounds, n);
    double together = exchange_ms(bytes, 1, rounds, n);
    tell("overlap", bytes, 100 * (1 - (together - computing) / alone));
}

/* Collectives: time of one operation on the slowest rank; `bytes` is what goes to each rank (alltoall), or the whole vector. */
static unsigned char *many_out, *many_in;

static void once_alltoall(size_t bytes, int n) {
    for (int i = 0; i < n; i++) MPI_Alltoall(many_out, (int)bytes, MPI_BYTE, many_in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}
static void once_allreduce(size_t bytes, int n) {
    for (int i = 0; i < n; i++) MPI_Allreduce(many_out, many_in, (int)(bytes / 8 ? bytes / 8 : 1), MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}
static void once_bcast(size_t bytes, int n) {
    for (int i = 0; i < n; i++) MPI_Bcast(many_out, (int)bytes, MPI_BYTE, i % ranks, MPI_COMM_WORLD);
}
static void once_barrier(size_t bytes, int n) {
    (void)bytes;
    for (int i = 0; i < n; i++) MPI_Barrier(MPI_COMM_WORLD);
}

static void collective(const char *test, void (*once)(size_t, int), size_t bytes) {
    once(bytes, 2);
    int n = repetitions(once, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now_us();
    once(bytes, n);
    tell(test, bytes, over_ranks((now_us() - begin) / n, MPI_MAX));
}

static void alltoall(size_t bytes) {
    for (int r = 0; r < ranks; r++) fill(many_out + (size_t)r * bytes, bytes, (unsigned)(rank * 64 + r));
    once_alltoall(bytes, 1);
    for (int r = 0; r < ranks; r++) check(many_in + (size_t)r * bytes, bytes, (unsigned)(r * 64 + rank), "alltoall");
    collective("alltoall", once_alltoall, bytes);
}
static void allreduce(size_t bytes) {
    uint64_t mine[1] = {(uint64_t)rank + 1}, sum[1];
    MPI_Allreduce(mine, sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (sum[0] != (uint64_t)ranks * (uint64_t)(ranks + 1) / 2) fail("allreduce: wrong sum %llu", (unsigned long long)sum[0]);
    collective("allreduce", once_allreduce, bytes);
}
static void bcast(size_t bytes) { collective("bcast", once_bcast, bytes); }
static void barrier(size_t bytes) {
    (void)bytes;
    collective("barrier", once_barrier, 0);
}

/* Plain sockets between the first pair, over the interface named by --interface: what the machine can do without any MPI. */
static const char *interface_name;

static struct sockaddr_in own_address(void) {
    struct ifaddrs *all, *one;
    struct sockaddr_in found = {0};
    if (!interface_name) fail("sockets need --interface");
    if (getifaddrs(&all)) fail("the interfaces cannot be read: %s", strerror(errno));
    for (one = all; one; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && !strcmp(one->ifa_name, interface_name))
            memcpy(&found, one->ifa_addr, sizeof found);
    freeifaddrs(all);
    if (!found.sin_family) fail("there is no interface %s with an IPv4 address: name one by --interface", interface_name);
    return found;
}

static int new_socket(int type, struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)address, sizeof *address) || getsockname(fd, (struct sockaddr *)address, &length))
        fail("a socket cannot be opened: %s", strerror(errno));
    return fd;
}

static struct sockaddr_in swap_addresses(struct sockaddr_in mine) {
    struct sockaddr_in theirs;
    MPI_Sendrecv(&mine, sizeof mine, MPI_BYTE, peer, TAG_DATA, &theirs, sizeof theirs, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    return theirs;
}

static int udp = -1, tcp = -1;

/* Busy: a thread that sleeps in the kernel is woken tens of microseconds later. */
static void udp_receive(size_t bytes) {
    double end = now_us() + 5e6;
    for (;;) {
        ssize_t n = recv(udp, in[0], bytes, MSG_DONTWAIT);
        if (n == (ssize_t)bytes) return;
        if (n < 0 && errno != EAGAIN) fail("a datagram cannot be received: %s", strerror(errno));
        if (now_us() > end) fail("a datagram was lost: nothing else may use the interface meanwhile");
    }
}

static void udp_ping_pong(size_t bytes, int n) {
    for (int i = 0; i < n && udp >= 0; i++) {
        double begin = now_us();
        if (!is_first) udp_receive(bytes);
        if (send(udp, out[0], bytes, 0) != (ssize_t)bytes) fail("a datagram cannot be sent: %s", strerror(errno));
        if (is_first) udp_receive(bytes);
        samples[i] = (now_us() - begin) / 2;
    }
}

static void sockets_latency(size_t bytes) {
    if (bytes > 1400) return;
    if (rank == 0 || rank == ranks / 2) {
        struct sockaddr_in mine = own_address();
        mine.sin_port = 0;
        udp = new_socket(SOCK_DGRAM, &mine);
        struct sockaddr_in theirs = swap_addresses(mine);
        if (connect(udp, (struct sockaddr *)&theirs, sizeof theirs)) fail("no route to the other rank: %s", strerror(errno));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    int n = repetitions(udp_ping_pong, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    udp_ping_pong(bytes, n);
    tell("sockets-latency", bytes, over_ranks(rank == 0 ? median(samples, (size_t)n) : 0, MPI_MAX));
    if (udp >= 0) close(udp);
    udp = -1;
}

static void tcp_transfer(size_t bytes, int n) {
    for (int i = 0; i < n * WINDOW && tcp >= 0; i++) {
        for (size_t at = 0; at < bytes;) {
            ssize_t k = is_first ? send(tcp, out[i % WINDOW] + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT)
                                 : recv(tcp, in[i % WINDOW] + at, bytes - at, MSG_DONTWAIT);
            if (k > 0) at += (size_t)k;
            else if (k == 0 || errno != EAGAIN) fail("the connection broke: %s", k == 0 ? "closed" : strerror(errno));
        }
        if (i % WINDOW != WINDOW - 1) continue;
        /* the answer of a window */
        unsigned char answer = 1;
        for (ssize_t k = -1; k != 1;) {
            k = is_first ? recv(tcp, &answer, 1, MSG_DONTWAIT) : send(tcp, &answer, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (k == 0 || (k < 0 && errno != EAGAIN)) fail("the connection broke");
        }
    }
}

static void sockets_bandwidth(size_t bytes) {
    if (rank == 0 || rank == ranks / 2) {
        struct sockaddr_in mine = own_address();
        mine.sin_port = 0;
        int fd = new_socket(SOCK_STREAM, &mine), one = 1;
        if (!is_first && listen(fd, 1)) fail("cannot listen: %s", strerror(errno));
        struct sockaddr_in theirs = swap_addresses(mine);
        if (is_first) {
            if (connect(fd, (struct sockaddr *)&theirs, sizeof theirs)) fail("cannot connect to the other rank: %s", strerror(errno));
            tcp = fd;
        } else {
            tcp = accept(fd, NULL, NULL);
            if (tcp < 0) fail("cannot accept: %s", strerror(errno));
            close(fd);
        }
        setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    tcp_transfer(bytes, 1);
    int n = repetitions(tcp_transfer, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now_us();
    tcp_transfer(bytes, n);
    double us = over_ranks(tcp >= 0 ? now_us() - begin : 0, MPI_MAX);
    tell("sockets-bandwidth", bytes, (double)bytes * WINDOW * n / us);
    if (tcp >= 0) close(tcp);
    tcp = -1;
}

static const struct {
    const char *name;
    void (*run)(size_t);
    /* it has one size of its own */
    int once;
} tests[] = {
    {"latency", latency, 0},
    {"bandwidth", bandwidth, 0},
    {"bidirectional", bidirectional, 0},
    {"rate", rate, 1},
    {"overlap", overlap, 0},
    {"failover", failover, 0},
    {"barrier", barrier, 1},
    {"bcast", bcast, 0},
    {"allreduce", allreduce, 0},
    {"alltoall", alltoall, 0},
    {"sockets-latency", sockets_latency, 0},
    {"sockets-bandwidth", sockets_bandwidth, 0},
};

/* Arguments: --ms N, --stream-s S, --interface NAME, then TEST:BYTES,BYTES,... */
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2 || ranks % 2) fail("start an even number of ranks, not %d", ranks);
    pairs = ranks / 2;
    is_first = rank < pairs;
    peer = (rank + pairs) % ranks;
    size_t largest = 4096;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 1; i < argc; i++) {
            if (!strcmp(argv[i], "--ms") && i + 1 < argc) {
                wanted_ms = atof(argv[++i]);
                continue;
            }
            if (!strcmp(argv[i], "--stream-s") && i + 1 < argc) {
                stream_s = atof(argv[++i]);
                continue;
            }
            if (!strcmp(argv[i], "--interface") && i + 1 < argc) {
                interface_name = argv[++i];
                continue;
            }
            const char *colon = strchr(argv[i], ':');
            size_t length = colon ? (size_t)(colon - argv[i]) : strlen(argv[i]);
            int t = -1;
            for (size_t k = 0; k < sizeof tests / sizeof *tests; k++)
                if (strlen(tests[k].name) == length && !strncmp(tests[k].name, argv[i], length)) t = (int)k;
            if (t < 0) fail("there is no test `%s`", argv[i]);
            if (tests[t].once) {
                if (pass) tests[t].run(0);
                continue;
            }
            for (const char *at = colon; at && *at; at = strchr(at + 1, ',')) {
                size_t bytes = strtoull(at + 1, NULL, 10);
                if (bytes > largest) largest = bytes;
                if (pass) tests[t].run(bytes);
            }
        }
        if (pass) break;
        for (int k = 0; k < RATE_WINDOW; k++) {
            /* more than a window of the small ones is never large */
            size_t each = k < WINDOW ? largest : 4096;
            out[k] = calloc(1, each);
            in[k] = calloc(1, each);
            if (!out[k] || !in[k]) fail("out of memory");
        }
        many_out = calloc((size_t)ranks, largest);
        many_in = calloc((size_t)ranks, largest);
        if (!many_out || !many_in) fail("out of memory");
    }
    if (rank == 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(version, &length);
        version[strcspn(version, "\n")] = 0;
        printf("bench-mpi %s\n", version);
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
