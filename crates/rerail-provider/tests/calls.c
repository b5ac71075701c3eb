/* calls: the libfabric calls that MPIs make, and what they must give, with two endpoints in one process.
 *
 * Usage: calls [prlimit:DESCRIPTORS] [name of one test]. Needs FI_PROVIDER_PATH and FI_PROVIDER=rerail. Prints a line per test; ends at
 * the first that fails. Compiled and run by library.rs.
 */
#include "sides.h"
#include <sys/resource.h>

/* ---- tests ---- */

static void tagged_messages_carry_tag_data_length_and_source(void)
{
    char out[100], in[200];
    fill(out, sizeof out, 1);
    OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 0x11, 0, (void *)1));
    OK(fi_tsenddata(a.ep, out, sizeof out, NULL, 0xabcdef, b.addr, 0x11, (void *)2));
    UNTIL(got_a.count == 1 && got_b.count == 1);
    struct fi_cq_tagged_entry *s = &got_a.entry[0], *r = &got_b.entry[0];
    CHECK(s->op_context == (void *)2 && s->flags == (FI_SEND | FI_TAGGED));
    CHECK(r->op_context == (void *)1 && r->flags == (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA));
    CHECK(r->len == sizeof out && r->tag == 0x11 && r->data == 0xabcdef && got_b.src[0] == a.addr);
    CHECK(same(in, sizeof out, 1));
}

static void untagged_messages_match_in_order(void)
{
    static char in[64][8];
    for (long i = 0; i < 64; i++)
        OK(fi_recv(b.ep, in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, (void *)i));
    for (long i = 0; i < 64; i++)
        AGAIN(fi_send(a.ep, &i, sizeof i, NULL, b.addr, (void *)i));
    UNTIL(got_a.count == 64 && got_b.count == 64);
    for (long i = 0; i < 64; i++) {
        CHECK(*(long *)in[i] == i);
        CHECK(got_b.entry[i].flags == (FI_RECV | FI_MSG));
    }
}

static void injects_do_not_complete_and_free_the_buffer(void)
{
    char buf[512], in[512];
    fill(buf, sizeof buf, 3);
    AGAIN(fi_tinject(a.ep, buf, sizeof buf, b.addr, 5));
    memset(buf, 0, sizeof buf);
    AGAIN(fi_injectdata(a.ep, "x", 1, 99, b.addr));
    AGAIN(fi_tinjectdata(a.ep, NULL, 0, 77, b.addr, 6));
    OK(fi_trecv(b.ep, in, sizeof in, NULL, a.addr, 5, 0, NULL));
    UNTIL(got_b.count == 1);
    CHECK(same(in, sizeof in, 3) && !(got_b.entry[0].flags & FI_REMOTE_CQ_DATA));
    OK(fi_trecv(b.ep, in, sizeof in, NULL, a.addr, 6, 0, NULL));
    OK(fi_recv(b.ep, in, sizeof in, NULL, a.addr, NULL));
    UNTIL(got_b.count == 3);
    CHECK(got_b.entry[1].data + got_b.entry[2].data == 176);
    quiet();
    CHECK(got_a.count == 0);
    static char big[20000];
    CHECK(fi_inject(a.ep, big, sizeof big, b.addr) == -FI_EMSGSIZE);
}

static void pieces_are_gathered_and_scattered(void)
{
    char out[300], in[300];
    fill(out, sizeof out, 4);
    struct iovec from[3] = {{out, 100}, {out + 100, 1}, {out + 101, 199}}, to[2] = {{in, 150}, {in + 150, 150}};
    OK(fi_trecvv(b.ep, to, NULL, 2, FI_ADDR_UNSPEC, 1, 0, NULL));
    OK(fi_tsendv(a.ep, from, NULL, 3, b.addr, 1, NULL));
    UNTIL(got_a.count == 1 && got_b.count == 1);
    CHECK(got_b.entry[0].len == 300 && same(in, 300, 4));
}

static void ignored_bits_of_the_tag_match_anything(void)
{
    int in;
    OK(fi_trecv(b.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 0xff00, 0x00ff, (void *)1));
    AGAIN(fi_tinject(a.ep, "1234", 4, b.addr, 0xfe01));
    AGAIN(fi_tinject(a.ep, "5678", 4, b.addr, 0xff42));
    UNTIL(got_b.count == 1);
    CHECK(got_b.entry[0].tag == 0xff42);
    OK(fi_trecv(b.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, (void *)2));
    UNTIL(got_b.count == 2);
    CHECK(got_b.entry[1].tag == 0xfe01);
}

