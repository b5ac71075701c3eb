/* collective: four processes, joined by Rerail over loopback, and what their collective operations must do.
 *
 * Needs FI_PROVIDER_PATH and FI_PROVIDER=rerail. The processes share a piece of memory for their addresses, and to wait for each other
 * beside the fabric. The parent watches: a child that does not end in time is a hang. Compiled and run by library.rs.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <rdma/fi_collective.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define RANKS 4
#define BIG (1 << 18) /* values of eight bytes: 2 MiB, which goes in pieces */

static struct shared {
    char blob[RANKS][BLOB];
    atomic_int arrived;
    atomic_int come; /* set by a rank for the others */
} *shared;

static int rank;
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_eq *eq;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t everybody[RANKS];

/* Waits for all processes, beside the fabric. */
static void meet(void)
{
    static int round;
    round++;
    atomic_fetch_add(&shared->arrived, 1);
    for (double end = now() + PATIENCE_S; atomic_load(&shared->arrived) < round * RANKS; usleep(100))
        if (now() > end)
            FAIL("the others do not come");
}

static void open_all(void)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_TAGGED | FI_COLLECTIVE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("rerail");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    CHECK(info->caps & FI_COLLECTIVE);
    fi_freeinfo(hints);
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
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
    OK(fi_getname(&ep->fid, shared->blob[rank], &len));
    meet();
    CHECK(fi_av_insert(av, shared->blob, RANKS, everybody, 0, NULL) == RANKS);
    for (int i = 0; i < RANKS; i++)
        CHECK(everybody[i] == (fi_addr_t)i);
}

static struct fid_av_set *set_of(fi_addr_t first, fi_addr_t last, uint64_t stride)
{
    struct fi_av_set_attr attr = {.start_addr = first, .end_addr = last, .stride = stride};
    struct fid_av_set *set;
    OK(fi_av_set(av, &attr, &set, NULL));
    return set;
}

/* Reads the event of a join; asleep if `sleep`. */
static void joined(struct fid_mc *mc, void *context, int sleep)
{
    uint32_t event;
    struct fi_eq_entry entry;
    ssize_t n;
    if (sleep)
        n = fi_eq_sread(eq, &event, &entry, sizeof entry, PATIENCE_S * 1000, 0);
    else
        for (double end = now() + PATIENCE_S;
             (n = fi_eq_read(eq, &event, &entry, sizeof entry, 0)) == -FI_EAGAIN;)
            if (now() > end)
                FAIL("the group is never made");
    CHECK(n == sizeof entry && event == FI_JOIN_COMPLETE);
    CHECK(entry.fid == &mc->fid && entry.context == context);
}

/* Makes a group, and forgets the set. */
static struct fid_mc *join(struct fid_av_set *set)
{
    fi_addr_t addr;
    struct fid_mc *mc;
    OK(fi_av_set_addr(set, &addr));
    OK(fi_join_collective(ep, addr, set, 0, &mc, &mc));
    joined(mc, &mc, 0);
    OK(fi_close(&set->fid));
    return mc;
}

