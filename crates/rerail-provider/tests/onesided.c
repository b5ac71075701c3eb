/* onesided: registered memory, and the calls that read, write and update it, with two endpoints in one process, each of which is
 * also its own peer.
 *
 * Usage: onesided [name of one test]. Needs FI_PROVIDER_PATH and FI_PROVIDER=rerail. Every test runs with the registration
 * modes that MPIs ask for (addresses, and keys of the provider), and without any (offsets, and keys of the program). Ends at
 * the first that fails. Compiled and run by library.rs.
 */
#include "sides.h"

#define ACCESS (FI_REMOTE_READ | FI_REMOTE_WRITE)
#define MPI_MODE (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

static int mode;

/* Registered memory. */
struct region {
    struct fid_mr *mr;
    char *base;
    uint64_t key;
};

static uint64_t wanted_key(void)
{
    static uint64_t last = 1000;
    return ++last;
}

static void open_region(struct region *r, void *base, size_t len, uint64_t access)
{
    uint64_t wanted = wanted_key();
    r->base = base;
    OK(fi_mr_reg(domain, base, len, access, 0, wanted, 0, &r->mr, NULL));
    r->key = fi_mr_key(r->mr);
    CHECK(mode || r->key == wanted);
    CHECK(fi_mr_desc(r->mr));
}

static void close_region(struct region *r)
{
    OK(fi_close(&r->mr->fid));
}

/* How peers name a place in it. */
static uint64_t at(const struct region *r, size_t offset)
{
    return mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)r->base + offset : offset;
}

/* The only thing that happened is that `a` completed this. */
static void completed(uint64_t flags, const void *context)
{
    UNTIL(got_a.count || got_a.error);
    if (got_a.error)
        FAIL("%p failed: %s (%s)", got_a.err.op_context, fi_strerror(got_a.err.err),
             fi_cq_strerror(a.cq, got_a.err.prov_errno, NULL, NULL, 0));
    CHECK(got_a.count == 1 && got_a.entry[0].op_context == context && got_a.entry[0].flags == flags);
    forget();
}

static void failed(int err, const void *context)
{
    UNTIL(got_a.count || got_a.error);
    CHECK(got_a.error && got_a.count == 0 && got_a.err.op_context == context);
    if (got_a.err.err != err)
        FAIL("failed with %s, not %s", fi_strerror(got_a.err.err), fi_strerror(err));
    CHECK(strlen(fi_cq_strerror(a.cq, got_a.err.prov_errno, NULL, NULL, 0)) > 10);
    forget();
}

/* ---- reads and writes ---- */

static void memory_of_a_peer_and_of_oneself_is_written_and_read(void)
{
    static char there[6 << 20], out[6 << 20], in[6 << 20];
    const size_t sizes[] = {1, 8, 1000, 1400, 5000, 16384, 100000, 6 << 20};
    fi_addr_t peers[2] = {b.addr, a.addr};
    struct region r;
    open_region(&r, there, sizeof there, ACCESS);
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < 8; i++) {
            size_t n = sizes[i], from = i == 7 ? 0 : 77;
            fill(out, n, i);
            memset(there, 0x55, sizeof there);
            AGAIN(fi_write(a.ep, out, n, NULL, peers[p], at(&r, from), r.key, out));
            completed(FI_RMA | FI_WRITE, out);
            /* Complete is placed. */
            CHECK(same(there + from, n, i));
            CHECK(from == 0 || (there[from - 1] == 0x55 && there[from + n] == 0x55));
            memset(in, 0, n + 1);
            AGAIN(fi_read(a.ep, in, n, NULL, peers[p], at(&r, from), r.key, in));
            completed(FI_RMA | FI_READ, in);
            CHECK(same(in, n, i) && (n == sizeof in || in[n] == 0));
        }
    }
    quiet();
    CHECK(got_b.count == 0); /* the target is told nothing */
    close_region(&r);
}

static void an_injected_write_completes_nothing_and_frees_the_buffer(void)
{
    static char there[20000];
    char out[1024];
    struct region r;
    open_region(&r, there, sizeof there, ACCESS);
    CHECK(info->tx_attr->inject_size >= sizeof out);
    fill(out, sizeof out, 3);
    AGAIN(fi_inject_write(a.ep, out, sizeof out, b.addr, at(&r, 10), r.key));
    memset(out, 0, sizeof out);
    UNTIL(same(there + 10, 1024, 3));
    struct iovec v = {out, 100};
    struct fi_rma_iov to = {at(&r, 5000), 100, r.key};
    struct fi_msg_rma m = {.msg_iov = &v, .iov_count = 1, .addr = b.addr, .rma_iov = &to, .rma_iov_count = 1, .context = &v};
    fill(out, 100, 4);
    AGAIN(fi_writemsg(a.ep, &m, FI_INJECT | FI_COMPLETION | FI_MORE));
    memset(out, 0, sizeof out);
    completed(FI_RMA | FI_WRITE, &v);
    CHECK(same(there + 5000, 100, 4));
    quiet();
    CHECK(got_a.count == 0);
    CHECK(fi_inject_write(a.ep, there, 17000, b.addr, at(&r, 0), r.key) == -FI_EMSGSIZE);
    close_region(&r);
}