static void directed_receives_take_only_their_source(void)
{
    int in[2] = {0, 0};
    OK(fi_trecv(b.ep, &in[0], sizeof in[0], NULL, b.addr, 9, 0, (void *)1));
    OK(fi_trecv(b.ep, &in[1], sizeof in[1], NULL, a.addr, 9, 0, (void *)2));
    int one = 1, two = 2;
    AGAIN(fi_tinject(a.ep, &two, sizeof two, b.addr, 9));
    UNTIL(got_b.count == 1);
    CHECK(got_b.entry[0].op_context == (void *)2 && in[1] == 2);
    AGAIN(fi_tinject(b.ep, &one, sizeof one, b.addr, 9));
    UNTIL(got_b.count == 2);
    CHECK(got_b.entry[1].op_context == (void *)1 && in[0] == 1 && got_b.src[1] == b.addr);
    CHECK(fi_trecv(b.ep, in, 4, NULL, 4711, 9, 0, NULL) == -FI_EADDRNOTAVAIL);
}

static ssize_t look(uint64_t tag, uint64_t flags, void *context)
{
    struct fi_msg_tagged m = {.addr = FI_ADDR_UNSPEC, .tag = tag, .context = context};
    return fi_trecvmsg(b.ep, &m, flags);
}

static void a_failed_peek_is_an_error_entry(void)
{
    struct fi_context context;
    OK(look(1, FI_PEEK | FI_COMPLETION, &context));
    UNTIL(got_b.error);
    CHECK(got_b.err.err == FI_ENOMSG && got_b.err.op_context == &context);
    CHECK((got_b.err.flags & (FI_RECV | FI_TAGGED)) == (FI_RECV | FI_TAGGED));
    CHECK(got_b.err.err_data_size == 0);
}

/* Repeats a look until the message is there. */
static void look_until(uint64_t tag, uint64_t flags, void *context)
{
    for (double end = now() + PATIENCE_S;;) {
        got_b.error = 0;
        int before = got_b.count;
        OK(look(tag, flags, context));
        UNTIL(got_b.count > before || got_b.error);
        if (!got_b.error)
            return;
        CHECK(got_b.err.err == FI_ENOMSG && now() < end);
    }
}

static void peek_claim_and_discard(void)
{
    struct fi_context context;
    static char out[100000], in[100000];
    const size_t sizes[2] = {50, sizeof out}; /* eager, and rendezvous */
    for (int i = 0; i < 2; i++) {
        forget();
        size_t n = sizes[i];
        fill(out, n, 40 + i);
        OK(fi_tsenddata(a.ep, out, n, NULL, 5, b.addr, 21, NULL));
        look_until(21, FI_PEEK | FI_COMPLETION, &context);
        struct fi_cq_tagged_entry *e = &got_b.entry[0];
        CHECK(e->op_context == &context && e->len == n && e->tag == 21 && e->data == 5);
        CHECK(e->flags & FI_REMOTE_CQ_DATA);
        CHECK(got_b.src[0] == a.addr);
        look_until(21, FI_PEEK | FI_CLAIM | FI_COMPLETION, &context);
        CHECK(got_b.count == 2 && got_b.entry[1].len == n);
        /* It is reserved: neither a look nor a receive finds it. */
        OK(look(21, FI_PEEK, &context));
        UNTIL(got_b.error);
        CHECK(got_b.err.err == FI_ENOMSG);
        got_b.error = 0;
        struct iovec v = {in, sizeof in};
        struct fi_msg_tagged m = {.msg_iov = &v, .iov_count = 1, .addr = 12345, .tag = 999, .context = &context};
        memset(in, 0, sizeof in);
        OK(fi_trecvmsg(b.ep, &m, FI_CLAIM | FI_COMPLETION));
        UNTIL(got_b.count == 3 && got_a.count == 1);
        CHECK(got_b.entry[2].op_context == &context && got_b.entry[2].len == n && got_b.entry[2].tag == 21);
        CHECK(got_b.entry[2].data == 5 && same(in, n, 40 + i));

        forget();
        OK(fi_tsend(a.ep, out, n, NULL, b.addr, 22, NULL));
        look_until(22, FI_PEEK | FI_DISCARD, &context);
        UNTIL(got_a.count == 1);
        OK(look(22, FI_PEEK, &context));
        UNTIL(got_b.error);
        CHECK(got_b.err.err == FI_ENOMSG);

        forget();
        OK(fi_tsend(a.ep, out, n, NULL, b.addr, 23, NULL));
        look_until(23, FI_PEEK | FI_CLAIM, &context);
        OK(look(23, FI_CLAIM | FI_DISCARD, &context));
        UNTIL(got_a.count == 1 && got_b.count == 2);
    }
}

