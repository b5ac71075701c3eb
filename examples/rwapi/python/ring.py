"""A token with data passes through all nodes, --rounds times. Each node adds to every word of the data.

Shows: the exchange of network addresses by small messages, and a write with a message after it.

A node receives the token in the block `arrived` and sends it from the block `leaving`. Node k adds (k + 1) * (i + 1) to
word i, so N nodes and R rounds give R * (i + 1) * N * (N + 1) / 2.
"""

import argparse
import sys

import numpy

import rwapi
from common import data_wait_sent, data_write, fail, fail_gone, message_await, message_send, number_in

ADDRESS, TOKEN = 1, 2


def main():
    parser = argparse.ArgumentParser(description="a token passes through all nodes")
    parser.add_argument("--rounds", type=number_in(1, 1_000_000), default=100)
    parser.add_argument("--words", type=number_in(1, 1_000_000), default=1000)
    options = parser.parse_args()

    with rwapi.job() as me:
        following, previous = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        arrived = rwapi.alloc(options.words, "uint64")
        leaving = rwapi.alloc(options.words, "uint64")
        factors = numpy.arange(1, options.words + 1, dtype="uint64")
        own = factors * numpy.uint64(me.rank + 1)

        following_net = None
        have_token = me.rank == 0

        def handle(message, number):
            """The address of the next node and the token can arrive in any order, since their senders differ."""
            nonlocal following_net, have_token
            if message.gone:
                fail_gone(message.node)
            elif message.kind == ADDRESS and message.node == following:
                following_net = message.value
            elif message.kind == TOKEN and message.node == previous and message.number == number:
                have_token = True
            else:
                fail(f"an unexpected message: {message}")

        try:
            message_send(previous, ADDRESS, 0, arrived.net)
            sid = None
            for number in range(1, options.rounds + 1):
                while following_net is None or not have_token:
                    handle(message_await(), number)
                data_wait_sent(sid)  # `leaving` may still be on its way from the round before
                leaving.array[:] = arrived.array + own
                sid = data_write(following, leaving.net, following_net, leaving.nbytes)
                message_send(following, TOKEN, number + 1 if me.rank == me.size - 1 else number)
                have_token = False
            right = True
            if me.rank == 0:
                while not have_token:
                    handle(message_await(), options.rounds + 1)
                total = options.rounds * me.size * (me.size + 1) // 2
                wrong = int((arrived.array != factors * numpy.uint64(total)).sum())
                right = wrong == 0
                verdict = "right" if right else f"wrong: {wrong} of {options.words} words"
                print(f"ring: {me.size} nodes, {options.rounds} rounds, {verdict}", flush=True)
        except rwapi.NodeGone as error:
            fail_gone(error.node)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
