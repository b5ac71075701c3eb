/* waits: sleeping until a queue or a counter has something, event queues, poll sets and aliases of endpoints.
 *
 * Usage: waits [name of one test]. Needs FI_PROVIDER_PATH and FI_PROVIDER=rerail. Each test runs in a process of its own with two
 * endpoints, or in two processes with one each. Prints a line per test; ends at the first that fails. Nothing here asks how
 * soon a sleeper wakes, only that it does. Compiled and run by library.rs.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <poll.h>
#include <pthread.h>
#include <rdma/fi_eq.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define FOR_EVER (PATIENCE_S * 1000)

struct side {
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t addr;
    char blob[BLOB];
    int fd;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct side a, b;
static int beside = -1; /* joins the two processes of a test */

static struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD};

static void open_domain(void)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("rerail");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    struct fi_av_attr attr = {.type = FI_AV_TABLE};
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &attr, &av, NULL));
}

/* Queues that are opened from now on belong to a set. */
static void open_set(enum fi_wait_obj kind)
{
    struct fi_wait_attr attr = {.wait_obj = kind};
    OK(fi_wait_open(fabric, &attr, &cq_attr.wait_set));
    cq_attr.wait_obj = FI_WAIT_SET;
}

static void open_queue(struct side *s)
{
    OK(fi_cq_open(domain, &cq_attr, &s->cq, s));
    if (cq_attr.wait_obj != FI_WAIT_NONE)
        OK(fi_control(&s->cq->fid, FI_GETWAIT, &s->fd));
}

static void open_ep(struct side *s, uint64_t bind)
{
    OK(fi_endpoint(domain, info, &s->ep, s));
    OK(fi_ep_bind(s->ep, &av->fid, 0));
    OK(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV | bind));
}

static void enable(struct side *s)
{
    size_t len = BLOB;
    OK(fi_enable(s->ep));
    OK(fi_getname(&s->ep->fid, s->blob, &len));
    CHECK(fi_av_insert(av, s->blob, 1, &s->addr, 0, NULL) == 1);
}

static void open_both(void)
{
    open_domain();
    for (struct side *s = &a; s; s = s == &a ? &b : NULL) {
        open_queue(s);
        open_ep(s, 0);
        enable(s);
    }
}

static void close_all(void)
{
    for (struct side *s = &a; s; s = s == &a ? &b : NULL) {
        if (s->ep)
            OK(fi_close(&s->ep->fid));
        if (s->cq)
            OK(fi_close(&s->cq->fid));
    }
    if (cq_attr.wait_set)
        OK(fi_close(&cq_attr.wait_set->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

static int readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms);
}

static int may_sleep(struct fid *fid)
{
    int rc = fi_trywait(fabric, &fid, 1);
    CHECK(rc == 0 || rc == -FI_EAGAIN);
    return rc == 0;
}

/* The next completion, slept for as a program does that has nothing else to do. */
static struct fi_cq_tagged_entry next(struct side *s)
{
    struct fi_cq_tagged_entry e;
    ssize_t n;
    while ((n = fi_cq_read(s->cq, &e, 1)) == -FI_EAGAIN)
        if (cq_attr.wait_set)
            OK(fi_wait(cq_attr.wait_set, FOR_EVER));
        else if (may_sleep(&s->cq->fid) && !readable(s->fd, FOR_EVER))
            FAIL("nothing woke the sleeper");
    CHECK(n == 1);
    return e;
}

static void in_a_thread(pthread_t *t, void *(*f)(void *), void *arg)
{
    CHECK(pthread_create(t, NULL, f, arg) == 0);
}

static void *result(pthread_t t)
{
    void *r;
    CHECK(pthread_join(t, &r) == 0);
    return r;
}

static void send_one(void)
{
    ssize_t rc;
    while ((rc = fi_tinject(a.ep, "x", 1, b.addr, 1)) == -FI_EAGAIN)
        fi_cq_read(a.cq, NULL, 0);
    OK(rc);
}

/* ---- two processes ---- */

static void tell(const void *p, size_t n)
{
    CHECK(write(beside, p, n) == (ssize_t)n);
}

static void hear(void *p, size_t n)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = read(beside, (char *)p + got, n - got);
        if (k <= 0)
            FAIL("the other side has ended");
        got += k;
    }
}