static void data_that_comes_with_a_write_is_told_to_the_target(void)
{
    static char there[300000], out[300000];
    const size_t sizes[] = {0, 10, 3000, 300000};
    struct region r;
    open_region(&r, there, sizeof there, ACCESS);
    for (int i = 0; i < 4; i++) {
        size_t n = sizes[i];
        fill(out, n, 10 + i);
        AGAIN(fi_writedata(a.ep, out, n, NULL, 0xabc00 + i, b.addr, at(&r, 0), r.key, out));
        UNTIL(got_b.count == 1);
        struct fi_cq_tagged_entry *e = &got_b.entry[0];
        CHECK(e->flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA));
        CHECK(e->data == 0xabc00u + i && e->len == n && got_b.src[0] == a.addr);
        CHECK(same(there, n, 10 + i));
        completed(FI_RMA | FI_WRITE, out);
    }
    AGAIN(fi_inject_writedata(a.ep, "0123456789", 10, 99, b.addr, at(&r, 0), r.key));
    UNTIL(got_b.count == 1);
    CHECK(got_b.entry[0].data == 99 && !memcmp(there, "0123456789", 10));
    /* To oneself. */
    forget();
    AGAIN(fi_inject_writedata(a.ep, "abc", 3, 77, a.addr, at(&r, 0), r.key));
    UNTIL(got_a.count == 1);
    CHECK(got_a.entry[0].flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && got_a.entry[0].data == 77);
    close_region(&r);
}