/* The completion of one operation; asleep if `sleep`. */
static void done(void *context, int sleep)
{
    struct fi_cq_tagged_entry entry;
    ssize_t n;
    if (sleep)
        n = fi_cq_sread(cq, &entry, 1, NULL, PATIENCE_S * 1000);
    else
        for (double end = now() + PATIENCE_S; (n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN;)
            if (now() > end)
                FAIL("waited in vain");
    CHECK(n == 1 && entry.op_context == context && entry.flags == FI_COLLECTIVE);
}

/* Ends in an error, which is returned. */
static int failed(void *context)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry err = {0};
    ssize_t n;
    for (double end = now() + PATIENCE_S; (n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN;)
        if (now() > end)
            FAIL("waited in vain");
    CHECK(n == -FI_EAVAIL && fi_cq_readerr(cq, &err, 0) == 1);
    CHECK(err.op_context == context && err.flags == FI_COLLECTIVE);
    CHECK(!strstr(fi_cq_strerror(cq, err.prov_errno, NULL, NULL, 0), "unknown"));
    return err.err;
}

static void query(void)
{
    running = "query";
    struct {
        enum fi_collective_op coll;
        enum fi_op op;
        enum fi_datatype type;
        int expected;
        size_t size;
    } asks[] = {
        {FI_BARRIER, FI_NOOP, FI_VOID, 0, 0},
        {FI_BROADCAST, FI_NOOP, FI_UINT16, 0, 2},
        {FI_ALLGATHER, FI_NOOP, FI_DOUBLE, 0, 8},
        {FI_SCATTER, FI_NOOP, FI_INT8, 0, 1},
        {FI_GATHER, FI_NOOP, FI_DOUBLE_COMPLEX, 0, 16},
        {FI_ALLREDUCE, FI_SUM, FI_UINT64, 0, 8},
        {FI_REDUCE, FI_BXOR, FI_UINT32, 0, 4},
        {FI_ALLREDUCE, FI_BXOR, FI_DOUBLE, -FI_EOPNOTSUPP, 0},
        {FI_ALLREDUCE, FI_CSWAP, FI_UINT64, -FI_EOPNOTSUPP, 0},
        {FI_ALLREDUCE, FI_ATOMIC_READ, FI_UINT64, -FI_EOPNOTSUPP, 0},
        {FI_BROADCAST, FI_NOOP, FI_VOID, -FI_EOPNOTSUPP, 0},
        {FI_ALLTOALL, FI_NOOP, FI_UINT64, -FI_EOPNOTSUPP, 0},
        {FI_REDUCE_SCATTER, FI_SUM, FI_UINT64, -FI_EOPNOTSUPP, 0},
    };
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        struct fi_collective_attr attr = {.op = asks[i].op, .datatype = asks[i].type};
        int rc = fi_query_collective(domain, asks[i].coll, &attr, 0);
        if (rc != asks[i].expected)
            FAIL("question %zu gave %d", i, rc);
        if (!rc)
            CHECK(attr.datatype_attr.size == asks[i].size && attr.max_members >= RANKS);
    }
    struct fi_collective_attr attr = {.mode = 1};
    CHECK(fi_query_collective(domain, FI_BARRIER, &attr, 0) == -FI_EINVAL);
}

static void sets(void)
{
    running = "sets";
    struct fid_av_set *odd = set_of(1, 3, 2), *low = set_of(0, 1, 1), *none, *all;
    struct fi_av_set_attr attr = {.start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL, .count = 2};
    OK(fi_av_set(av, &attr, &none, NULL));
    CHECK(fi_av_set_insert(odd, 1) == -FI_EINVAL && fi_av_set_insert(odd, RANKS) == -FI_EINVAL);
    CHECK(fi_av_set_remove(odd, 0) == -FI_EINVAL);
    OK(fi_av_set_union(none, low));
    CHECK(fi_av_set_insert(none, 3) == -FI_ENOMEM && fi_av_set_union(none, odd) == -FI_ENOMEM);
    OK(fi_av_set_intersect(none, odd)); /* 1 */
    OK(fi_av_set_insert(none, 3));
    OK(fi_av_set_diff(none, low)); /* 3 */
    CHECK(fi_av_set_insert(none, 3) == -FI_EINVAL);
    OK(fi_av_set_remove(none, 3));
    attr = (struct fi_av_set_attr){.start_addr = FI_ADDR_NOTAVAIL, .end_addr = 2};
    CHECK(fi_av_set(av, &attr, &all, NULL) == -FI_EINVAL);
    attr = (struct fi_av_set_attr){.end_addr = 2, .stride = 0};
    CHECK(fi_av_set(av, &attr, &all, NULL) == -FI_EINVAL);
    attr = (struct fi_av_set_attr){.end_addr = 2, .stride = 1, .count = 2};
    CHECK(fi_av_set(av, &attr, &all, NULL) == -FI_EINVAL);
    attr = (struct fi_av_set_attr){.flags = FI_ALLTOALL_SET};
    CHECK(fi_av_set(av, &attr, &all, NULL) == -FI_EOPNOTSUPP);
    attr = (struct fi_av_set_attr){.flags = FI_UNIVERSE | FI_BARRIER_SET};
    OK(fi_av_set(av, &attr, &all, NULL));
    CHECK(fi_av_set_insert(all, RANKS - 1) == -FI_EINVAL);
    OK(fi_close(&all->fid));
    OK(fi_close(&none->fid));
    OK(fi_close(&odd->fid));
    OK(fi_close(&low->fid));
}