static void open_one_in(int in_a_set)
{
    open_domain();
    if (in_a_set)
        open_set(FI_WAIT_UNSPEC);
    open_queue(&a);
    open_ep(&a, 0);
    size_t len = BLOB;
    OK(fi_enable(a.ep));
    OK(fi_getname(&a.ep->fid, a.blob, &len));
    tell(a.blob, BLOB);
    hear(b.blob, BLOB);
    CHECK(fi_av_insert(av, b.blob, 1, &b.addr, 0, NULL) == 1);
}

static void open_one(void)
{
    open_one_in(0);
}

/* To and fro, both sides asleep whenever they wait: a single wake-up that is lost ends it. */
static void to_and_fro(int first, size_t bytes, int rounds)
{
    char *out = malloc(bytes), *in = malloc(bytes);
    for (int i = 0; i < rounds; i++) {
        OK(fi_trecv(a.ep, in, bytes, NULL, FI_ADDR_UNSPEC, 1, 0, in));
        if (first) {
            fill(out, bytes, i);
            OK(fi_tsend(a.ep, out, bytes, NULL, b.addr, 1, out));
            int seen = 0;
            while (seen != 3)
                seen |= next(&a).op_context == in ? 1 : 2;
            CHECK(same(in, bytes, i + 1));
        } else {
            while (next(&a).op_context != in)
                ;
            CHECK(same(in, bytes, i));
            fill(out, bytes, i + 1);
            OK(fi_tsend(a.ep, out, bytes, NULL, b.addr, 1, out));
            CHECK(next(&a).op_context == out);
        }
    }
    char c = 'e';
    tell(&c, 1);
    hear(&c, 1);
    free(in);
    free(out);
}

static void sleepers_miss_no_message(int first)
{
    open_one();
    to_and_fro(first, 8, 3000);
    to_and_fro(first, 3000, 300);
    to_and_fro(first, 5000000, 10);
    close_all();
}

static void sleepers_on_a_set_miss_no_message(int first)
{
    open_one_in(1);
    to_and_fro(first, 8, 3000);
    to_and_fro(first, 5000000, 10);
    close_all();
}

static void *reads_blocking(void *arg)
{
    struct side *s = arg;
    static struct fi_cq_tagged_entry e;
    for (;;) {
        ssize_t n = fi_cq_sread(s->cq, &e, 1, NULL, -1);
        if (n == 1)
            return e.op_context;
        CHECK(n == -FI_EAGAIN);
    }
}

static void blocking_reads_miss_no_message(int first)
{
    int in;
    open_one();
    for (int i = 0; i < 1000; i++) {
        OK(fi_trecv(a.ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, &in));
        if (first)
            OK(fi_tinject(a.ep, &i, sizeof i, b.addr, 1));
        CHECK(reads_blocking(&a) == &in && in == i);
        if (!first)
            OK(fi_tinject(a.ep, &i, sizeof i, b.addr, 1));
    }
    char c = 'e';
    tell(&c, 1);
    hear(&c, 1);
    close_all();
}

/* ---- one process ---- */

static void the_descriptor_is_readable_unless_one_may_sleep(int first)
{
    char in[8];
    open_both();
    CHECK(readable(b.fd, 0) == 1); /* fi_trywait was not called yet */
    CHECK(may_sleep(&b.cq->fid));
    CHECK(readable(b.fd, 0) == 0);
    OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    send_one();
    while (!readable(b.fd, 1))
        fi_cq_read(a.cq, NULL, 0); /* makes the progress, in this very process */
    CHECK(!may_sleep(&b.cq->fid) && readable(b.fd, 0) == 1);
    CHECK(!may_sleep(&b.cq->fid)); /* however often it is called */
    struct fi_cq_tagged_entry e;
    CHECK(fi_cq_read(b.cq, &e, 1) == 1 && e.op_context == in);
    CHECK(may_sleep(&b.cq->fid) && readable(b.fd, 0) == 0);
    /* Several at once: one that has something is enough. */
    struct fid *both[] = {&a.cq->fid, &b.cq->fid};
    OK(fi_trywait(fabric, both, 2));
    OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    OK(fi_cancel(&b.ep->fid, in)); /* an error entry is something too */
    CHECK(readable(b.fd, 0) == 1 && readable(a.fd, 0) == 0);
    CHECK(fi_trywait(fabric, both, 2) == -FI_EAGAIN);
    struct fi_cq_err_entry err = {0};
    CHECK(fi_cq_readerr(b.cq, &err, 0) == 1 && err.err == FI_ECANCELED);
    OK(fi_trywait(fabric, both, 2));
    close_all();
}