static void pieces_on_both_sides_need_not_agree(void)
{
    static char there[3][100000], out[250000], in[250000];
    /* One region of several pieces, and one of one. */
    struct iovec pieces[2] = {{there[0], 70000}, {there[1], 30000}};
    struct region joined = {.base = there[0]}, single;
    OK(fi_mr_regv(domain, pieces, 2, ACCESS, 0, wanted_key(), 0, &joined.mr, NULL));
    joined.key = fi_mr_key(joined.mr);
    open_region(&single, there[2], sizeof there[2], ACCESS);
    const size_t totals[] = {600, 120000};
    for (int i = 0; i < 2; i++) {
        size_t n = totals[i], third = n / 3;
        struct iovec from[3] = {{out, third}, {out + third, 1}, {out + third + 1, n - third - 1}};
        /* The first remote piece crosses the border of the region's pieces. */
        struct fi_rma_iov to[2] = {{at(&joined, 70000 - 100), n / 2, joined.key}, {at(&single, 5), n - n / 2, single.key}};
        if (n / 2 > 30100)
            to[0].addr = at(&joined, 100000 - n / 2);
        struct fi_msg_rma m = {.msg_iov = from, .iov_count = 3, .addr = b.addr, .rma_iov = to, .rma_iov_count = 2};
        fill(out, n, 20 + i);
        memset(there, 0x55, sizeof there);
        AGAIN(fi_writemsg(a.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
        completed(FI_RMA | FI_WRITE, NULL);
        memset(in, 0, sizeof in);
        struct iovec back[2] = {{in, 17}, {in + 17, n - 17}};
        m.msg_iov = back;
        m.iov_count = 2;
        AGAIN(fi_readmsg(a.ep, &m, FI_COMPLETION));
        completed(FI_RMA | FI_READ, NULL);
        CHECK(same(in, n, 20 + i));
        /* Where it lies, seen from here. */
        size_t begin = to[0].addr - at(&joined, 0), head = 70000 - begin;
        CHECK(begin < 70000 && head < n / 2);
        memcpy(in, there[0] + begin, head);
        memcpy(in + head, there[1], n / 2 - head);
        memcpy(in + n / 2, there[2] + 5, n - n / 2);
        CHECK(same(in, n, 20 + i));
        CHECK(there[0][begin - 1] == 0x55 && there[2][4] == 0x55 && there[2][5 + n - n / 2] == 0x55);
    }
    struct iovec v[2] = {{out, 10}, {out + 10, 20}};
    AGAIN(fi_writev(a.ep, v, NULL, 2, b.addr, at(&single, 0), single.key, NULL));
    completed(FI_RMA | FI_WRITE, NULL);
    CHECK(!memcmp(there[2], out, 30));
    AGAIN(fi_readv(a.ep, v, NULL, 2, b.addr, at(&single, 1000), single.key, NULL));
    completed(FI_RMA | FI_READ, NULL);
    CHECK(!memcmp(there[2] + 1000, out, 30));
    /* As many bytes here as there, in not too many pieces. */
    struct fi_rma_iov to = {at(&single, 0), 29, single.key};
    struct fi_msg_rma m = {.msg_iov = v, .iov_count = 2, .addr = b.addr, .rma_iov = &to, .rma_iov_count = 1};
    CHECK(fi_writemsg(a.ep, &m, FI_COMPLETION) == -FI_EINVAL);
    m.rma_iov_count = info->tx_attr->rma_iov_limit + 1;
    CHECK(fi_writemsg(a.ep, &m, FI_COMPLETION) == -FI_EINVAL);
    close_region(&joined);
    close_region(&single);
}

static void nothing_is_a_length_like_any_other(void)
{
    struct region none, some;
    char there[8], out[1];
    open_region(&none, NULL, 0, ACCESS);
    open_region(&some, there, sizeof there, ACCESS);
    AGAIN(fi_write(a.ep, NULL, 0, NULL, b.addr, at(&some, 8), some.key, out));
    completed(FI_RMA | FI_WRITE, out);
    AGAIN(fi_read(a.ep, out, 0, NULL, b.addr, at(&none, 0), none.key, out));
    completed(FI_RMA | FI_READ, out);
    AGAIN(fi_write(a.ep, out, 1, NULL, b.addr, at(&none, 0), none.key, out));
    failed(FI_EACCES, out);
    close_region(&none);
    close_region(&some);
}

static void what_is_not_allowed_fails_and_touches_nothing(void)
{
    static char there[100000], out[100000];
    const size_t sizes[] = {10, 100000};
    struct region readable, writable, both;
    open_region(&readable, there, sizeof there, FI_REMOTE_READ);
    open_region(&writable, there, sizeof there, FI_REMOTE_WRITE);
    open_region(&both, there, sizeof there - 5, ACCESS);
    fi_addr_t peers[2] = {b.addr, a.addr};
    for (int i = 0; i < 4; i++) {
        size_t n = sizes[i % 2];
        fi_addr_t peer = peers[i / 2];
        memset(out, 0xee, sizeof out);
        memset(there, 0x55, sizeof there);
        AGAIN(fi_write(a.ep, out, n, NULL, peer, at(&readable, 0), readable.key, &n));
        failed(FI_EACCES, &n);
        AGAIN(fi_read(a.ep, out, n, NULL, peer, at(&writable, 0), writable.key, &n));
        failed(FI_EACCES, &n);
        AGAIN(fi_write(a.ep, out, n, NULL, peer, at(&both, sizeof there - 5 - n + 1), both.key, &n));
        failed(FI_EACCES, &n);
        AGAIN(fi_read(a.ep, out, n, NULL, peer, at(&both, 0) - 1, both.key, &n));
        failed(FI_EACCES, &n);
        AGAIN(fi_read(a.ep, out, n, NULL, peer, UINT64_MAX - 3, both.key, &n));
        failed(FI_EACCES, &n);
        AGAIN(fi_write(a.ep, out, n, NULL, peer, at(&both, 0), 0x123456789abc, &n));
        failed(FI_ENOKEY, &n);
        /* An injected write tells its error too. */
        AGAIN(fi_inject_write(a.ep, out, 10, peer, at(&readable, 0), readable.key));
        failed(FI_EACCES, NULL);
        /* A write that is refused brings no data. */
        AGAIN(fi_writedata(a.ep, out, n, NULL, 5, peer, at(&readable, 0), readable.key, &n));
        failed(FI_EACCES, &n);
        for (size_t k = 0; k < sizeof there; k++)
            CHECK(there[k] == 0x55 && out[k] == (char)0xee);
    }
    CHECK(got_b.count == 0);
    CHECK(fi_write(a.ep, out, 1, NULL, 4711, at(&both, 0), both.key, NULL) == -FI_EADDRNOTAVAIL);
    struct iovec v = {out, 1};
    struct fi_rma_iov to = {at(&both, 0), 1, both.key};
    struct fi_msg_rma m = {.msg_iov = &v, .iov_count = 1, .addr = b.addr, .rma_iov = &to, .rma_iov_count = 1};
    CHECK(fi_writemsg(a.ep, &m, FI_FENCE) == -FI_EOPNOTSUPP);
    close_region(&readable);
    close_region(&writable);
    close_region(&both);
}

/* ---- regions ---- */

static void a_closed_region_is_out_of_reach_and_its_key_is_free(void)
{
    char there[64] = "before", out[8] = "after";
    struct region r;
    open_region(&r, there, sizeof there, ACCESS);
    AGAIN(fi_write(a.ep, out, 8, NULL, b.addr, at(&r, 0), r.key, NULL));
    completed(FI_RMA | FI_WRITE, NULL);
    CHECK(!strcmp(there, "after"));
    close_region(&r);
    strcpy(there, "before");
    AGAIN(fi_write(a.ep, out, 8, NULL, b.addr, at(&r, 0), r.key, NULL));
    failed(FI_ENOKEY, NULL);
    CHECK(!strcmp(there, "before"));
    struct fid_mr *first, *second;
    OK(fi_mr_reg(domain, there, 8, ACCESS, 0, r.key, 0, &first, NULL));
    int again = fi_mr_reg(domain, there, 8, ACCESS, 0, r.key, 0, &second, NULL);
    if (mode & FI_MR_PROV_KEY) {
        OK(again);
        CHECK(fi_mr_key(first) != fi_mr_key(second));
        OK(fi_close(&second->fid));
    } else {
        CHECK(again == -FI_ENOKEY && fi_mr_key(first) == r.key);
    }
    struct fid_cntr *cntr;
    OK(fi_cntr_open(domain, NULL, &cntr, NULL));
    CHECK(fi_mr_bind(first, &cntr->fid, FI_REMOTE_WRITE) == -FI_ENOSYS);
    OK(fi_mr_bind(first, &a.ep->fid, 0));
    OK(fi_close(&cntr->fid));
    OK(fi_close(&first->fid));
    CHECK(fi_mr_reg(domain, there, 8, ACCESS, 1, 1, 0, &first, NULL) == -FI_EINVAL);
    CHECK(fi_mr_reg(domain, there, 8, ACCESS, 0, 1, FI_RMA_EVENT, &first, NULL) == -FI_EBADFLAGS);
    struct iovec v = {there, sizeof there};
    struct fi_mr_attr attr = {.mr_iov = &v, .iov_count = 1, .access = ACCESS, .requested_key = wanted_key()};
    OK(fi_mr_regattr(domain, &attr, 0, &first));
    AGAIN(fi_write(a.ep, out, 8, NULL, b.addr, at(&r, 0), fi_mr_key(first), NULL));
    completed(FI_RMA | FI_WRITE, NULL);
    CHECK(!strcmp(there, "after"));
    OK(fi_close(&first->fid));
}

static void reopen(struct side *s)
{
    size_t len = BLOB;
    OK(fi_endpoint(domain, info, &s->ep, NULL));
    OK(fi_ep_bind(s->ep, &av->fid, 0));
    OK(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(s->ep));
    OK(fi_getname(&s->ep->fid, s->blob, &len));
    CHECK(fi_av_insert(av, s->blob, 1, &s->addr, 0, NULL) == 1);
}

static void regions_outlive_all_endpoints_and_may_be_there_before_them(void)
{
    char there[3][8] = {"", "", ""};
    struct region r[3];
    open_region(&r[0], there[0], 8, ACCESS);
    open_region(&r[1], there[1], 8, ACCESS);
    /* The last endpoint ends the runtime; the next one starts another. */
    OK(fi_close(&a.ep->fid));
    OK(fi_close(&b.ep->fid));
    close_region(&r[1]);
    open_region(&r[2], there[2], 8, ACCESS);
    reopen(&a);
    reopen(&b);
    for (int i = 0; i < 3; i += 2) {
        AGAIN(fi_write(a.ep, "hello", 6, NULL, b.addr, at(&r[i], 0), r[i].key, NULL));
        completed(FI_RMA | FI_WRITE, NULL);
        CHECK(!strcmp(there[i], "hello"));
    }
    AGAIN(fi_write(a.ep, "hello", 6, NULL, b.addr, at(&r[1], 0), r[1].key, NULL));
    failed(FI_ENOKEY, NULL);
    close_region(&r[0]);
    close_region(&r[2]);
}

static void each_domain_has_its_own_keys(void)
{
    struct fid_domain *first = domain, *second;
    struct region mine, theirs;
    char here[8] = "here", there[8] = "there", in[8];
    open_region(&mine, here, 8, ACCESS);
    OK(fi_domain(fabric, info, &second, NULL));
    domain = second;
    if (mode & FI_MR_PROV_KEY) {
        open_region(&theirs, there, 8, ACCESS);
        CHECK(theirs.key != mine.key);
    } else {
        theirs = (struct region){.base = there, .key = mine.key};
        OK(fi_mr_reg(second, there, 8, ACCESS, 0, mine.key, 0, &theirs.mr, NULL));
    }
    struct fid_av *first_av = av;
    struct fi_av_attr attr = {.type = FI_AV_TABLE};
    OK(fi_av_open(second, &attr, &av, NULL));
    struct side first_b = b;
    open_side(&b, 0);
    domain = first;
    fi_addr_t to_second;
    CHECK(fi_av_insert(first_av, b.blob, 1, &to_second, 0, NULL) == 1);
    AGAIN(fi_read(a.ep, in, 8, NULL, to_second, at(&theirs, 0), theirs.key, NULL));
    completed(FI_RMA | FI_READ, NULL);
    CHECK(!strcmp(in, "there"));
    AGAIN(fi_read(a.ep, in, 8, NULL, first_b.addr, at(&mine, 0), mine.key, NULL));
    completed(FI_RMA | FI_READ, NULL);
    CHECK(!strcmp(in, "here"));
    if (mode & FI_MR_PROV_KEY) {
        AGAIN(fi_read(a.ep, in, 8, NULL, to_second, at(&mine, 0), mine.key, NULL));
        failed(FI_ENOKEY, NULL);
    }
    OK(fi_close(&b.ep->fid));
    OK(fi_close(&b.cq->fid));
    OK(fi_close(&av->fid));
    close_region(&theirs);
    OK(fi_close(&second->fid));
    b = first_b;
    av = first_av;
    close_region(&mine);
}

static void who_brings_an_open_domain_gets_its_mode(void)
{
    struct fi_info *hints = fi_dupinfo(info), *again;
    hints->domain_attr->domain = domain;
    hints->fabric_attr->fabric = fabric;
    hints->domain_attr->mr_mode = MPI_MODE | FI_MR_ENDPOINT;
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &again));
    CHECK(again->domain_attr->mr_mode == mode && again->domain_attr->domain == domain);
    fi_freeinfo(again);
    hints->domain_attr->mr_mode = 0;
    int rc = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &again);
    CHECK(rc == (mode ? -FI_ENODATA : 0));
    if (rc == 0)
        fi_freeinfo(again);
    hints->domain_attr->domain = NULL;
    hints->fabric_attr->fabric = NULL;
    fi_freeinfo(hints);
}

