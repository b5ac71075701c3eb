"""The heat equation on a square plate of --cells by --cells cells, --steps explicit steps.

Shows: an exchange of halos by one-sided writes, without a barrier.

Each node has a range of rows, and one row more at each side: the halo, a copy of the neighbour's edge. There are two
grids. A step reads one and writes the other, then writes its edges into the neighbours' halos of the other one. Two
grids are enough: a node writes the halos of step s + 1 only after it received those of step s, which the neighbour
sends when it no longer reads the grid of step s - 1. That is the grid that is overwritten.

At the end every node writes its rows into a block of node 0, which compares them with a serial computation, bit by bit.
"""

import argparse
import sys

import numpy

import rwapi
from common import data_wait_sent, data_write, fail, fail_gone, message_await, message_send, number_in

HALO_ADDRESS, RESULT_ADDRESS, HALO_WRITTEN, RESULT_WRITTEN = 1, 2, 3, 4
ABOVE, BELOW = 0, 1


def initial(cells, row, rows):
    """`rows` rows from `row`. Row 0 and row cells + 1 are borders, as are column 0 and column cells + 1."""
    i = numpy.arange(row, row + rows)[:, None]
    j = numpy.arange(cells + 2)[None, :]
    values = ((i * 7 + j * 13) % 100).astype("float64")
    values[:, 0] = values[:, -1] = 0.0
    values[(i == 0)[:, 0]] = 100.0
    values[(i == cells + 1)[:, 0]] = 0.0
    return values


def step(source, target):
    """One step. The nodes and the serial computation use this same function, so that both round in the same way."""
    c = source[1:-1, 1:-1]
    target[1:-1, 1:-1] = c + 0.2 * (
        (source[:-2, 1:-1] + source[2:, 1:-1]) + (source[1:-1, :-2] + source[1:-1, 2:]) - 4.0 * c
    )


def serial(cells, steps):
    grids = [initial(cells, 0, cells + 2), initial(cells, 0, cells + 2)]
    for number in range(steps):
        step(grids[number % 2], grids[(number + 1) % 2])
    return grids[steps % 2][1:-1]


class Node:
    def __init__(self, me, cells, steps):
        self.me, self.cells, self.steps = me, cells, steps
        self.first = cells * me.rank // me.size
        self.rows = cells * (me.rank + 1) // me.size - self.first
        self.neighbours = {}
        if me.rank > 0:
            self.neighbours[ABOVE] = me.rank - 1
        if me.rank + 1 < me.size:
            self.neighbours[BELOW] = me.rank + 1
        self.grids = rwapi.alloc((2, self.rows + 2, cells + 2), "float64")  # both in one block
        self.grids.array[:] = initial(cells, self.first, self.rows + 2)
        self.row_bytes = self.grids.array.strides[1]
        self.halo_net = {}  # the neighbour's halo that has our edge, by side and grid
        self.halos_arrived = {side: 0 for side in self.neighbours}  # the last step whose halo arrived
        self.result = None
        self.result_net = None
        self.results_arrived = 0

    def send_addresses(self):
        if self.me.rank == 0:
            self.result = rwapi.alloc((self.cells, self.cells + 2), "float64")
            for node in range(1, self.me.size):
                message_send(node, RESULT_ADDRESS, 0, self.result.net)
        for grid in range(2):
            for side, node in self.neighbours.items():
                halo = 0 if side == ABOVE else self.rows + 1
                message_send(node, HALO_ADDRESS, grid, self.grids.address_of((grid, halo)))

    def handle_until(self, condition):
        while not condition():
            self.handle(message_await())

    def handle(self, message):
        if message.gone:
            fail_gone(message.node)
        side = ABOVE if message.node == self.neighbours.get(ABOVE) else BELOW
        if message.kind == HALO_ADDRESS:
            self.halo_net[side, message.number] = message.value
        elif message.kind == RESULT_ADDRESS:
            self.result_net = message.value
        elif message.kind == HALO_WRITTEN:
            if message.number != self.halos_arrived[side] + 1:
                fail("a halo of another step")
            self.halos_arrived[side] += 1
        elif message.kind == RESULT_WRITTEN:
            self.results_arrived += 1

    def compute(self):
        sids = {}
        for number in range(1, self.steps + 1):
            to = number % 2
            for side in self.neighbours:  # the edges of this grid may still be on their way since two steps
                data_wait_sent(sids.get((side, to)))
            step(self.grids.array[1 - to], self.grids.array[to])
            for side, node in self.neighbours.items():
                self.handle_until(lambda: (side, to) in self.halo_net)
                edge = self.grids.address_of((to, 1 if side == ABOVE else self.rows))
                sids[side, to] = data_write(node, edge, self.halo_net[side, to], self.row_bytes)
                message_send(node, HALO_WRITTEN, number)
            self.handle_until(lambda: all(arrived >= number for arrived in self.halos_arrived.values()))

    def deliver(self):
        """Writes the rows into node 0's block."""
        self.handle_until(lambda: self.result_net is not None)
        own = self.grids.address_of((self.steps % 2, 1))
        data_write(0, own, self.result_net + self.first * self.row_bytes, self.rows * self.row_bytes)
        message_send(0, RESULT_WRITTEN)

    def compare(self):
        """At node 0: the number of cells that differ from the serial computation."""
        self.result.array[: self.rows] = self.grids.array[self.steps % 2, 1:-1]
        self.handle_until(lambda: self.results_arrived == self.me.size - 1)
        expected = serial(self.cells, self.steps)
        return int((self.result.array.view("uint64") != expected.view("uint64")).sum())


def main():
    parser = argparse.ArgumentParser(description="the heat equation with halos by one-sided writes")
    parser.add_argument("--cells", type=number_in(1, 10_000), default=128)
    parser.add_argument("--steps", type=number_in(1, 1_000_000), default=200)
    options = parser.parse_args()

    with rwapi.job() as me:
        if options.cells < me.size:
            fail("every node needs a row: --cells")
        right = True
        try:
            node = Node(me, options.cells, options.steps)
            node.send_addresses()
            node.compute()
            if me.rank == 0:
                wrong = node.compare()
                right = wrong == 0
                verdict = "right" if right else f"wrong: {wrong} cells"
                print(f"heat: {me.size} nodes, {options.steps} steps, {verdict}", flush=True)
            else:
                node.deliver()
        except rwapi.NodeGone as error:
            fail_gone(error.node)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