static void *next_context(void *arg)
{
    return next(arg).op_context;
}

static void threads_sleep_each_on_their_own(int first)
{
    static char in_a[8], in_b[8];
    pthread_t ta, tb;
    open_both();
    for (int i = 0; i < 200; i++) {
        OK(fi_trecv(a.ep, in_a, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in_a));
        OK(fi_trecv(b.ep, in_b, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in_b));
        in_a_thread(&ta, next_context, &a);
        in_a_thread(&tb, next_context, &b);
        if (i % 3 == 0)
            usleep(500 * (i % 5));
        OK(fi_tinject(a.ep, "x", 1, b.addr, 1));
        OK(fi_tinject(b.ep, "x", 1, a.addr, 1));
        CHECK(result(ta) == in_a && result(tb) == in_b);
    }
    close_all();
}

static void *read_until_signalled(void *arg)
{
    struct side *s = arg;
    struct fi_cq_tagged_entry e;
    CHECK(fi_cq_sread(s->cq, &e, 1, NULL, -1) == -FI_EAGAIN);
    return NULL;
}

static void signals_wake_sleepers(int first)
{
    pthread_t t;
    open_both();
    for (int i = 0; i < 100; i++) {
        in_a_thread(&t, read_until_signalled, &b);
        if (i % 2)
            usleep(2000);
        OK(fi_cq_signal(b.cq));
        result(t);
    }
    CHECK(may_sleep(&b.cq->fid));
    OK(fi_cq_signal(b.cq));
    CHECK(readable(b.fd, FOR_EVER) == 1);
    CHECK(!may_sleep(&b.cq->fid)); /* told once */
    CHECK(may_sleep(&b.cq->fid) && readable(b.fd, 0) == 0);
    close_all();
}

static void a_signal_wakes_who_sleeps_on_a_queue_without_endpoints(int first)
{
    pthread_t t;
    open_domain();
    open_queue(&b);
    in_a_thread(&t, read_until_signalled, &b);
    usleep(2000);
    OK(fi_cq_signal(b.cq));
    result(t);
    CHECK(may_sleep(&b.cq->fid) && readable(b.fd, 0) == 0);
    open_ep(&b, 0);
    enable(&b);
    CHECK(readable(b.fd, 0) == 1); /* it may be used from now on */
    /* The last endpoint takes the runtime with it, and another starts a new one. */
    CHECK(may_sleep(&b.cq->fid));
    OK(fi_close(&b.ep->fid));
    CHECK(may_sleep(&b.cq->fid));
    open_ep(&b, 0);
    enable(&b);
    CHECK(readable(b.fd, 0) == 1);
    char in[8];
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    OK(fi_tinject(b.ep, "x", 1, b.addr, 1));
    CHECK(next(&b).op_context == in);
    close_all();
}

static void *reads_five(void *arg)
{
    static struct fi_cq_tagged_entry e[10];
    return (void *)fi_cq_sread(b.cq, e, 10, (void *)5, -1);
}

static void a_threshold_holds_a_blocking_read_back(int first)
{
    static char in[8][8];
    static struct fi_cq_tagged_entry e[10];
    pthread_t t;
    cq_attr.wait_cond = FI_CQ_COND_THRESHOLD;
    open_both();
    CHECK(fi_cq_sread(b.cq, e, 10, (void *)5, 0) == -FI_EAGAIN);
    for (int i = 0; i < 8; i++)
        OK(fi_trecv(b.ep, in[i], 8, NULL, FI_ADDR_UNSPEC, 1, 0, in[i]));
    in_a_thread(&t, reads_five, NULL);
    for (int i = 0; i < 4; i++)
        send_one();
    usleep(50000);
    CHECK(pthread_tryjoin_np(t, NULL) == EBUSY);
    send_one();
    CHECK((long)result(t) == 5);
    /* When the time is over, what there is. */
    send_one();
    send_one();
    CHECK(fi_cq_sread(b.cq, e, 10, (void *)5, 200) == 2);
    /* What fits is enough, and so is an error. */
    send_one();
    CHECK(fi_cq_sread(b.cq, e, 1, (void *)5, FOR_EVER) == 1);
    OK(fi_trecv(b.ep, in[0], 8, NULL, FI_ADDR_UNSPEC, 1, 0, in[0]));
    OK(fi_cancel(&b.ep->fid, in[0]));
    CHECK(fi_cq_sread(b.cq, e, 10, (void *)5, FOR_EVER) == -FI_EAVAIL);
    close_all();
}