/* ---- atomic operations ---- */

static void values_are_updated_fetched_and_compared(void)
{
    uint64_t there[4] = {10, 20, 30, 40};
    struct region r;
    open_region(&r, there, sizeof there, ACCESS);
    fi_addr_t peers[2] = {b.addr, a.addr};
    for (int p = 0; p < 2; p++) {
        fi_addr_t peer = peers[p];
        uint64_t operand[4] = {1, 2, 3, 4}, result[4] = {0}, compare[4] = {11, 0, 33, 0};
        AGAIN(fi_atomic(a.ep, operand, 4, NULL, peer, at(&r, 0), r.key, FI_UINT64, FI_SUM, operand));
        completed(FI_ATOMIC | FI_WRITE, operand);
        CHECK(there[0] == 11 && there[1] == 22 && there[2] == 33 && there[3] == 44);

        AGAIN(fi_fetch_atomic(a.ep, operand, 2, NULL, result, NULL, peer, at(&r, 16), r.key, FI_UINT64, FI_BXOR, result));
        completed(FI_ATOMIC | FI_READ, result);
        CHECK(result[0] == 33 && result[1] == 44 && there[2] == (33 ^ 1) && there[3] == (44 ^ 2));
        there[2] = 33;
        there[3] = 44;

        AGAIN(fi_fetch_atomic(a.ep, NULL, 4, NULL, result, NULL, peer, at(&r, 0), r.key, FI_UINT64, FI_ATOMIC_READ, result));
        completed(FI_ATOMIC | FI_READ, result);
        CHECK(!memcmp(result, there, sizeof there));

        /* Each value by itself. */
        AGAIN(fi_compare_atomic(a.ep, operand, 4, NULL, compare, NULL, result, NULL, peer, at(&r, 0), r.key, FI_UINT64,
                                FI_CSWAP, result));
        completed(FI_ATOMIC | FI_READ, result);
        CHECK(result[0] == 11 && result[1] == 22 && result[2] == 33 && result[3] == 44);
        CHECK(there[0] == 1 && there[1] == 22 && there[2] == 3 && there[3] == 44);

        uint64_t again[4] = {10, 20, 30, 40};
        AGAIN(fi_inject_atomic(a.ep, again, 4, peer, at(&r, 0), r.key, FI_UINT64, FI_ATOMIC_WRITE));
        memset(again, 0, sizeof again);
        UNTIL(__atomic_load_n(&there[0], __ATOMIC_ACQUIRE) == 10);
        CHECK(there[1] == 20 && there[2] == 30 && there[3] == 40);
        quiet();
        CHECK(got_a.count == 0);
    }
    CHECK(got_b.count == 0);
    double real[2] = {1.5, 2.5}, plus[2] = {0.25, 0.5}, before[2];
    struct region d;
    open_region(&d, real, sizeof real, ACCESS);
    AGAIN(fi_fetch_atomic(a.ep, plus, 2, NULL, before, NULL, b.addr, at(&d, 0), d.key, FI_DOUBLE, FI_SUM, NULL));
    completed(FI_ATOMIC | FI_READ, NULL);
    CHECK(before[0] == 1.5 && before[1] == 2.5 && real[0] == 1.75 && real[1] == 3.0);
    close_region(&d);
    close_region(&r);
}