/* Every kind, with every root, small and large. */
static void every_kind(struct fid_mc *mc)
{
    fi_addr_t group = fi_mc_addr(mc);
    int context;
    size_t counts[] = {0, 1, 1000, BIG};
    uint64_t *in = malloc(BIG * RANKS * 8), *out = malloc(BIG * RANKS * 8);
    for (size_t c = 0; c < 4; c++) {
        size_t n = counts[c];
        running = "barrier";
        OK(fi_barrier(ep, group, &context));
        done(&context, 0);

        running = "all-reduce";
        for (size_t i = 0; i < n; i++)
            in[i] = i * (rank + 1);
        memset(out, 0x5a, BIG * RANKS * 8);
        OK(fi_allreduce(ep, in, n, NULL, out, NULL, group, FI_UINT64, FI_SUM, 0, &context));
        done(&context, 0);
        for (size_t i = 0; i < n; i++)
            CHECK(out[i] == i * (RANKS * (RANKS + 1) / 2) && in[i] == i * (rank + 1));
        CHECK(out[n] == 0x5a5a5a5a5a5a5a5a);
        /* its result may lie where its input is */
        OK(fi_allreduce(ep, in, n, NULL, in, NULL, group, FI_UINT64, FI_MAX, 0, &context));
        done(&context, 0);
        for (size_t i = 0; i < n; i++)
            CHECK(in[i] == i * RANKS);

        running = "all-gather";
        for (size_t i = 0; i < n; i++)
            in[i] = 1000000 * rank + i;
        OK(fi_allgather(ep, in, n, NULL, out, NULL, group, FI_UINT64, 0, &context));
        done(&context, 0);
        for (size_t i = 0; i < n * RANKS; i++)
            CHECK(out[i] == 1000000 * (i / n) + i % n);

        for (int root = 0; root < RANKS; root++) {
            int is = rank == root;
            running = "broadcast";
            for (size_t i = 0; i < n; i++)
                in[i] = is ? i ^ root : 7;
            OK(fi_broadcast(ep, in, n, NULL, group, root, FI_UINT64, 0, &context));
            done(&context, 0);
            for (size_t i = 0; i < n; i++)
                CHECK(in[i] == (i ^ root));

            running = "scatter";
            for (size_t i = 0; is && i < n * RANKS; i++)
                in[i] = i + root;
            OK(fi_scatter(ep, is ? in : NULL, n, NULL, out, NULL, group, root, FI_UINT64, 0, &context));
            done(&context, 0);
            for (size_t i = 0; i < n; i++)
                CHECK(out[i] == rank * n + i + root);

            running = "gather";
            OK(fi_gather(ep, out, n, NULL, is ? in : NULL, NULL, group, root, FI_UINT64, 0, &context));
            done(&context, 0);
            for (size_t i = 0; is && i < n * RANKS; i++)
                CHECK(in[i] == i + root);

            running = "reduce";
            for (size_t i = 0; i < n; i++)
                in[i] = 1ull << (8 * rank + i % 8);
            OK(fi_reduce(ep, in, n, NULL, is ? out : NULL, NULL, group, root, FI_UINT64, FI_BOR, 0, &context));
            done(&context, 0);
            for (size_t i = 0; is && i < n; i++)
                CHECK(out[i] == 0x01010101ull << i % 8);
        }
    }
    free(in);
    free(out);
}

