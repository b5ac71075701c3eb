/* A token with data passes through all nodes, --rounds times. Each node adds to every word of the data.
 *
 * Shows: the exchange of network addresses by small messages, and a write with a message after it.
 *
 * A node receives the token in the block `arrived` and sends it from the block `leaving`. Node k adds (k + 1) * (i + 1)
 * to word i, so N nodes and R rounds give R * (i + 1) * N * (N + 1) / 2.
 */
#include "common.h"

enum kind { ADDRESS = 1, TOKEN };

static long rounds = 100, words = 1000;

static rwapi_net_t next_net; /* where the next node receives the token; 0: not known yet */
static bool have_token;

/* Takes one message. The address of the next node and the token can arrive in any order, since their senders differ. */
static void handle(struct event event, int next, int previous, uint32_t round)
{
    if (event.gone) fail_gone(event.node);
    if (event.message.kind == ADDRESS && event.node == next) {
        next_net = event.message.value;
    } else if (event.message.kind == TOKEN && event.node == previous && event.message.number == round) {
        have_token = true;
    } else {
        errno = EPROTO;
        fail("an unexpected message");
    }
}

int main(int argc, char **argv)
{
    const struct argument arguments[] = {{"--rounds", &rounds, 1, 1000000}, {"--words", &words, 1, 1000000}};
    program = "ring";
    parse(argc, argv, 2, arguments);
    start("ring", argc, argv);

    const int me = rwapi_rank(), nodes = rwapi_size();
    const int next = (me + 1) % nodes, previous = (me + nodes - 1) % nodes;
    const size_t size = (size_t)words * sizeof(uint64_t);

    rwapi_net_t arrived_net, leaving_net;
    const uint64_t *arrived = allocate(size, &arrived_net);
    uint64_t *leaving = allocate(size, &leaving_net);

    if (!message_send(previous, ADDRESS, 0, arrived_net)) fail_gone(previous);

    have_token = me == 0;
    rwapi_sid_t sid = 0;
    bool right = true;

    for (uint32_t round = 1; round <= (uint32_t)rounds; round++) {
        while (!next_net || !have_token) handle(message_await(), next, previous, round);
        data_wait_sent(sid); /* `leaving` may still be on its way from the round before */
        for (long i = 0; i < words; i++)
            leaving[i] = arrived[i] + (uint64_t)(me + 1) * (uint64_t)(i + 1);
        sid = data_write(next, leaving_net, next_net, size);
        if (!message_send(next, TOKEN, me == nodes - 1 ? round + 1 : round, 0)) fail_gone(next);
        have_token = false;
    }

    if (me == 0) {
        while (!have_token) handle(message_await(), next, previous, (uint32_t)rounds + 1);
        const uint64_t sum = (uint64_t)rounds * (uint64_t)nodes * (uint64_t)(nodes + 1) / 2;
        long wrong = 0;
        for (long i = 0; i < words; i++)
            if (arrived[i] != sum * (uint64_t)(i + 1)) wrong++;
        right = wrong == 0;
        if (right) printf("ring: %d nodes, %ld rounds, right\n", nodes, rounds);
        else printf("ring: %d nodes, %ld rounds, wrong: %ld of %ld words\n", nodes, rounds, wrong, words);
    }
    finish();
    return right ? 0 : 1;
}