static void blocking_reads_end_in_time(int first)
{
    struct fi_cq_tagged_entry e;
    open_both();
    CHECK(fi_cq_sread(b.cq, &e, 1, NULL, 0) == -FI_EAGAIN);
    double start = now();
    CHECK(fi_cq_sread(b.cq, &e, 1, NULL, 30) == -FI_EAGAIN && now() - start >= 0.03);
    close_all();
}

static void a_queue_says_on_what_one_can_sleep(int first)
{
    static const enum fi_wait_obj there[] = {FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD};
    static const enum fi_wait_obj absent[] = {FI_WAIT_MUTEX_COND, FI_WAIT_POLLFD};
    struct fid_cq *cq;
    open_domain();
    for (int i = 0; i < 4; i++) {
        enum fi_wait_obj kind = 77;
        int fd = -1;
        struct fi_cq_attr attr = {.wait_obj = there[i]};
        OK(fi_cq_open(domain, &attr, &cq, NULL));
        struct fid *fid = &cq->fid;
        OK(fi_control(fid, FI_GETWAITOBJ, &kind));
        CHECK(kind == there[i]);
        if (kind == FI_WAIT_NONE) {
            CHECK(fi_control(fid, FI_GETWAIT, &fd) == -FI_ENODATA && fd == -1);
            CHECK(fi_trywait(fabric, &fid, 1) == -FI_EINVAL);
        } else {
            OK(fi_control(fid, FI_GETWAIT, &fd));
            OK(fi_trywait(fabric, &fid, 1));
            CHECK(readable(fd, 0) == 0);
        }
        OK(fi_close(fid));
    }
    for (int i = 0; i < 2; i++) {
        struct fi_wait_attr set_attr = {.wait_obj = absent[i]};
        struct fid_wait *none;
        CHECK(fi_wait_open(fabric, &set_attr, &none) == -FI_ENOSYS);
        struct fi_cq_attr attr = {.wait_obj = absent[i]};
        struct fi_cntr_attr cntr_attr = {.wait_obj = absent[i]};
        struct fi_eq_attr eq_attr = {.wait_obj = absent[i]};
        struct fid_cntr *cntr;
        struct fid_eq *eq;
        CHECK(fi_cq_open(domain, &attr, &cq, NULL) == -FI_ENOSYS);
        CHECK(fi_cntr_open(domain, &cntr_attr, &cntr, NULL) == -FI_ENOSYS);
        CHECK(fi_eq_open(fabric, &eq_attr, &eq, NULL) == -FI_ENOSYS);
    }
    close_all();
}

static void *signals_later(void *arg)
{
    usleep(2000);
    OK(fi_cq_signal(arg));
    return NULL;
}