static void truncation_keeps_the_beginning_and_tells_the_rest(void)
{
    static char out[200000], in[1000];
    const size_t sizes[2] = {1200, sizeof out};
    for (int i = 0; i < 4; i++) {
        forget();
        size_t n = sizes[i & 1];
        int unexpected = i >> 1;
        fill(out, n, 50 + i);
        memset(in, 0, sizeof in);
        if (!unexpected)
            OK(fi_trecv(b.ep, in, 900, NULL, FI_ADDR_UNSPEC, 31, 0, (void *)7));
        OK(fi_tsenddata(a.ep, out, n, NULL, 66, b.addr, 31, NULL));
        if (unexpected) {
            settle();
            OK(fi_trecv(b.ep, in, 900, NULL, FI_ADDR_UNSPEC, 31, 0, (void *)7));
        }
        UNTIL(got_b.error && got_a.count == 1);
        CHECK(got_b.err.err == FI_ETRUNC && got_b.err.op_context == (void *)7);
        CHECK(got_b.err.len == 900 && got_b.err.olen == n - 900);
        CHECK(got_b.err.tag == 31 && got_b.err.data == 66);
        CHECK(same(in, 900, 50 + i) && in[900] == 0 && in[999] == 0);
        char text[100];
        CHECK(strlen(fi_cq_strerror(b.cq, got_b.err.prov_errno, NULL, text, sizeof text)) > 10);
    }
    quiet();
}

static void cancel_reports_through_the_queue(void)
{
    int in = 0;
    OK(fi_trecv(b.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 41, 0, &in));
    OK(fi_cancel(&b.ep->fid, &in));
    UNTIL(got_b.error);
    CHECK(got_b.err.err == FI_ECANCELED && got_b.err.op_context == &in);
    CHECK(got_b.err.flags == (FI_RECV | FI_TAGGED));
    CHECK(fi_cancel(&b.ep->fid, &in) != 0);
    forget();
    AGAIN(fi_tinject(a.ep, "abcd", 4, b.addr, 41));
    quiet();
    CHECK(in == 0);
    OK(fi_trecv(b.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 41, 0, &in));
    UNTIL(got_b.count == 1);
}

static void multi_receives_fill_a_buffer_and_give_it_back(void)
{
    static char area[8192], out[1000];
    size_t least = 512;
    OK(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    size_t read = 0, len = sizeof read;
    OK(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &read, &len));
    CHECK(read == least && len == sizeof read);
    struct iovec v = {area, sizeof area};
    struct fi_msg m = {.msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = area};
    OK(fi_recvmsg(b.ep, &m, FI_MULTI_RECV | FI_COMPLETION));
    for (int i = 0; i < 8; i++) {
        fill(out, sizeof out, 60 + i);
        AGAIN(fi_inject(a.ep, out, sizeof out, b.addr));
    }
    int released = 0, messages = 0;
    for (int i = 0; messages < 8 || !released; i++) {
        UNTIL(got_b.count > i);
        struct fi_cq_tagged_entry *e = &got_b.entry[i];
        CHECK(e->op_context == area);
        if (e->flags & FI_RECV) {
            CHECK(e->len == 1000 && (char *)e->buf >= area && (char *)e->buf + 1000 <= area + sizeof area);
            CHECK(same(e->buf, 1000, 60 + messages));
            messages++;
        }
        if (e->flags & FI_MULTI_RECV) {
            CHECK(!released);
            released = 1;
        }
    }
    quiet();
    /* What is left of a buffer comes back when it is cancelled. */
    forget();
    OK(fi_recvmsg(b.ep, &m, FI_MULTI_RECV));
    AGAIN(fi_inject(a.ep, out, 10, b.addr));
    UNTIL(got_b.count == 1);
    CHECK(!(got_b.entry[0].flags & FI_MULTI_RECV));
    OK(fi_cancel(&b.ep->fid, area));
    UNTIL(got_b.error);
    CHECK(got_b.err.err == FI_ECANCELED && got_b.err.flags == (FI_RECV | FI_MSG | FI_MULTI_RECV));
}

