/* Two endpoints in one process, for programs that test what the calls do. Both queues are read together, because progress of
 * either side may be needed for the other. */
#ifndef SIDES_H
#define SIDES_H

#include "checks.h"

/* One endpoint, with a queue of its own. */
struct side {
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t addr;
    char blob[BLOB];
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct side a, b;

/* Asks for what the endpoints shall be capable of. */
static inline void ask(uint64_t caps, int mr_mode)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = caps;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = mr_mode;
    hints->fabric_attr->prov_name = strdup("rerail");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    CHECK(info->src_addr && info->src_addrlen == BLOB && !info->next);
    fi_freeinfo(hints);
}

static inline void open_side(struct side *s, uint64_t bind)
{
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
    OK(fi_cq_open(domain, &attr, &s->cq, NULL));
    OK(fi_endpoint(domain, info, &s->ep, s));
    OK(fi_ep_bind(s->ep, &av->fid, 0));
    OK(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV | bind));
    OK(fi_enable(s->ep));
    size_t len = 0;
    CHECK(fi_getname(&s->ep->fid, NULL, &len) == -FI_ETOOSMALL && len == BLOB);
    OK(fi_getname(&s->ep->fid, s->blob, &len));
    CHECK(fi_av_insert(av, s->blob, 1, &s->addr, 0, NULL) == 1);
}

static inline void open_all(uint64_t bind)
{
    struct fi_av_attr attr = {.type = FI_AV_TABLE};
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &attr, &av, NULL));
    open_side(&a, bind);
    open_side(&b, bind);
}

static inline void close_all(void)
{
    OK(fi_close(&a.ep->fid));
    OK(fi_close(&b.ep->fid));
    OK(fi_close(&a.cq->fid));
    OK(fi_close(&b.cq->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
}

static struct {
    struct fi_cq_tagged_entry entry[4096];
    fi_addr_t src[4096];
    int count, error;
    struct fi_cq_err_entry err;
} got_a, got_b;

static inline void poll_one(struct side *s, void *into)
{
    __typeof__(got_a) *g = into;
    if (g->error)
        return;
    ssize_t n = fi_cq_readfrom(s->cq, &g->entry[g->count], 16, &g->src[g->count]);
    if (n == -FI_EAVAIL) {
        memset(&g->err, 0x5a, sizeof g->err);
        g->err.err_data = NULL;
        g->err.err_data_size = 0;
        CHECK(fi_cq_readerr(s->cq, &g->err, 0) == 1);
        g->error = 1;
    } else if (n > 0) {
        g->count += n;
    } else {
        CHECK(n == -FI_EAGAIN);
    }
}

static inline void forget(void)
{
    got_a.count = got_a.error = got_b.count = got_b.error = 0;
}

#define UNTIL(condition)                                                                                                 \
    do {                                                                                                                 \
        double end_ = now() + PATIENCE_S;                                                                                \
        while (!(condition)) {                                                                                           \
            poll_one(&a, &got_a);                                                                                        \
            poll_one(&b, &got_b);                                                                                        \
            if (now() > end_)                                                                                            \
                FAIL("waited in vain for: %s", #condition);                                                              \
        }                                                                                                                \
    } while (0)

/* Lets everything arrive. */
static inline void settle(void)
{
    for (double end = now() + 0.05; now() < end;) {
        poll_one(&a, &got_a);
        poll_one(&b, &got_b);
    }
}

/* Nothing more arrives for a while. */
static inline void quiet(void)
{
    int ca = got_a.count, cb = got_b.count, ea = got_a.error, eb = got_b.error;
    settle();
    CHECK(got_a.count == ca && got_b.count == cb && got_a.error == ea && got_b.error == eb);
}

#define AGAIN(call)                                                                                                      \
    do {                                                                                                                 \
        ssize_t again_rc_;                                                                                               \
        while ((again_rc_ = (call)) == -FI_EAGAIN) {                                                                     \
            poll_one(&a, &got_a);                                                                                        \
            poll_one(&b, &got_b);                                                                                        \
        }                                                                                                                \
        OK(again_rc_);                                                                                                   \
    } while (0)

#endif