static void a_set_wakes_for_each_of_its_members(int first)
{
    static char in[8];
    struct fi_cntr_attr cntr_attr = {.wait_obj = FI_WAIT_SET};
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_SET, .flags = FI_WRITE};
    struct fid_cntr *cntr;
    struct fid_eq *eq;
    enum fi_wait_obj kind = 77;
    pthread_t t;
    int fd = -1;
    open_domain();
    /* There has to be one. */
    struct fid_cq *none;
    struct fi_cq_attr lonely = {.wait_obj = FI_WAIT_SET};
    CHECK(fi_cq_open(domain, &lonely, &none, NULL) == -FI_EINVAL);
    CHECK(fi_cntr_open(domain, &cntr_attr, &cntr, NULL) == -FI_EINVAL);
    CHECK(fi_eq_open(fabric, &eq_attr, &eq, NULL) == -FI_EINVAL);
    struct fi_wait_attr flagged = {.wait_obj = FI_WAIT_FD, .flags = 1};
    CHECK(fi_wait_open(fabric, &flagged, &cq_attr.wait_set) == -FI_EBADFLAGS);
    open_set(FI_WAIT_FD);
    struct fid_wait *set = cq_attr.wait_set;
    struct fid *fid = &set->fid;
    OK(fi_control(fid, FI_GETWAITOBJ, &kind));
    OK(fi_control(fid, FI_GETWAIT, &fd));
    CHECK(kind == FI_WAIT_FD && fi_control(fid, FI_GETWAIT, NULL) == -FI_EINVAL);
    CHECK(fi_wait(set, 0) == -FI_ETIMEDOUT); /* it has no members */
    CHECK(readable(fd, 0) == 0);

    cntr_attr.wait_set = eq_attr.wait_set = set;
    OK(fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
    OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    for (struct side *s = &a; s; s = s == &a ? &b : NULL) {
        open_queue(s);
        CHECK(s->fd == fd); /* a member's descriptor is its set's */
        open_ep(s, 0);
        if (s == &b)
            OK(fi_ep_bind(b.ep, &cntr->fid, FI_RECV));
        enable(s);
    }
    CHECK(fi_close(fid) == -FI_EBUSY);
    OK(fi_control(&a.cq->fid, FI_GETWAITOBJ, &kind));
    CHECK(kind == FI_WAIT_SET);
    double start = now();
    CHECK(fi_wait(set, 30) == -FI_ETIMEDOUT && now() - start >= 0.03);

    for (uint64_t i = 0; i < 100; i++) {
        while (fi_trywait(fabric, &fid, 1))
            ;
        CHECK(readable(fd, 0) == 0);
        /* one queue, and the counter */
        OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
        send_one();
        CHECK(readable(fd, FOR_EVER) == 1);
        OK(fi_wait(set, FOR_EVER));
        CHECK(fi_trywait(fabric, &fid, 1) == -FI_EAGAIN);
        struct fi_cq_tagged_entry e;
        while (fi_cq_read(b.cq, &e, 1) == -FI_EAGAIN)
            ;
        CHECK(e.op_context == in);
        CHECK(fi_trywait(fabric, &fid, 1) == -FI_EAGAIN); /* the counter is not read */
        OK(fi_wait(set, 0));
        CHECK(fi_cntr_read(cntr) == i + 1);
        /* the other queue: an error is something too */
        CHECK(fi_wait(set, 0) == -FI_ETIMEDOUT);
        OK(fi_trecv(a.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
        OK(fi_cancel(&a.ep->fid, in));
        OK(fi_wait(set, FOR_EVER));
        struct fi_cq_err_entry err = {0};
        CHECK(fi_cq_readerr(a.cq, &err, 0) == 1 && err.err == FI_ECANCELED);
    }
    /* the event queue */
    struct fi_eq_entry event = {.data = 5};
    uint32_t what;
    CHECK(fi_wait(set, 0) == -FI_ETIMEDOUT);
    CHECK(fi_eq_write(eq, FI_NOTIFY, &event, sizeof event, 0) == sizeof event);
    OK(fi_wait(set, 0));
    CHECK(fi_eq_read(eq, &what, &event, sizeof event, 0) == sizeof event && what == FI_NOTIFY);
    CHECK(fi_wait(set, 0) == -FI_ETIMEDOUT);
    /* a signal */
    for (int i = 0; i < 50; i++) {
        in_a_thread(&t, signals_later, i % 2 ? a.cq : b.cq);
        OK(fi_wait(set, FOR_EVER));
        result(t);
        CHECK(fi_wait(set, 0) == -FI_ETIMEDOUT); /* told once */
    }
    /* A closed queue is no member any more. */
    OK(fi_eq_write(eq, FI_NOTIFY, &event, sizeof event, 0) != sizeof event);
    OK(fi_close(&eq->fid));
    CHECK(fi_wait(set, 0) == -FI_ETIMEDOUT && readable(fd, 0) == 0);
    OK(fi_close(&b.ep->fid));
    b.ep = NULL;
    OK(fi_close(&cntr->fid));
    CHECK(fi_close(fid) == -FI_EBUSY);
    close_all();
}

static void *adds_seven(void *arg)
{
    usleep(2000);
    OK(fi_cntr_add(arg, 7));
    return NULL;
}

static void counters_wake_sleepers(int first)
{
    struct fi_cntr_attr attr = {.wait_obj = FI_WAIT_FD};
    struct fid_cntr *cntr;
    static char in[8];
    pthread_t t;
    int fd;
    open_domain();
    OK(fi_cntr_open(domain, &attr, &cntr, NULL));
    OK(fi_control(&cntr->fid, FI_GETWAIT, &fd));
    for (struct side *s = &a; s; s = s == &a ? &b : NULL) {
        open_queue(s);
        open_ep(s, 0);
        if (s == &b)
            OK(fi_ep_bind(b.ep, &cntr->fid, FI_RECV));
        enable(s);
    }
    for (uint64_t i = 0; i < 100; i++) {
        CHECK(fi_cntr_read(cntr) == i);
        while (!may_sleep(&cntr->fid))
            ;
        CHECK(readable(fd, 0) == 0);
        OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
        send_one();
        CHECK(readable(fd, FOR_EVER) == 1);
        CHECK(!may_sleep(&cntr->fid)); /* not read yet */
    }
    CHECK(fi_cntr_read(cntr) == 100);
    /* A failure is news as well. */
    CHECK(may_sleep(&cntr->fid) && readable(fd, 0) == 0);
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    OK(fi_cancel(&b.ep->fid, in));
    CHECK(readable(fd, FOR_EVER) == 1 && !may_sleep(&cntr->fid));
    CHECK(fi_cntr_readerr(cntr) == 1);
    CHECK(may_sleep(&cntr->fid));
    /* So is what the program does itself. */
    in_a_thread(&t, adds_seven, cntr);
    CHECK(readable(fd, FOR_EVER) == 1 && !may_sleep(&cntr->fid));
    result(t);
    CHECK(fi_cntr_read(cntr) == 107);
    in_a_thread(&t, adds_seven, cntr);
    OK(fi_cntr_wait(cntr, 114, -1));
    result(t);
    CHECK(fi_cntr_wait(cntr, 115, 20) == -FI_ETIMEDOUT);
    OK(fi_close(&b.ep->fid));
    b.ep = NULL;
    CHECK(fi_cntr_read(cntr) == 114);
    /* And without an endpoint. */
    in_a_thread(&t, adds_seven, cntr);
    OK(fi_cntr_wait(cntr, 121, -1));
    result(t);
    OK(fi_close(&cntr->fid));
    close_all();
}

static void *writes_an_event(void *arg)
{
    struct fi_eq_entry e = {.context = (void *)5, .data = 6};
    usleep(2000);
    CHECK(fi_eq_write(arg, FI_NOTIFY, &e, sizeof e, 0) == sizeof e);
    return NULL;
}

static void event_queues_carry_what_is_written(int first)
{
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_FD, .flags = FI_WRITE};
    struct fi_eq_entry in = {.fid = (fid_t)1, .context = (void *)2, .data = 3}, out;
    struct fi_eq_err_entry err = {0};
    struct fid_eq *eq;
    uint32_t event;
    pthread_t t;
    int fd;
    open_domain();
    OK(fi_eq_open(fabric, &attr, &eq, NULL));
    OK(fi_control(&eq->fid, FI_GETWAIT, &fd));
    CHECK(fi_eq_read(eq, &event, &out, sizeof out, 0) == -FI_EAGAIN);
    CHECK(fi_eq_readerr(eq, &err, 0) == -FI_EAGAIN);
    CHECK(may_sleep(&eq->fid) && readable(fd, 0) == 0);
    for (int i = 0; i < 3; i++) {
        in.data = i;
        CHECK(fi_eq_write(eq, FI_NOTIFY + i, &in, sizeof in, 0) == sizeof in);
    }
    CHECK(readable(fd, 0) == 1 && !may_sleep(&eq->fid) && readable(fd, 0) == 1);
    CHECK(fi_eq_read(eq, &event, &out, sizeof out - 1, 0) == -FI_ETOOSMALL);
    for (int i = 0; i < 3; i++) {
        CHECK(fi_eq_read(eq, &event, &out, sizeof out, FI_PEEK) == sizeof out && out.data == (uint64_t)i);
        memset(&out, 0, sizeof out);
        CHECK(fi_eq_read(eq, &event, &out, sizeof out, 0) == sizeof out);
        CHECK(event == FI_NOTIFY + (uint32_t)i && out.data == (uint64_t)i && out.fid == in.fid && out.context == in.context);
    }
    /* a reader that wants only the kind gives no room */
    CHECK(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0) == sizeof in);
    CHECK(fi_eq_read(eq, &event, NULL, 0, 0) == 0 && event == FI_NOTIFY);
    CHECK(fi_eq_sread(eq, &event, &out, sizeof out, 0, 0) == -FI_EAGAIN);
    CHECK(fi_eq_sread(eq, &event, &out, sizeof out, 20, 0) == -FI_EAGAIN);
    for (int i = 0; i < 50; i++) {
        in_a_thread(&t, writes_an_event, eq);
        CHECK(fi_eq_sread(eq, &event, &out, sizeof out, -1, 0) == sizeof out && out.data == 6);
        result(t);
        CHECK(may_sleep(&eq->fid));
        in_a_thread(&t, writes_an_event, eq);
        CHECK(readable(fd, FOR_EVER) == 1);
        CHECK(fi_eq_read(eq, &event, &out, sizeof out, 0) == sizeof out);
        result(t);
    }
    OK(fi_close(&eq->fid));
    attr.flags = 0;
    OK(fi_eq_open(fabric, &attr, &eq, NULL));
    CHECK(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0) == -FI_EINVAL);
    OK(fi_close(&eq->fid));
    close_all();
}