static void large_messages_and_delivery_complete(void)
{
    size_t n = 9 << 20;
    char *out = malloc(n), *in = malloc(n);
    fill(out, n, 70);
    memset(in, 0, n);
    struct iovec v = {out, n};
    struct fi_msg_tagged m = {.msg_iov = &v, .iov_count = 1, .addr = b.addr, .tag = 51, .data = 8};
    OK(fi_tsendmsg(a.ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION | FI_REMOTE_CQ_DATA));
    OK(fi_trecv(b.ep, in, n, NULL, FI_ADDR_UNSPEC, 51, 0, NULL));
    UNTIL(got_a.count == 1 && got_b.count == 1);
    CHECK(got_b.entry[0].len == n && got_b.entry[0].data == 8 && same(in, n, 70));
    free(out);
    free(in);
}

static void a_match_waits_for_a_receive(void)
{
    static char out[100000], in[100000];
    const size_t sizes[3] = {0, 50, sizeof out};
    for (int i = 0; i < 12; i++) {
        size_t n = sizes[i / 4];
        uint64_t inject = i & 1 ? FI_INJECT : 0;
        int tagged = i & 2;
        if (inject && n > info->tx_attr->inject_size)
            continue;
        forget();
        fill(out, n, 80 + i);
        struct iovec v = {out, n};
        struct fi_msg m = {.msg_iov = &v, .iov_count = 1, .addr = b.addr};
        struct fi_msg_tagged t = {.msg_iov = &v, .iov_count = 1, .addr = b.addr, .tag = 52};
        if (tagged)
            OK(fi_tsendmsg(a.ep, &t, FI_MATCH_COMPLETE | FI_COMPLETION | inject));
        else
            OK(fi_sendmsg(a.ep, &m, FI_MATCH_COMPLETE | FI_COMPLETION | inject));
        if (inject)
            fill(out, n, 7);
        quiet();
        if (tagged)
            OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 52, 0, NULL));
        else
            OK(fi_recv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, NULL));
        UNTIL(got_a.count == 1 && got_b.count == 1);
        CHECK(got_b.entry[0].len == n && same(in, n, 80 + i));
    }
}

static void many_small_messages_stay_in_order(void)
{
    enum { N = 3000 };
    static int in[N];
    for (long i = 0; i < N; i++) {
        if (i % 2)
            OK(fi_trecv(b.ep, &in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, 61, 0, (void *)i));
        int value = (int)i;
        AGAIN(fi_tinject(a.ep, &value, sizeof value, b.addr, 61));
    }
    for (long i = 0; i < N; i += 2)
        OK(fi_trecv(b.ep, &in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, 61, 0, (void *)i));
    UNTIL(got_b.count == N);
    /* Odd receives were posted first, in order; then the even ones. */
    for (int i = 0; i < N / 2; i++)
        CHECK(in[2 * i + 1] == i && in[2 * i] == N / 2 + i);
}

static void address_vector(void)
{
    char bad[2 * BLOB] = {0}, back[BLOB];
    memcpy(bad + BLOB, a.blob, BLOB);
    fi_addr_t out[2] = {0, 0};
    int errors[2] = {-1, -1};
    CHECK(fi_av_insert(av, bad, 2, out, FI_SYNC_ERR, errors) == 1);
    CHECK(out[0] == FI_ADDR_NOTAVAIL && out[1] == 2 && errors[0] == FI_EINVAL && errors[1] == 0);
    CHECK(fi_av_insert(av, a.blob, 1, NULL, 0, NULL) == 1);
    size_t len = sizeof back;
    OK(fi_av_lookup(av, a.addr, back, &len));
    CHECK(len == BLOB && !memcmp(back, a.blob, BLOB));
    char text[200];
    len = sizeof text;
    CHECK(fi_av_straddr(av, a.blob, text, &len) == text && !strncmp(text, "rerail://", 9));
    CHECK(len == strlen(text) + 1);
    OK(fi_av_remove(av, out + 1, 1, 0));
    CHECK(fi_av_lookup(av, out[1], back, &len) != 0);
    CHECK(fi_tinject(a.ep, "x", 1, out[1], 0) == -FI_EADDRNOTAVAIL);
}

