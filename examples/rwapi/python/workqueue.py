"""A work queue: node 0 hands out --tasks tasks, the other nodes work. Task t counts the primes among --numbers numbers.

Shows: a job that goes on when a node dies. `receive` reports a dead node after its last message; node 0 then hands out
the tasks of this node again. Where no worker is left, node 0 works itself.

With --die K node K ends in the middle of its second task. The launcher must let the others go on:
`rerail launch --keep-going`.
"""

import argparse
import os
import sys
from collections import deque

import rwapi
from common import fail_gone, message_await, message_send, number_in

TASK, RESULT, STOP = 1, 2, 3

# Two tasks for each worker: it has the next one when it sends a result.
TASKS_PER_WORKER = 2


def is_prime(n):
    if n < 4:
        return n >= 2
    if n % 2 == 0:
        return False
    divisor = 3
    while divisor * divisor <= n:
        if n % divisor == 0:
            return False
        divisor += 2
    return True


def count_primes(task, numbers):
    return sum(map(is_prime, range(task * numbers, (task + 1) * numbers)))


def expected(end):
    """The primes below `end`, by a sieve."""
    sieve = bytearray([1]) * end
    sieve[:2] = bytes(min(end, 2))
    for n in range(2, int(end**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, end, n)))
    return sum(sieve)


def work(me, options):
    received = 0
    while True:
        message = message_await()
        if message.gone:
            if message.node == 0:
                fail_gone(0)
            continue  # another worker: node 0 sees to its tasks
        if message.kind == STOP:
            return
        received += 1
        if options.die == me.rank and received == 2:
            os._exit(1)
        try:
            message_send(0, RESULT, message.number, count_primes(message.number, options.numbers))
        except rwapi.NodeGone:
            fail_gone(0)


def hand_out(me, options):
    free = deque(range(options.tasks))
    tasks_of = {node: set() for node in range(1, me.size)}  # of the living workers
    total = done = 0

    def give(node):
        try:
            message_send(node, TASK, free[0])
        except rwapi.NodeGone:
            return  # its last messages still come; its tasks become free after them
        tasks_of[node].add(free.popleft())

    while done < options.tasks:
        for limit in range(1, TASKS_PER_WORKER + 1):
            for node, given in tasks_of.items():
                if free and len(given) < limit:
                    give(node)
        if not tasks_of:
            total += count_primes(free.popleft(), options.numbers)
            done += 1
            continue
        message = message_await()
        if message.gone:
            again = tasks_of.pop(message.node)
            free.extendleft(sorted(again, reverse=True))
            print(f"workqueue: node {message.node} is gone, {len(again)} tasks are handed out again", flush=True)
        elif message.kind == RESULT and message.number in tasks_of[message.node]:
            tasks_of[message.node].remove(message.number)
            total += message.value
            done += 1
    for node in tasks_of:
        try:
            message_send(node, STOP)
        except rwapi.NodeGone:
            pass

    right = expected(options.tasks * options.numbers)
    verdict = "right" if total == right else f"wrong: {total} primes instead of {right}"
    print(f"workqueue: {me.size} nodes, {options.tasks} tasks, {verdict}", flush=True)
    return total == right


def main():
    parser = argparse.ArgumentParser(description="a work queue that survives the death of workers")
    parser.add_argument("--tasks", type=number_in(1, 10_000), default=200)
    parser.add_argument("--numbers", type=number_in(1, 10_000), default=500)
    parser.add_argument("--die", type=number_in(1, 1_000_000), metavar="NODE")
    options = parser.parse_args()

    right = True
    with rwapi.job() as me:
        if me.rank == 0:
            right = hand_out(me, options)
        else:
            work(me, options)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
