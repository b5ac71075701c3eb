/* endpoints: a process opens and closes 70,000 endpoints. Each number is used once (hazard H18). When all are used up, the next
 * endpoint is refused, and the open ones still work.
 *
 * Usage: endpoints. Needs FI_PROVIDER_PATH and FI_PROVIDER=rerail. Compiled and run by library.rs.
 */
#include "sides.h"

#define OPENED 70000
#define NUMBERS 65535

/* Opens another endpoint beside the two and closes it; returns what fi_enable returned. */
static int one_more(void)
{
    struct fid_ep *ep;
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &a.cq->fid, FI_TRANSMIT | FI_RECV));
    int rc = fi_enable(ep);
    OK(fi_close(&ep->fid));
    return rc;
}

static void exchange(void)
{
    char out[64], in[64];
    forget();
    fill(out, sizeof out, 1);
    OK(fi_trecv(b.ep, in, sizeof in, NULL, a.addr, 7, 0, NULL));
    AGAIN(fi_tsend(a.ep, out, sizeof out, NULL, b.addr, 7, NULL));
    UNTIL(got_a.count == 1 && got_b.count == 1);
    CHECK(same(in, sizeof in, 1));
}

int main(void)
{
    running = "endpoints";
    ask(FI_MSG | FI_TAGGED | FI_DIRECTED_RECV, 0);
    open_all(0);
    int refused = 0;
    for (int i = 0; i < OPENED; i++) {
        int rc = one_more();
        CHECK(rc == 0 || rc == -FI_ENOSPC);
        CHECK(rc == 0 || i >= NUMBERS - 2);
        refused += rc != 0;
    }
    CHECK(refused == OPENED - (NUMBERS - 2));
    exchange();
    close_all();
    /* closing the last endpoint ends the runtime; a new one has all numbers again */
    open_all(0);
    CHECK(one_more() == 0);
    exchange();
    close_all();
    fi_freeinfo(info);
    printf("ok %d endpoints, %d refused\n", OPENED, refused);
    return 0;
}