static void regions_counters_and_what_is_not_there(void)
{
    char buf[64] = {0};
    struct fid_mr *mr;
    OK(fi_mr_reg(domain, buf, sizeof buf, FI_SEND | FI_RECV, 0, 77, 0, &mr, NULL));
    CHECK(fi_mr_desc(mr) != NULL);
    OK(fi_mr_bind(mr, &a.ep->fid, 0));
    OK(fi_mr_enable(mr));
    CHECK(fi_close(&domain->fid) == -FI_EBUSY);
    OK(fi_close(&mr->fid));
    struct fid_cntr *cntr;
    OK(fi_cntr_open(domain, NULL, &cntr, NULL));
    CHECK(fi_cntr_read(cntr) == 0);
    OK(fi_cntr_add(cntr, 3));
    OK(fi_cntr_wait(cntr, 3, 0));
    CHECK(fi_cntr_wait(cntr, 4, 0) == -FI_ETIMEDOUT);
    OK(fi_cntr_set(cntr, 9));
    CHECK(fi_cntr_read(cntr) == 9);
    OK(fi_close(&cntr->fid));
    /* The endpoints were opened without FI_RMA and FI_ATOMIC. */
    size_t count;
    CHECK(fi_atomicvalid(a.ep, FI_INT32, FI_SUM, &count) == -FI_EOPNOTSUPP);
    CHECK(fi_atomic(a.ep, buf, 1, NULL, b.addr, 0, 0, FI_INT32, FI_SUM, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_write(a.ep, buf, 1, NULL, b.addr, 0, 0, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_close(&av->fid) == -FI_EBUSY && fi_close(&a.cq->fid) == -FI_EBUSY);
    struct fid_eq *eq;
    OK(fi_eq_open(fabric, NULL, &eq, NULL));
    uint32_t event;
    CHECK(fi_eq_read(eq, &event, buf, sizeof buf, 0) == -FI_EAGAIN);
    OK(fi_close(&eq->fid));
    char small[8];
    CHECK(fi_cq_sread(a.cq, small, 1, NULL, 20) == -FI_EAGAIN);
    OK(fi_cq_signal(a.cq));
    double start = now();
    CHECK(fi_cq_sread(a.cq, small, 1, NULL, 5000) == -FI_EAGAIN && now() - start < 2);
}

static void a_queue_and_a_vector_outlive_their_endpoints(void)
{
    /* The last endpoint ends the runtime; the next one starts another, and the old queue and vector serve it. */
    struct fid_cq *cq = b.cq;
    OK(fi_close(&a.ep->fid));
    OK(fi_close(&b.ep->fid));
    struct fi_cq_tagged_entry e;
    CHECK(fi_cq_read(cq, &e, 1) == -FI_EAGAIN);
    struct side *sides[2] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        struct side *s = sides[i];
        size_t len = BLOB;
        OK(fi_endpoint(domain, info, &s->ep, NULL));
        OK(fi_ep_bind(s->ep, &av->fid, 0));
        OK(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV));
        CHECK(fi_tinject(s->ep, "x", 1, 0, 0) == -FI_EOPBADSTATE);
        OK(fi_enable(s->ep));
        OK(fi_getname(&s->ep->fid, s->blob, &len));
        CHECK(fi_av_insert(av, s->blob, 1, &s->addr, 0, NULL) == 1 && s->addr == 2u + i);
    }
    int in = 0;
    OK(fi_trecv(b.ep, &in, sizeof in, NULL, a.addr, 1, 0, NULL));
    AGAIN(fi_tinject(a.ep, "abcd", 4, b.addr, 1));
    UNTIL(got_b.count == 1);
    CHECK(got_b.src[0] == a.addr && !memcmp(&in, "abcd", 4));
}