static void insertions_are_reported_as_events(int first)
{
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_av_attr attr = {.type = FI_AV_TABLE, .flags = FI_EVENT};
    struct fi_eq_entry e;
    struct fi_eq_err_entry err = {0};
    struct fid_av *late;
    struct fid_eq *eq;
    char blobs[3 * BLOB] = {0};
    fi_addr_t addr[3];
    uint32_t event;
    open_both();
    memcpy(blobs, a.blob, BLOB);
    memcpy(blobs + 2 * BLOB, b.blob, BLOB);
    OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    OK(fi_av_open(domain, &attr, &late, NULL));
    CHECK(fi_av_insert(late, blobs, 3, addr, 0, (void *)9) == -FI_ENOEQ);
    OK(fi_av_bind(late, &eq->fid, 0));
    CHECK(fi_close(&eq->fid) == -FI_EBUSY);
    OK(fi_av_insert(late, blobs, 3, addr, 0, (void *)9));
    /* First what failed, then that it is done. */
    CHECK(fi_eq_sread(eq, &event, &e, sizeof e, -1, 0) == -FI_EAVAIL);
    CHECK(fi_eq_readerr(eq, &err, 0) == sizeof err);
    CHECK(err.fid == &late->fid && err.context == (void *)9 && err.data == 1 && err.err == FI_EINVAL);
    CHECK(fi_eq_sread(eq, &event, &e, sizeof e, -1, 0) == sizeof e && event == FI_AV_COMPLETE);
    CHECK(e.fid == &late->fid && e.context == (void *)9 && e.data == 2);
    CHECK(addr[0] == 0 && addr[1] == FI_ADDR_NOTAVAIL && addr[2] == 1);
    CHECK(fi_eq_read(eq, &event, &e, sizeof e, 0) == -FI_EAGAIN);
    OK(fi_close(&late->fid));
    OK(fi_close(&eq->fid));
    close_all();
}

