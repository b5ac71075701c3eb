/* collective: collective operations of libfabric (fi_collective(3)) over and over, each result checked, by one process in each node of a lab.
 *
 * Usage: collective FILE NODES SECONDS. The processes find each other by FILE, which is new and which all of them map; RERAIL_NODE says
 * which one this is. Ends with exit code 0 when every operation of all of them was right; says how many there were.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NODES_MAX 16
#define BLOB 56
#define VALUES_MAX (1 << 17) /* of eight bytes */
#define AT_ONCE 4

#define FAIL(...)                                                                                                        \
    do {                                                                                                                 \
        fprintf(stderr, "collective: node %d: ", node);                                                                  \
        fprintf(stderr, __VA_ARGS__);                                                                                    \
        fprintf(stderr, "\n");                                                                                           \
        exit(1);                                                                                                         \
    } while (0)
#define OK(call)                                                                                                         \
    do {                                                                                                                 \
        long rc_ = (long)(call);                                                                                         \
        if (rc_)                                                                                                         \
            FAIL("%s gave %ld (%s)", #call, rc_, fi_strerror((int)-rc_));                                                \
    } while (0)

static struct shared {
    char blob[NODES_MAX][BLOB];
    atomic_int arrived;
} *shared;

static int node, nodes;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_eq *eq;
static fi_addr_t group;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* The same at all nodes. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* What a node gives in an operation. */
static uint64_t value(uint64_t op, int of, size_t i)
{
    return mix(op * 1000003 + of * 131 + i);
}

enum kind { BARRIER, BROADCAST, ALLREDUCE, ALLGATHER, REDUCE, SCATTER, GATHER, KINDS };

/* One operation: drawn from its number, alike at all nodes. */
struct op {
    uint64_t number;
    enum kind kind;
    int root;
    size_t count;
    uint64_t *in, *out;
};

static void begin(struct op *o, uint64_t number)
{
    static const size_t sizes[] = {1, 16, 500, 4000, VALUES_MAX};
    uint64_t r = mix(number);
    o->number = number;
    o->kind = r % KINDS;
    o->root = r / KINDS % nodes;
    o->count = 1 + (r >> 20) % sizes[(r >> 12) % 5];
    int all = o->kind == SCATTER && node == o->root ? nodes : 1;
    for (size_t i = 0; i < o->count * all; i++)
        o->in[i] = value(number, node, i);
    memset(o->out, 0xee, 8 * o->count * nodes);
    size_t n = o->count;
    switch (o->kind) {
    case BARRIER:
        OK(fi_barrier(ep, group, o));
        break;
    case BROADCAST:
        if (node == o->root)
            memcpy(o->out, o->in, 8 * n);
        OK(fi_broadcast(ep, o->out, n, NULL, group, o->root, FI_UINT64, 0, o));
        break;
    case ALLREDUCE:
        OK(fi_allreduce(ep, o->in, n, NULL, o->out, NULL, group, FI_UINT64, FI_SUM, 0, o));
        break;
    case ALLGATHER:
        OK(fi_allgather(ep, o->in, n, NULL, o->out, NULL, group, FI_UINT64, 0, o));
        break;
    case REDUCE:
        OK(fi_reduce(ep, o->in, n, NULL, o->out, NULL, group, o->root, FI_UINT64, FI_BXOR, 0, o));
        break;
    case SCATTER:
        OK(fi_scatter(ep, o->in, n, NULL, o->out, NULL, group, o->root, FI_UINT64, 0, o));
        break;
    default:
        OK(fi_gather(ep, o->in, n, NULL, o->out, NULL, group, o->root, FI_UINT64, 0, o));
    }
}

static void check(const struct op *o)
{
    int is = node == o->root;
    size_t parts = o->kind == ALLGATHER || (o->kind == GATHER && is) ? nodes : 1;
    if (o->kind == BARRIER || ((o->kind == GATHER || o->kind == REDUCE) && !is))
        parts = 0;
    for (size_t i = 0; i < parts * o->count; i++) {
        uint64_t expected = 0;
        switch (o->kind) {
        case BROADCAST:
            expected = value(o->number, o->root, i);
            break;
        case ALLREDUCE:
            for (int n = 0; n < nodes; n++)
                expected += value(o->number, n, i);
            break;
        case REDUCE:
            for (int n = 0; n < nodes; n++)
                expected ^= value(o->number, n, i);
            break;
        case SCATTER:
            expected = value(o->number, o->root, node * o->count + i);
            break;
        default:
            expected = value(o->number, i / o->count, i % o->count);
        }
        if (o->out[i] != expected)
            FAIL("operation %lu (kind %d, %zu values): value %zu is wrong", o->number, o->kind, o->count, i);
    }
    /* and nothing behind it */
    for (size_t i = parts * o->count; i < o->count * nodes; i++)
        if (o->out[i] != 0xeeeeeeeeeeeeeeee)
            FAIL("operation %lu (kind %d, %zu values) wrote behind its result", o->number, o->kind, o->count);
}

static void open_all(void)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    hints->caps = FI_MSG | FI_COLLECTIVE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("rerail");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_UNSPEC};
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(ep, &eq->fid, 0));
    OK(fi_enable(ep));
    size_t len = BLOB;
    OK(fi_getname(&ep->fid, shared->blob[node], &len));
    atomic_fetch_add(&shared->arrived, 1);
    for (double end = now() + 30; atomic_load(&shared->arrived) < nodes; usleep(1000))
        if (now() > end)
            FAIL("the others do not come");
    if (fi_av_insert(av, shared->blob, nodes, NULL, 0, NULL) != nodes)
        FAIL("the addresses of the others are not taken");
    struct fi_av_set_attr attr = {.start_addr = 0, .end_addr = nodes - 1, .stride = 1};
    struct fid_av_set *set;
    struct fid_mc *mc;
    struct fi_eq_entry entry;
    uint32_t event;
    fi_addr_t addr;
    OK(fi_av_set(av, &attr, &set, NULL));
    OK(fi_av_set_addr(set, &addr));
    OK(fi_join_collective(ep, addr, set, 0, &mc, NULL));
    if (fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0) != sizeof entry || event != FI_JOIN_COMPLETE)
        FAIL("the group is not made");
    group = fi_mc_addr(mc);
}