static void values_may_lie_in_pieces(void)
{
    int32_t there[8] = {0, 1, 2, 3, 4, 5, 6, 7}, operand[4] = {10, 20, 30, 40}, result[4] = {0}, compare[4] = {10, 1, 30, 4};
    struct region r;
    open_region(&r, there, sizeof there, ACCESS);
    struct fi_ioc from[2] = {{operand, 1}, {operand + 1, 3}}, back[3] = {{result, 2}, {result + 2, 1}, {result + 3, 1}};
    struct fi_ioc with[1] = {{compare, 4}};
    struct fi_rma_ioc to[2] = {{at(&r, 0), 2, r.key}, {at(&r, 16), 2, r.key}};
    struct fi_msg_atomic m = {.msg_iov = from, .iov_count = 2, .addr = b.addr, .rma_iov = to, .rma_iov_count = 2};
    m.datatype = FI_INT32;
    m.op = FI_SUM;
    m.context = &m;
    AGAIN(fi_atomicmsg(a.ep, &m, FI_COMPLETION));
    completed(FI_ATOMIC | FI_WRITE, &m);
    CHECK(there[0] == 10 && there[1] == 21 && there[2] == 2 && there[4] == 34 && there[5] == 45 && there[6] == 6);
    AGAIN(fi_fetch_atomicmsg(a.ep, &m, back, NULL, 3, FI_COMPLETION));
    completed(FI_ATOMIC | FI_READ, &m);
    CHECK(result[0] == 10 && result[1] == 21 && result[2] == 34 && result[3] == 45);
    CHECK(there[0] == 20 && there[5] == 85);
    m.op = FI_CSWAP_GT; /* exchanged where the value that is sent along is greater than the one there */
    compare[0] = 21;
    AGAIN(fi_compare_atomicmsg(a.ep, &m, with, NULL, 1, back, NULL, 3, FI_COMPLETION));
    completed(FI_ATOMIC | FI_READ, &m);
    CHECK(result[0] == 20 && result[1] == 41 && result[2] == 64 && result[3] == 85);
    CHECK(there[0] == 10 && there[1] == 41 && there[4] == 64 && there[5] == 85);
    AGAIN(fi_atomicv(a.ep, from, NULL, 2, b.addr, at(&r, 0), r.key, FI_INT32, FI_ATOMIC_WRITE, NULL));
    completed(FI_ATOMIC | FI_WRITE, NULL);
    CHECK(!memcmp(there, operand, sizeof operand));
    AGAIN(fi_fetch_atomicv(a.ep, from, NULL, 2, back, NULL, 3, b.addr, at(&r, 0), r.key, FI_INT32, FI_MAX, NULL));
    completed(FI_ATOMIC | FI_READ, NULL);
    CHECK(!memcmp(result, operand, sizeof operand));
    memcpy(compare, operand, sizeof compare);
    AGAIN(fi_compare_atomicv(a.ep, back, NULL, 3, with, NULL, 1, from, NULL, 2, b.addr, at(&r, 0), r.key, FI_INT32, FI_CSWAP,
                             NULL));
    completed(FI_ATOMIC | FI_READ, NULL);
    /* As many values everywhere. */
    CHECK(fi_fetch_atomicv(a.ep, from, NULL, 2, back, NULL, 2, b.addr, at(&r, 0), r.key, FI_INT32, FI_MAX, NULL) == -FI_EINVAL);
    m.rma_iov_count = 1;
    CHECK(fi_atomicmsg(a.ep, &m, FI_COMPLETION) == -FI_EOPNOTSUPP); /* FI_CSWAP_GT needs a comparison */
    m.op = FI_SUM;
    CHECK(fi_atomicmsg(a.ep, &m, FI_COMPLETION) == -FI_EINVAL);
    m.rma_iov_count = 2;
    CHECK(fi_atomicmsg(a.ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA) == -FI_EOPNOTSUPP);
    close_region(&r);
}