static void poll_sets_name_those_with_something(int first)
{
    struct fi_poll_attr attr = {0};
    struct fid_poll *set;
    struct fid_cntr *cntr;
    struct fi_cq_tagged_entry e;
    void *found[4];
    char in[8];
    open_both();
    OK(fi_cntr_open(domain, NULL, &cntr, &cntr));
    OK(fi_poll_open(domain, &attr, &set));
    OK(fi_poll_add(set, &a.cq->fid, 0));
    OK(fi_poll_add(set, &b.cq->fid, 0));
    OK(fi_poll_add(set, &cntr->fid, 0));
    CHECK(fi_poll_add(set, &a.ep->fid, 0) == -FI_EINVAL);
    CHECK(fi_poll(set, found, 4) == 0);
    OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, in));
    send_one();
    while (fi_poll(set, found, 4) == 0)
        ;
    CHECK(found[0] == &b);
    OK(fi_cntr_add(cntr, 1));
    CHECK(fi_poll(set, found, 1) == 1 && found[0] == &b);
    CHECK(fi_poll(set, found, 4) == 2 && found[0] == &b && found[1] == &cntr);
    CHECK(fi_poll(set, found, 4) == 1); /* the counter has been reported */
    CHECK(fi_cq_read(b.cq, &e, 1) == 1);
    CHECK(fi_poll(set, found, 4) == 0);
    CHECK(fi_close(&cntr->fid) == -FI_EBUSY);
    OK(fi_poll_del(set, &cntr->fid, 0));
    CHECK(fi_poll_del(set, &cntr->fid, 0) == -FI_EINVAL);
    OK(fi_close(&cntr->fid));
    OK(fi_close(&set->fid));
    close_all();
}