int main(int argc, char **argv)
{
    const char *which = getenv("RERAIL_NODE");
    if (argc != 4 || !which) {
        fprintf(stderr, "usage, in each node of a lab: collective FILE NODES SECONDS\n");
        return 2;
    }
    node = atoi(which);
    nodes = atoi(argv[2]);
    if (nodes < 2 || nodes > NODES_MAX || node >= nodes)
        FAIL("2 to %d nodes", NODES_MAX);
    int fd = open(argv[1], O_CREAT | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *shared))
        FAIL("cannot make %s", argv[1]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        FAIL("cannot map %s", argv[1]);
    open_all();

    static struct op ops[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        ops[i].in = malloc(8ul * VALUES_MAX * nodes);
        ops[i].out = malloc(8ul * VALUES_MAX * nodes);
        if (!ops[i].in || !ops[i].out)
            FAIL("no memory");
    }
    double end = now() + atof(argv[3]);
    unsigned long round = 0;
    for (int stop = 0; !stop; round++) {
        for (int i = 0; i < AT_ONCE; i++)
            begin(&ops[i], round * AT_ONCE + i);
        for (int left = AT_ONCE; left > 0; left--) {
            struct fi_cq_msg_entry entry;
            ssize_t n = fi_cq_sread(cq, &entry, 1, NULL, -1);
            if (n == -FI_EAGAIN) {
                left++;
                continue;
            }
            if (n != 1 || entry.flags != FI_COLLECTIVE)
                FAIL("an operation of round %lu ended with %zd", round, n);
            check(entry.op_context);
        }
        /* the first node says when it is over, by an operation as well: all stop after the same round */
        uint64_t word = node == 0 && now() > end;
        OK(fi_broadcast(ep, &word, 1, NULL, group, 0, FI_UINT64, 0, &word));
        struct fi_cq_msg_entry entry;
        ssize_t n;
        while ((n = fi_cq_sread(cq, &entry, 1, NULL, -1)) == -FI_EAGAIN)
            ;
        if (n != 1 || entry.op_context != &word)
            FAIL("the word of round %lu ended with %zd", round, n);
        stop = word != 0;
    }
    OK(fi_close(&ep->fid));
    printf("collective: node %d: %lu operations, every byte right\n", node, round * AT_ONCE);
    return 0;
}