static void atomic_operations_take_effect_in_posting_order(void)
{
    enum { N = 500 };
    static uint64_t there, results[N], sum;
    struct region r;
    open_region(&r, &there, sizeof there, ACCESS);
    there = sum = 0;
    for (uint64_t i = 0; i < N; i++) {
        /* Written, then added to, then fetched: only one order gives these results. */
        AGAIN(fi_inject_atomic(a.ep, &i, 1, b.addr, at(&r, 0), r.key, FI_UINT64, i % 7 ? FI_SUM : FI_ATOMIC_WRITE));
        uint64_t one = 1;
        AGAIN(fi_fetch_atomic(a.ep, &one, 1, NULL, &results[i], NULL, b.addr, at(&r, 0), r.key, FI_UINT64, FI_SUM, NULL));
    }
    UNTIL(got_a.count == N || got_a.error);
    CHECK(!got_a.error);
    for (uint64_t i = 0; i < N; i++) {
        sum = i % 7 ? sum + i : i;
        CHECK(results[i] == sum);
        sum++;
    }
    CHECK(there == sum);
    close_region(&r);
}

static void the_largest_atomic_operation_works_and_a_larger_one_is_refused(void)
{
    static uint8_t there[20000], operand[20000], result[20000];
    size_t count = 0;
    struct region r;
    open_region(&r, there, sizeof there, ACCESS);
    OK(fi_fetch_atomicvalid(a.ep, FI_UINT8, FI_SUM, &count));
    CHECK(count > 0 && count < sizeof there);
    memset(there, 7, sizeof there);
    memset(operand, 3, sizeof operand);
    AGAIN(fi_fetch_atomic(a.ep, operand, count, NULL, result, NULL, b.addr, at(&r, 0), r.key, FI_UINT8, FI_SUM, NULL));
    completed(FI_ATOMIC | FI_READ, NULL);
    for (size_t i = 0; i < count; i++)
        CHECK(there[i] == 10 && result[i] == 7);
    CHECK(there[count] == 7 && result[count] == 0);
    CHECK(fi_atomic(a.ep, operand, count + 1, NULL, b.addr, at(&r, 0), r.key, FI_UINT8, FI_SUM, NULL) == -FI_EMSGSIZE);
    CHECK(info->ep_attr->max_order_waw_size >= count);
    memset(result, 0, sizeof result);
    close_region(&r);
}