static void selective_completion(void)
{
    int in;
    AGAIN(fi_tsend(a.ep, "abcd", 4, NULL, b.addr, 1, NULL));
    struct iovec v = {"efgh", 4};
    struct fi_msg_tagged m = {.msg_iov = &v, .iov_count = 1, .addr = b.addr, .tag = 1, .context = (void *)5};
    AGAIN(fi_tsendmsg(a.ep, &m, 0));
    AGAIN(fi_tsendmsg(a.ep, &m, FI_COMPLETION));
    UNTIL(got_a.count == 1);
    CHECK(got_a.entry[0].op_context == (void *)5);
    OK(fi_trecv(b.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
    struct iovec w = {&in, 4};
    struct fi_msg_tagged r = {.msg_iov = &w, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 1, .context = (void *)6};
    OK(fi_trecvmsg(b.ep, &r, FI_COMPLETION));
    OK(fi_trecvmsg(b.ep, &r, 0));
    UNTIL(got_b.count == 1);
    CHECK(got_b.entry[0].op_context == (void *)6);
    quiet();
    /* Errors are reported all the same. */
    OK(fi_trecv(b.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 2, 0, &in));
    OK(fi_cancel(&b.ep->fid, &in));
    UNTIL(got_b.error);
    CHECK(got_b.err.err == FI_ECANCELED);
}

static void endpoints_on_several_domains_share_the_process(void)
{
    struct fid_domain *first = domain, *second;
    struct fid_av *first_av = av, *second_av;
    OK(fi_domain(fabric, info, &second, NULL));
    struct fi_av_attr attr = {.type = FI_AV_MAP};
    OK(fi_av_open(second, &attr, &second_av, NULL));
    struct side first_a = a;
    domain = second;
    av = second_av;
    open_side(&a, 0);
    CHECK(a.addr == 0);
    fi_addr_t to_b;
    CHECK(fi_av_insert(av, b.blob, 1, &to_b, 0, NULL) == 1 && to_b == 1);
    int in = 0;
    OK(fi_trecv(b.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 3, 0, NULL));
    AGAIN(fi_tinject(a.ep, "abcd", 4, to_b, 3));
    UNTIL(got_b.count == 1);
    CHECK(got_b.src[0] == FI_ADDR_NOTAVAIL); /* the sender is not in b's vector */
    OK(fi_close(&a.ep->fid));
    OK(fi_close(&a.cq->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&second->fid));
    domain = first;
    av = first_av;
    a = first_a;
}

static const struct {
    const char *name;
    void (*run)(void);
    uint64_t bind;
} tests[] = {
#define TEST(name) {#name, name, 0}
    TEST(tagged_messages_carry_tag_data_length_and_source),
    TEST(untagged_messages_match_in_order),
    TEST(injects_do_not_complete_and_free_the_buffer),
    TEST(pieces_are_gathered_and_scattered),
    TEST(ignored_bits_of_the_tag_match_anything),
    TEST(directed_receives_take_only_their_source),
    TEST(a_failed_peek_is_an_error_entry),
    TEST(peek_claim_and_discard),
    TEST(truncation_keeps_the_beginning_and_tells_the_rest),
    TEST(cancel_reports_through_the_queue),
    TEST(multi_receives_fill_a_buffer_and_give_it_back),
    TEST(large_messages_and_delivery_complete),
    TEST(many_small_messages_stay_in_order),
    TEST(address_vector),
    TEST(regions_counters_and_what_is_not_there),
    TEST(a_match_waits_for_a_receive),
    TEST(a_queue_and_a_vector_outlive_their_endpoints),
    TEST(endpoints_on_several_domains_share_the_process),
    {"selective_completion", selective_completion, FI_SELECTIVE_COMPLETION},
};

int main(int argc, char **argv)
{
    if (argc > 1 && strncmp(argv[1], "prlimit:", 8) == 0) {
        struct rlimit limit = {strtoul(argv[1] + 8, NULL, 10), strtoul(argv[1] + 8, NULL, 10)};
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        argc--;
        argv++;
    }
    ask(FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE, 0);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name))
            continue;
        running = tests[i].name;
        forget();
        open_all(tests[i].bind);
        tests[i].run();
        double start = now();
        close_all();
        printf("ok %s (closed in %.0f ms)\n", running, (now() - start) * 1e3);
        fflush(stdout);
    }
    fi_freeinfo(info);
    return 0;
}