static void an_alias_has_flags_of_its_own(int first)
{
    struct fid_ep *alias = NULL, *early = NULL;
    static char in[3][8];
    uint64_t flags = FI_TRANSMIT;
    open_domain();
    open_queue(&a);
    open_ep(&a, FI_SELECTIVE_COMPLETION);
    OK(fi_ep_alias(a.ep, &early, FI_TRANSMIT | FI_COMPLETION));
    CHECK(fi_ep_alias(a.ep, &alias, FI_COMPLETION) == -FI_EBADFLAGS);
    CHECK(fi_ep_alias(a.ep, &alias, FI_TRANSMIT | FI_RECV) == -FI_EBADFLAGS);
    CHECK(fi_tsend(early, "x", 1, NULL, 0, 1, NULL) == -FI_EOPBADSTATE);
    enable(&a);
    OK(fi_ep_alias(a.ep, &alias, FI_RECV | FI_COMPLETION));
    OK(fi_control(&early->fid, FI_GETOPSFLAG, &flags));
    CHECK(flags == FI_COMPLETION);
    /* Only the middle send and the middle receive ask for a completion. */
    OK(fi_trecv(a.ep, in[0], 8, NULL, FI_ADDR_UNSPEC, 1, 0, in[0]));
    OK(fi_trecv(alias, in[1], 8, NULL, FI_ADDR_UNSPEC, 2, 0, in[1]));
    OK(fi_trecv(early, in[2], 8, NULL, FI_ADDR_UNSPEC, 3, 0, in[2]));
    OK(fi_tsend(a.ep, "1", 1, NULL, a.addr, 1, "a"));
    OK(fi_tsend(early, "2", 1, NULL, a.addr, 2, (void *)7));
    OK(fi_tsend(alias, "3", 1, NULL, a.addr, 3, "b"));
    struct fi_cq_tagged_entry e[2] = {next(&a), next(&a)};
    int sent = e[1].flags & FI_SEND ? 1 : 0;
    CHECK(e[sent].op_context == (void *)7 && e[!sent].op_context == in[1]);
    while (in[2][0] != '3')
        CHECK(fi_cq_read(a.cq, e, 1) == -FI_EAGAIN);
    CHECK(in[0][0] == '1' && in[1][0] == '2');
    CHECK(fi_close(&a.ep->fid) == -FI_EBUSY);
    OK(fi_close(&early->fid));
    OK(fi_close(&alias->fid));
    OK(fi_tinject(a.ep, "x", 1, a.addr, 4)); /* it goes on */
    close_all();
}

/* ---- all of them ---- */

static const struct {
    const char *name;
    void (*side)(int first);
    int processes;
} tests[] = {
#define TEST(name, processes) {#name, name, processes}
    TEST(sleepers_miss_no_message, 2),
    TEST(sleepers_on_a_set_miss_no_message, 2),
    TEST(a_set_wakes_for_each_of_its_members, 1),
    TEST(blocking_reads_miss_no_message, 2),
    TEST(the_descriptor_is_readable_unless_one_may_sleep, 1),
    TEST(threads_sleep_each_on_their_own, 1),
    TEST(signals_wake_sleepers, 1),
    TEST(a_signal_wakes_who_sleeps_on_a_queue_without_endpoints, 1),
    TEST(a_threshold_holds_a_blocking_read_back, 1),
    TEST(blocking_reads_end_in_time, 1),
    TEST(a_queue_says_on_what_one_can_sleep, 1),
    TEST(counters_wake_sleepers, 1),
    TEST(event_queues_carry_what_is_written, 1),
    TEST(insertions_are_reported_as_events, 1),
    TEST(poll_sets_name_those_with_something, 1),
    TEST(an_alias_has_flags_of_its_own, 1),
};

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name))
            continue;
        running = tests[i].name;
        int pair[2], status, n = tests[i].processes;
        pid_t sides[2];
        double start = now();
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        for (int s = 0; s < n; s++) {
            sides[s] = fork();
            CHECK(sides[s] >= 0);
            if (sides[s] == 0) {
                close(pair[!s]);
                beside = pair[s];
                alarm(4 * PATIENCE_S); /* ends a sleeper that is never woken */
                tests[i].side(s == 0);
                exit(0);
            }
        }
        close(pair[0]);
        close(pair[1]);
        for (int s = 0; s < n; s++) {
            CHECK(waitpid(sides[s], &status, 0) == sides[s]);
            if (WIFSIGNALED(status))
                FAIL("a process was ended by signal %d", WTERMSIG(status));
            if (WEXITSTATUS(status))
                return 1;
        }
        printf("ok %s (%.0f ms)\n", running, (now() - start) * 1e3);
        fflush(stdout);
    }
    return 0;
}