static void atomic_operations_that_are_not_allowed_fail(void)
{
    uint32_t there[2] = {1, 2}, operand = 5, result = 6;
    struct region readable, writable;
    open_region(&readable, there, sizeof there, FI_REMOTE_READ);
    open_region(&writable, there, sizeof there, FI_REMOTE_WRITE);
    AGAIN(fi_atomic(a.ep, &operand, 1, NULL, b.addr, at(&readable, 0), readable.key, FI_UINT32, FI_SUM, &operand));
    failed(FI_EACCES, &operand);
    AGAIN(fi_fetch_atomic(a.ep, NULL, 1, NULL, &result, NULL, b.addr, at(&writable, 0), writable.key, FI_UINT32,
                          FI_ATOMIC_READ, &result));
    failed(FI_EACCES, &result);
    AGAIN(fi_atomic(a.ep, &operand, 1, NULL, b.addr, at(&writable, 6), writable.key, FI_UINT32, FI_SUM, &operand));
    failed(FI_EACCES, &operand);
    AGAIN(fi_atomic(a.ep, &operand, 1, NULL, b.addr, at(&writable, 0), 0x123456789abc, FI_UINT32, FI_SUM, &operand));
    failed(FI_ENOKEY, &operand);
    CHECK(there[0] == 1 && there[1] == 2 && result == 6);
    CHECK(fi_atomic(a.ep, &operand, 1, NULL, b.addr, 0, 0, FI_FLOAT, FI_BAND, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_atomic(a.ep, &operand, 1, NULL, b.addr, 0, 0, FI_UINT32, FI_CSWAP, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_atomic(a.ep, &operand, 1, NULL, b.addr, 0, 0, 4711, 4711, NULL) == -FI_EOPNOTSUPP);
    close_region(&readable);
    close_region(&writable);
}

static void queries_tell_what_goes_together(void)
{
    int valid = 0;
    for (int type = 0; type < 20; type++) {
        for (int op = 0; op < FI_ATOMIC_OP_LAST; op++) {
            struct fi_atomic_attr attr;
            size_t counts[3] = {0, 0, 0};
            int answers[3] = {
                fi_atomicvalid(a.ep, type, op, &counts[0]),
                fi_fetch_atomicvalid(a.ep, type, op, &counts[1]),
                fi_compare_atomicvalid(a.ep, type, op, &counts[2]),
            };
            const uint64_t flags[3] = {0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC};
            for (int k = 0; k < 3; k++) {
                CHECK(answers[k] == 0 || answers[k] == -FI_EOPNOTSUPP);
                CHECK(fi_query_atomic(domain, type, op, &attr, flags[k]) == answers[k]);
                if (answers[k] == 0) {
                    CHECK(counts[k] > 0 && attr.count == counts[k] && attr.size > 0);
                    valid++;
                }
            }
        }
    }
    CHECK(valid > 100);
    /* What Open MPI and MPICH cannot do without. */
    size_t count;
    OK(fi_atomicvalid(a.ep, FI_UINT64, FI_SUM, &count));
    OK(fi_fetch_atomicvalid(a.ep, FI_UINT32, FI_ATOMIC_READ, &count));
    OK(fi_compare_atomicvalid(a.ep, FI_UINT64, FI_CSWAP, &count));
    CHECK(fi_atomicvalid(a.ep, FI_DOUBLE, FI_BOR, &count) == -FI_EOPNOTSUPP);
    struct fi_atomic_attr attr;
    CHECK(fi_query_atomic(domain, FI_UINT64, FI_SUM, &attr, FI_TAGGED) == -FI_EOPNOTSUPP);
}

/* ---- completions and counters ---- */

static void selective_completion_and_counters(void)
{
    /* Counters are bound before an endpoint is enabled. */
    struct fid_cntr *reads, *writes, *remote;
    OK(fi_cntr_open(domain, NULL, &reads, NULL));
    OK(fi_cntr_open(domain, NULL, &writes, NULL));
    OK(fi_cntr_open(domain, NULL, &remote, NULL));
    OK(fi_close(&a.ep->fid));
    size_t len = BLOB;
    OK(fi_endpoint(domain, info, &a.ep, NULL));
    OK(fi_ep_bind(a.ep, &av->fid, 0));
    OK(fi_ep_bind(a.ep, &a.cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
    OK(fi_ep_bind(a.ep, &reads->fid, FI_READ));
    OK(fi_ep_bind(a.ep, &writes->fid, FI_WRITE));
    OK(fi_ep_bind(a.ep, &remote->fid, FI_REMOTE_READ | FI_REMOTE_WRITE));
    OK(fi_enable(a.ep));
    OK(fi_getname(&a.ep->fid, a.blob, &len));
    CHECK(fi_av_insert(av, a.blob, 1, &a.addr, 0, NULL) == 1);
    static uint64_t there[20000], here[20000];
    struct region r;
    open_region(&r, there, sizeof there, ACCESS);
    memset(here, 0, sizeof here);
    uint64_t one = 1, result;
    AGAIN(fi_write(a.ep, here, 8, NULL, b.addr, at(&r, 0), r.key, NULL));
    AGAIN(fi_write(a.ep, here, sizeof here, NULL, b.addr, at(&r, 0), r.key, NULL));
    AGAIN(fi_inject_write(a.ep, here, 8, b.addr, at(&r, 0), r.key));
    AGAIN(fi_atomic(a.ep, &one, 1, NULL, b.addr, at(&r, 0), r.key, FI_UINT64, FI_SUM, NULL));
    AGAIN(fi_inject_atomic(a.ep, &one, 1, b.addr, at(&r, 0), r.key, FI_UINT64, FI_SUM));
    UNTIL(fi_cntr_read(writes) == 5);
    CHECK(there[0] == 2 && fi_cntr_read(reads) == 0 && fi_cntr_read(remote) == 0);
    AGAIN(fi_read(a.ep, here, sizeof here, NULL, b.addr, at(&r, 0), r.key, NULL));
    AGAIN(fi_fetch_atomic(a.ep, &one, 1, NULL, &result, NULL, b.addr, at(&r, 0), r.key, FI_UINT64, FI_SUM, NULL));
    UNTIL(fi_cntr_read(reads) == 2);
    CHECK(result == 2 && here[0] <= 3);
    quiet();
    CHECK(got_a.count == 0 && fi_cntr_read(writes) == 5 && fi_cntr_read(reads) == 2);
    struct iovec v = {here, 8};
    struct fi_rma_iov to = {at(&r, 0), 8, r.key};
    struct fi_msg_rma m = {.msg_iov = &v, .iov_count = 1, .addr = b.addr, .rma_iov = &to, .rma_iov_count = 1, .context = &v};
    AGAIN(fi_writemsg(a.ep, &m, FI_COMPLETION));
    completed(FI_RMA | FI_WRITE, &v);
    CHECK(fi_cntr_read(writes) == 6);
    /* What b does to a's memory, seen by a. */
    AGAIN(fi_write(b.ep, here, 8, NULL, a.addr, at(&r, 0), r.key, NULL));
    AGAIN(fi_read(b.ep, here, 8, NULL, a.addr, at(&r, 0), r.key, NULL));
    UNTIL(got_b.count == 2 && fi_cntr_read(remote) == 2);
    forget();
    /* Errors are told, and counted apart. */
    AGAIN(fi_write(a.ep, here, 8, NULL, b.addr, at(&r, 0), 0x123456789abc, NULL));
    failed(FI_ENOKEY, NULL);
    CHECK(fi_cntr_read(writes) == 6 && fi_cntr_readerr(writes) == 1 && fi_cntr_readerr(reads) == 0);
    close_region(&r);
    OK(fi_close(&a.ep->fid));
    CHECK(fi_cntr_read(writes) == 6 && fi_cntr_readerr(writes) == 1 && fi_cntr_read(reads) == 2);
    OK(fi_close(&reads->fid));
    OK(fi_close(&writes->fid));
    OK(fi_close(&remote->fid));
    reopen(&a);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define TEST(name) {#name, name}
    TEST(memory_of_a_peer_and_of_oneself_is_written_and_read),
    TEST(an_injected_write_completes_nothing_and_frees_the_buffer),
    TEST(data_that_comes_with_a_write_is_told_to_the_target),
    TEST(pieces_on_both_sides_need_not_agree),
    TEST(nothing_is_a_length_like_any_other),
    TEST(what_is_not_allowed_fails_and_touches_nothing),
    TEST(a_closed_region_is_out_of_reach_and_its_key_is_free),
    TEST(regions_outlive_all_endpoints_and_may_be_there_before_them),
    TEST(each_domain_has_its_own_keys),
    TEST(who_brings_an_open_domain_gets_its_mode),
    TEST(values_are_updated_fetched_and_compared),
    TEST(values_may_lie_in_pieces),
    TEST(atomic_operations_take_effect_in_posting_order),
    TEST(the_largest_atomic_operation_works_and_a_larger_one_is_refused),
    TEST(atomic_operations_that_are_not_allowed_fail),
    TEST(queries_tell_what_goes_together),
    TEST(selective_completion_and_counters),
};

int main(int argc, char **argv)
{
    const int modes[] = {MPI_MODE, 0};
    for (int k = 0; k < 2; k++) {
        mode = modes[k];
        ask(FI_MSG | FI_RMA | FI_ATOMIC | FI_SOURCE, mode);
        CHECK(info->domain_attr->mr_mode == mode);
        for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
            if (argc > 1 && strcmp(argv[1], tests[i].name))
                continue;
            running = tests[i].name;
            forget();
            open_all(0);
            tests[i].run();
            close_all();
            printf("ok %s (%s)\n", running, mode ? "addresses" : "offsets");
            fflush(stdout);
        }
        fi_freeinfo(info);
    }
    return 0;
}