/* Many operations at once, of two groups with other operations and messages between them: nothing is mixed up. */
static void crowd(struct fid_mc *mc)
{
    running = "crowd";
    struct fid_mc *again = join(set_of(0, RANKS - 1, 1));
    CHECK(fi_mc_addr(again) != fi_mc_addr(mc));
    enum { N = 64 };
    static uint64_t in[N], out[N], word = 99, heard;
    struct fi_cq_tagged_entry entry;
    fi_addr_t next = (rank + 1) % RANKS;
    OK(fi_trecv(ep, &heard, 8, NULL, FI_ADDR_UNSPEC, 0, ~0ull, &heard));
    for (int i = 0; i < N; i++) {
        in[i] = rank + i;
        fi_addr_t group = fi_mc_addr(i % 3 ? mc : again);
        OK(fi_allreduce(ep, &in[i], 1, NULL, &out[i], NULL, group, FI_UINT64, FI_SUM, 0, &out[i]));
        if (i == N / 2)
            OK(fi_tsend(ep, &word, 8, NULL, next, 5, &word));
    }
    int messages = 0;
    for (int left = N + 2; left > 0;) {
        ssize_t n = fi_cq_sread(cq, &entry, 1, NULL, PATIENCE_S * 1000);
        CHECK(n == 1);
        messages += entry.flags != FI_COLLECTIVE;
        left--;
    }
    CHECK(messages == 2 && heard == 99);
    for (int i = 0; i < N; i++)
        CHECK(out[i] == (uint64_t)(RANKS * i + RANKS * (RANKS - 1) / 2));
    OK(fi_close(&again->fid));
}

/* Groups that are part of all, and that are made while their members sleep. */
static void parts(void)
{
    running = "parts";
    struct fid_av_set *odd = set_of(1, RANKS - 1, 2);
    fi_addr_t addr;
    struct fid_mc *mc = NULL;
    OK(fi_av_set_addr(odd, &addr));
    if (rank % 2) {
        if (rank == 1)
            usleep(200000); /* the others sleep by now */
        OK(fi_join_collective(ep, addr, odd, 0, &mc, &odd));
        joined(mc, &odd, 1);
        double in = rank, out;
        if (rank == 3)
            usleep(100000);
        OK(fi_allreduce(ep, &in, 1, NULL, &out, NULL, fi_mc_addr(mc), FI_DOUBLE, FI_PROD, 0, &out));
        done(&out, 1);
        CHECK(out == 3.0);
        /* the root is an address: 3 is the second member */
        uint32_t word = rank == 3 ? 77 : 0;
        OK(fi_broadcast(ep, &word, 1, NULL, fi_mc_addr(mc), 3, FI_UINT32, 0, &word));
        done(&word, 1);
        CHECK(word == 77);
        CHECK(fi_broadcast(ep, &word, 1, NULL, fi_mc_addr(mc), 0, FI_UINT32, 0, &word) == -FI_EINVAL);
        OK(fi_close(&mc->fid));
    } else {
        CHECK(fi_join_collective(ep, addr, odd, 0, &mc, NULL) == -FI_EINVAL && !mc);
    }
    OK(fi_close(&odd->fid));
    meet();
}

static void bad_input(struct fid_mc *mc)
{
    running = "bad input";
    fi_addr_t group = fi_mc_addr(mc), addr;
    uint64_t v = 0;
    if (rank)
        meet();
    OK(fi_barrier(ep, group, &v));
    if (!rank) {
        CHECK(fi_close(&mc->fid) == -FI_EBUSY);
        meet();
    }
    done(&v, 1);
    CHECK(fi_barrier(ep, 12345, &v) == -FI_EINVAL);
    CHECK(fi_barrier(ep, FI_ADDR_NOTAVAIL, &v) == -FI_EINVAL);
    CHECK(fi_barrier2(ep, group, FI_FENCE, &v) == -FI_EOPNOTSUPP);
    CHECK(fi_allreduce(ep, NULL, 1, NULL, &v, NULL, group, FI_UINT64, FI_SUM, 0, &v) == -FI_EINVAL);
    CHECK(fi_allreduce(ep, &v, 1, NULL, NULL, NULL, group, FI_UINT64, FI_SUM, 0, &v) == -FI_EINVAL);
    CHECK(fi_allreduce(ep, &v, 1, NULL, &v, NULL, group, FI_DOUBLE, FI_BXOR, 0, &v) == -FI_EOPNOTSUPP);
    CHECK(fi_allreduce(ep, &v, SIZE_MAX / 4, NULL, &v, NULL, group, FI_UINT64, FI_SUM, 0, &v) == -FI_EMSGSIZE);
    CHECK(fi_broadcast(ep, &v, 1, NULL, group, RANKS, FI_UINT64, 0, &v) == -FI_EADDRNOTAVAIL);
    CHECK(fi_alltoall(ep, &v, 1, NULL, &v, NULL, group, FI_UINT64, 0, &v) == -FI_ENOSYS);
    struct fid_av_set *set = set_of(0, RANKS - 1, 1);
    struct fid_mc *other = NULL;
    OK(fi_av_set_addr(set, &addr));
    CHECK(fi_join_collective(ep, 77, set, 0, &other, NULL) == -FI_EINVAL);
    CHECK(fi_join_collective(ep, addr, set, FI_FENCE, &other, NULL) == -FI_EBADFLAGS);
    CHECK(fi_join(ep, shared->blob[0], 0, &other, NULL) == -FI_ENOSYS);
    /* a group is used only when it is made; one that is closed before is made all the same, without an event */
    if (rank == 0)
        usleep(50000);
    OK(fi_join_collective(ep, group, set, 0, &other, &other));
    if (rank != 0)
        CHECK(fi_barrier(ep, fi_mc_addr(other), &v) == -FI_EINVAL);
    if (rank == 1)
        OK(fi_close(&other->fid));
    else
        joined(other, &other, 0);
    meet();
    uint32_t event;
    struct fi_eq_entry entry;
    CHECK(fi_eq_read(eq, &event, &entry, sizeof entry, 0) == -FI_EAGAIN);
    if (rank != 1)
        OK(fi_close(&other->fid));
    OK(fi_close(&set->fid));
    meet();
}

