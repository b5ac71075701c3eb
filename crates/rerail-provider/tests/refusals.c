/* refusals: every call that refuses a flag, made twice. Prints the sentence that the log must have for each, once.
 *
 * Needs FI_PROVIDER_PATH and FI_PROVIDER=rerail. Compiled and run by library.rs, which reads the log.
 */
#include "sides.h"
#include <rdma/fi_collective.h>

/* The call fails with this error, twice; `what` is what the sentence says of it. */
#define REFUSES(error, call, what)                                                                                       \
    do {                                                                                                                 \
        for (int i_ = 0; i_ < 2; i_++) {                                                                                 \
            long rc_ = (long)(call);                                                                                     \
            if (rc_ != -(error))                                                                                         \
                FAIL("%s gave %ld (%s)", #call, rc_, fi_strerror((int)-rc_));                                            \
        }                                                                                                                \
        puts("Rerail refuses " what);                                                                                    \
    } while (0)

static char memory[64];
static struct iovec v = {memory, 8};
static struct fi_ioc values = {memory, 1};
static struct fi_rma_iov there = {0, 8, 1};
static struct fi_rma_ioc values_there = {0, 1, 1};

static void messages(void)
{
    struct fi_msg m = {.msg_iov = &v, .iov_count = 1, .addr = b.addr};
    struct fi_msg_tagged t = {.msg_iov = &v, .iov_count = 1, .addr = b.addr};
    REFUSES(FI_EOPNOTSUPP, fi_sendmsg(a.ep, &m, FI_FENCE), "fi_sendmsg with the flag FI_FENCE");
    REFUSES(FI_EOPNOTSUPP, fi_tsendmsg(a.ep, &t, FI_FENCE), "fi_tsendmsg with the flag FI_FENCE");
    REFUSES(FI_EOPNOTSUPP, fi_tsendmsg(a.ep, &t, FI_COMMIT_COMPLETE | FI_COMPLETION | FI_MATCH_COMPLETE),
            "fi_tsendmsg with the flag FI_COMMIT_COMPLETE");
    REFUSES(FI_EOPNOTSUPP, fi_tsendmsg(a.ep, &t, FI_COMMIT_COMPLETE | FI_TRIGGER),
            "fi_tsendmsg with the flags FI_TRIGGER | FI_COMMIT_COMPLETE");
    REFUSES(FI_EOPNOTSUPP, fi_recvmsg(a.ep, &m, FI_TRIGGER), "fi_recvmsg with the flag FI_TRIGGER");
    REFUSES(FI_EOPNOTSUPP, fi_trecvmsg(a.ep, &t, FI_TRIGGER), "fi_trecvmsg with the flag FI_TRIGGER");
    uint64_t flags = FI_RECV | FI_TRIGGER;
    OK(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
    REFUSES(FI_EOPNOTSUPP, fi_trecv(a.ep, memory, 8, NULL, FI_ADDR_UNSPEC, 0, 0, NULL),
            "a receive with the flag FI_TRIGGER");
    flags = FI_RECV;
    OK(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
}

static void one_sided(void)
{
    struct fi_msg_rma m = {.msg_iov = &v, .iov_count = 1, .addr = b.addr, .rma_iov = &there, .rma_iov_count = 1};
    struct fi_msg_atomic at = {.msg_iov = &values, .iov_count = 1, .addr = b.addr, .rma_iov = &values_there,
                               .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM};
    struct fi_ioc result = {memory + 16, 1}, compare = {memory + 32, 1};
    struct fi_atomic_attr attr;
    struct fid_mr *mr;
    REFUSES(FI_EOPNOTSUPP, fi_readmsg(a.ep, &m, FI_FENCE), "fi_readmsg with the flag FI_FENCE");
    REFUSES(FI_EOPNOTSUPP, fi_writemsg(a.ep, &m, FI_FENCE), "fi_writemsg with the flag FI_FENCE");
    REFUSES(FI_EOPNOTSUPP, fi_atomicmsg(a.ep, &at, FI_FENCE), "fi_atomicmsg with the flag FI_FENCE");
    REFUSES(FI_EOPNOTSUPP, fi_fetch_atomicmsg(a.ep, &at, &result, NULL, 1, FI_FENCE),
            "fi_fetch_atomicmsg with the flag FI_FENCE");
    at.op = FI_CSWAP;
    REFUSES(FI_EOPNOTSUPP, fi_compare_atomicmsg(a.ep, &at, &compare, NULL, 1, &result, NULL, 1, FI_FENCE),
            "fi_compare_atomicmsg with the flag FI_FENCE");
    at.op = FI_SUM;
    REFUSES(FI_EOPNOTSUPP, fi_atomicmsg(a.ep, &at, FI_REMOTE_CQ_DATA | FI_TAGGED),
            "an atomic operation with the flags FI_TAGGED | FI_REMOTE_CQ_DATA");
    REFUSES(FI_EOPNOTSUPP, fi_query_atomic(domain, FI_UINT64, FI_SUM, &attr, FI_TAGGED),
            "fi_query_atomic with the flag FI_TAGGED");
    REFUSES(FI_EBADFLAGS, fi_mr_reg(domain, memory, 8, FI_REMOTE_READ, 0, 1, FI_RMA_EVENT, &mr, NULL),
            "a registration of memory with the flag 0x100000000000000");
}

static void collective(void)
{
    struct fi_collective_attr attr = {.op = FI_SUM, .datatype = FI_UINT64};
    struct fi_av_set_attr set_attr = {.end_addr = 1, .stride = 1, .flags = FI_ALLTOALL_SET};
    struct fid_av_set *set;
    struct fid_mc *mc;
    REFUSES(FI_EOPNOTSUPP, fi_av_set(av, &set_attr, &set, NULL), "fi_av_set with the flag 0x40000000000");
    set_attr.flags = FI_PEEK;
    REFUSES(FI_EBADFLAGS, fi_av_set(av, &set_attr, &set, NULL), "fi_av_set with the flag FI_PEEK");
    set_attr.flags = 0;
    OK(fi_av_set(av, &set_attr, &set, NULL));
    REFUSES(FI_EBADFLAGS, fi_join_collective(a.ep, 0, set, FI_PEEK, &mc, NULL),
            "fi_join_collective with the flag FI_PEEK");
    OK(fi_close(&set->fid));
    REFUSES(FI_EOPNOTSUPP, fi_barrier2(a.ep, 0, FI_FENCE, NULL), "a collective operation with the flag FI_FENCE");
    REFUSES(FI_EOPNOTSUPP, fi_query_collective(domain, FI_ALLREDUCE, &attr, FI_PEEK),
            "fi_query_collective with the flag FI_PEEK");
}

static void objects(void)
{
    struct fid_domain *other;
    struct fid_ep *ep;
    REFUSES(FI_ENOSYS, fi_domain2(fabric, info, &other, FI_PEER, NULL), "fi_domain2 with the flag 0x80000000000");
    REFUSES(FI_ENOSYS, fi_endpoint2(domain, info, &ep, FI_PEER, NULL), "fi_endpoint2 with the flag 0x80000000000");

    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .flags = FI_AV_USER_ID};
    struct fid_av *vector;
    fi_addr_t addr;
    REFUSES(FI_ENOSYS, fi_av_open(domain, &av_attr, &vector, NULL), "fi_av_open with the flag 0x20000000000");
    REFUSES(FI_EBADFLAGS, fi_av_insert(av, b.blob, 1, &addr, FI_AV_USER_ID, NULL),
            "fi_av_insert with the flag 0x20000000000");
    av_attr.flags = FI_EVENT;
    OK(fi_av_open(domain, &av_attr, &vector, NULL));
    REFUSES(FI_EBADFLAGS, fi_av_insert(vector, b.blob, 1, &addr, FI_SYNC_ERR, NULL),
            "fi_av_insert with the flag 0x400000000000000");
    OK(fi_close(&vector->fid));

    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr *cntr;
    OK(fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    REFUSES(FI_EBADFLAGS, fi_ep_bind(ep, &cntr->fid, FI_SEND | FI_PEEK),
            "fi_ep_bind of a counter with the flag FI_PEEK");
    OK(fi_close(&ep->fid));

    struct fi_poll_attr poll_attr = {.flags = FI_PEEK};
    struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_FD, .flags = FI_PEEK};
    struct fid_poll *set;
    struct fid_wait *wait;
    REFUSES(FI_EBADFLAGS, fi_poll_open(domain, &poll_attr, &set), "fi_poll_open with the flag FI_PEEK");
    REFUSES(FI_EBADFLAGS, fi_wait_open(fabric, &wait_attr, &wait), "fi_wait_open with the flag FI_PEEK");
    poll_attr.flags = 0;
    OK(fi_poll_open(domain, &poll_attr, &set));
    REFUSES(FI_EBADFLAGS, fi_poll_add(set, &cntr->fid, FI_PEEK), "fi_poll_add with the flag FI_PEEK");
    OK(fi_close(&set->fid));
    OK(fi_close(&cntr->fid));
}

int main(void)
{
    ask(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_COLLECTIVE, 0);
    open_all(0);
    running = "messages";
    messages();
    running = "one_sided";
    one_sided();
    running = "collective";
    collective();
    running = "objects";
    objects();
    running = "the end";
    close_all();
    fi_freeinfo(info);
    return 0;
}