/* Operations that do not fit end in an error and write nothing beyond. */
static void mismatch(struct fid_mc *mc)
{
    running = "mismatch";
    static char in[4096], out[4096];
    size_t n = rank == 2 ? 100 : 200;
    memset(out, 0x33, sizeof out);
    OK(fi_allreduce(ep, in, n, NULL, out, NULL, fi_mc_addr(mc), FI_INT8, FI_SUM, 0, in));
    CHECK(failed(in) == FI_EINVAL);
    for (size_t i = n; i < sizeof out; i++)
        CHECK(out[i] == 0x33);
    meet();
    /* and the group goes on */
    uint64_t v = 1, sum = 0;
    OK(fi_allreduce(ep, &v, 1, NULL, &sum, NULL, fi_mc_addr(mc), FI_UINT64, FI_SUM, 0, &v));
    done(&v, 0);
    CHECK(sum == RANKS);
}

/* A member dies: no member waits for ever, whether it communicates with the dead one or only with others. */
static void death(struct fid_mc *mc)
{
    running = "death";
    uint64_t v = 1, sum = 0;
    meet();
    if (rank == RANKS - 1)
        kill(getpid(), SIGKILL);
    OK(fi_allreduce(ep, &v, 1, NULL, &sum, NULL, fi_mc_addr(mc), FI_UINT64, FI_SUM, 0, &v));
    int err = failed(&v);
    CHECK(err == FI_ECONNABORTED || err == FI_ECONNRESET || err == FI_EHOSTUNREACH);
    OK(fi_barrier(ep, fi_mc_addr(mc), &v));
    failed(&v);
}

static int child(void)
{
    open_all();
    query();
    sets();
    struct fid_mc *all = join(set_of(0, RANKS - 1, 1));
    every_kind(all);
    crowd(all);
    parts();
    bad_input(all);
    mismatch(all);
    death(all);
    running = "close";
    /* in any order, and while a group waits for the dead member */
    struct fid_av_set *set = set_of(0, RANKS - 1, 1);
    struct fid_mc *never;
    fi_addr_t addr;
    OK(fi_av_set_addr(set, &addr));
    OK(fi_join_collective(ep, addr, set, 0, &never, NULL));
    OK(fi_close(&ep->fid));
    OK(fi_close(&all->fid));
    OK(fi_close(&never->fid));
    OK(fi_close(&set->fid));
    OK(fi_close(&eq->fid));
    OK(fi_close(&cq->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
    return 0;
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    pid_t pids[RANKS];
    for (rank = 0; rank < RANKS; rank++)
        if (!(pids[rank] = fork())) {
            alarm(4 * PATIENCE_S);
            exit(child());
        }
    int bad = 0;
    for (int i = 0; i < RANKS; i++) {
        int status;
        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
        int killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (i == RANKS - 1 ? !killed : status != 0) {
            fprintf(stderr, "rank %d ended with %#x\n", i, status);
            bad = 1;
        }
    }
    return bad;
}
