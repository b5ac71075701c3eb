"""The package on a job of one node. It sends to itself and writes to itself; see library.py for the library in use."""

import array
import errno
import os
import pickle
import struct
import tempfile
import threading
import unittest

import library

import rwapi

try:
    import numpy
except ImportError:
    numpy = None

needs_numpy = unittest.skipIf(numpy is None, "numpy is not installed")
needs_loopback = unittest.skipUnless(library.IS_LOOPBACK, "only the loopback library has a node that is gone")


def setUpModule():
    rwapi.init()


def tearDownModule():
    rwapi.finalize()


def receive():
    """Waits for a message."""
    while True:
        message = rwapi.receive()
        if message is not None:
            return message
        rwapi.wait(1)


def wait_sent(sid):
    while not rwapi.is_sent(sid):
        rwapi.wait(0.01)


class SmallMessages(unittest.TestCase):
    def test_the_job_has_one_node(self):
        self.assertEqual((rwapi.rank(), rwapi.size()), (0, 1))

    def test_a_message_arrives_filled_up_with_zeros(self):
        rwapi.send(0, b"hello")
        self.assertEqual(receive(), (0, b"hello".ljust(16, b"\0")))
        self.assertIsNone(rwapi.receive())

    def test_every_byte_of_a_message_arrives_in_its_place(self):
        data = bytes(range(0xF0, 0x100))
        rwapi.send(0, data)
        self.assertEqual(receive()[1], data)

    def test_any_bytes_like_object_can_be_sent(self):
        for data in (b"ab", bytearray(b"ab"), memoryview(b"a-b-")[::2], array.array("B", b"ab")):
            rwapi.send(0, data)
            self.assertEqual(receive()[1][:3], b"ab\0")
        rwapi.send(0, struct.pack("<Iq", 7, -9))
        self.assertEqual(struct.unpack_from("<Iq", receive()[1]), (7, -9))

    def test_seventeen_bytes_are_refused(self):
        with self.assertRaises(ValueError):
            rwapi.send(0, bytes(17))
        with self.assertRaises(TypeError):
            rwapi.send(0, "text")

    def test_messages_arrive_in_order_after_the_room_was_used_up(self):
        sent = 0
        try:
            while sent < 10_000:
                rwapi.send(0, struct.pack("<I", sent))
                sent += 1
        except rwapi.Again as error:
            self.assertEqual(error.errno, errno.EAGAIN)
        self.assertGreater(sent, 0)
        for number in range(sent):
            self.assertEqual(struct.unpack_from("<I", receive()[1])[0], number)

    def test_no_such_node_is_an_error_with_the_sentence_of_the_library(self):
        for node in (1_000_000, -1, 1 << 40, -(1 << 40)):
            with self.assertRaises(rwapi.RwapiError) as caught:
                rwapi.send(node, b"")
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertTrue(caught.exception.strerror)
            self.assertIsInstance(caught.exception, OSError)

    def test_a_number_of_33_bits_is_not_cut_to_node_0(self):
        with self.assertRaises(rwapi.RwapiError):
            rwapi.send(1 << 32, b"")
        self.assertIsNone(rwapi.receive())


class Waiting(unittest.TestCase):
    def test_wait_lets_another_thread_send(self):
        thread = threading.Timer(0.05, rwapi.send, (0, b"wake up"))
        thread.start()
        message = None
        while message is None:
            rwapi.wait()
            message = rwapi.receive()
        thread.join()
        self.assertEqual(message[1].rstrip(b"\0"), b"wake up")

    def test_wait_ends_at_its_timeout(self):
        self.assertIn(rwapi.wait(0), (False, True))
        while rwapi.wait(0.01):  # it may report changes of before
            self.assertIsNone(rwapi.receive())

    def test_a_negative_timeout_is_refused(self):
        for timeout in (-1, float("nan")):
            with self.assertRaises(ValueError):
                rwapi.wait(timeout)

    def test_a_barrier_of_one_node_returns(self):
        rwapi.barrier()


@needs_numpy
class Blocks(unittest.TestCase):
    def test_a_new_block_is_zero_and_has_the_shape_and_type(self):
        block = rwapi.alloc((3, 4), "float32")
        self.assertEqual((block.array.shape, block.array.dtype, block.nbytes), ((3, 4), numpy.float32, 48))
        self.assertFalse(block.array.any())
        self.assertNotEqual(block.net, 0)
        block.free()

    def test_the_address_of_an_element_is_where_numpy_has_it(self):
        block = rwapi.alloc((3, 4, 5), "int32")
        start = block.array.__array_interface__["data"][0]
        for index in ((0, 0, 0), (2, 3, 4), (-1, -1, -1), (1, 2), (-2,), 2):
            first = tuple(index) if isinstance(index, tuple) else (index,)
            first += (0,) * (3 - len(first))
            part = block.array[tuple(slice(i, i + 1 or None) for i in first)]  # a view of one element
            self.assertEqual(block.address_of(index) - block.net, part.__array_interface__["data"][0] - start, index)
        for index in (3, (0, 4), (0, 0, -6), (0, 0, 0, 0)):
            with self.assertRaises(IndexError):
                block.address_of(index)
        with self.assertRaises(TypeError):
            block.address_of(slice(1))
        del part
        block.free()

    def test_free_refuses_while_an_array_exists_and_works_after_it_is_gone(self):
        block = rwapi.alloc(100, "uint8")
        views = (
            lambda: block.array,
            lambda: block.array[10:],
            lambda: memoryview(block.array),
            lambda: block.array.reshape(10, 10).T,
            lambda: [block.array],
        )
        for number, make in enumerate(views, 1):
            view = make()
            block.array[99] = number
            with self.assertRaises(BufferError):
                block.free()
            self.assertEqual(block.array[99], number)  # the refused block is as before
            del view
        block.free()

    def test_an_array_in_garbage_does_not_keep_a_block(self):
        block = rwapi.alloc(100, "uint8")
        cycle = [block.array]
        cycle.append(cycle)
        del cycle
        block.free()

    def test_after_free_the_block_has_no_memory(self):
        block = rwapi.alloc(100, "uint8")
        net = block.net
        block.free()
        names = ("array", "net", "nbytes")
        uses = [lambda name=name: getattr(block, name) for name in names]
        for use in (*uses, lambda: block.address_of(0), block.free):
            with self.assertRaises(ValueError):
                use()
        self.assertEqual(repr(block), "<rwapi.Block, freed>")
        with self.assertRaises(rwapi.RwapiError) as caught:
            rwapi.write(0, net, net, 1)
        self.assertEqual(caught.exception.errno, errno.EFAULT)

    def test_a_forgotten_block_stays_for_the_writes_of_other_nodes(self):
        net = rwapi.alloc(8, "uint8").net
        source = rwapi.alloc(8, "uint8")
        wait_sent(rwapi.write(0, source.net, net, 8))
        source.free()

    def test_python_objects_and_impossible_sizes_are_refused(self):
        with self.assertRaises(TypeError):
            rwapi.alloc(3, object)
        with self.assertRaises(ValueError):
            rwapi.alloc(-1)
        for shape in (1 << 64, (1 << 40, 1 << 40), 1 << 62):
            with self.assertRaises(rwapi.RwapiError):
                rwapi.alloc(shape)


@needs_numpy
class Writes(unittest.TestCase):
    def setUp(self):
        self.source = rwapi.alloc(1000, "int64")
        self.target = rwapi.alloc(1000, "int64")

    def tearDown(self):
        self.source.free()
        self.target.free()

    def test_a_message_after_a_write_arrives_after_its_data(self):
        self.source.array[:] = numpy.arange(1000)
        sid = rwapi.write(0, self.source.address_of(100), self.target.address_of(500), 400 * 8)
        self.assertGreater(sid, 0)
        rwapi.send(0, b"written")
        receive()
        self.assertTrue((self.target.array[500:900] == numpy.arange(100, 500)).all())
        self.assertFalse(self.target.array[:500].any() or self.target.array[900:].any())
        wait_sent(sid)

    def test_the_message_of_write_notify_arrives_after_its_data(self):
        self.source.array[:] = 5
        sid = rwapi.write_notify(0, self.source.net, self.target.net, 8000, b"all")
        self.assertEqual(receive()[1].rstrip(b"\0"), b"all")
        self.assertTrue((self.target.array == 5).all())
        wait_sent(sid)

    def test_more_writes_than_there_is_room_for_all_arrive(self):
        self.source.array[:] = numpy.arange(1000)
        sids = []
        for index in range(1000):
            while True:
                try:
                    sids.append(rwapi.write(0, self.source.address_of(index), self.target.address_of(999 - index), 8))
                    break
                except rwapi.Again:
                    rwapi.wait(0.01)
        self.assertEqual(len(set(sids)), 1000)
        for sid in sids:
            wait_sent(sid)
        rwapi.send(0, b"")
        receive()
        self.assertTrue((self.target.array == numpy.arange(1000)[::-1]).all())

    def test_a_range_beyond_the_block_is_refused(self):
        for local, remote in ((self.source.net + 1, self.target.net), (12, self.target.net)):
            with self.assertRaises(rwapi.RwapiError) as caught:
                rwapi.write(0, local, remote, 8000)
            self.assertEqual(caught.exception.errno, errno.EFAULT)
        for wrong in (-1, 1 << 64):
            with self.assertRaises(rwapi.RwapiError):
                rwapi.write(0, self.source.net, self.target.net, wrong)
        with self.assertRaises(rwapi.RwapiError):
            rwapi.write(0, self.source.net, self.target.net, 0)

    def test_an_unknown_identifier_is_refused(self):
        for sid in (0, -1, 1 << 62):
            with self.assertRaises(rwapi.RwapiError) as caught:
                rwapi.is_sent(sid)
            self.assertEqual(caught.exception.errno, errno.EINVAL)


class Life(unittest.TestCase):
    """What happens once in a process happens in another process here."""

    def assert_runs(self, code, **environment):
        done = library.run(code, **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_calls_outside_of_a_job_are_refused(self):
        self.assert_runs(
            "import rwapi, errno\n"
            "def refused():\n"
            "    for call in (rwapi.rank, rwapi.size, rwapi.receive, rwapi.finalize, rwapi.barrier,\n"
            "                 lambda: rwapi.wait(0), lambda: rwapi.send(0, b''), lambda: rwapi.is_sent(1)):\n"
            "        try: call()\n"
            "        except rwapi.RwapiError as error: assert error.errno == errno.ENOTCONN, error\n"
            "        else: raise SystemExit('not refused')\n"
            "refused()\n"
            "rwapi.init(['program', 'argument'])\n"
            "try: rwapi.init()\n"
            "except rwapi.RwapiError as error: assert error.errno == errno.EALREADY, error\n"
            "else: raise SystemExit('not refused')\n"
            "rwapi.finalize()\n"
            "refused()\n"
        )

    def test_job_leaves_at_the_end_and_at_sys_exit_but_not_after_an_exception(self):
        code = (
            "import rwapi, sys\n"
            "try:\n"
            "    with rwapi.job() as me:\n"
            "        assert (me.rank, me.size) == (0, 1)\n"
            "        {}\n"
            "except (SystemExit, ZeroDivisionError): pass\n"
            "try: rwapi.rank()\n"
            "except rwapi.RwapiError: print('left')\n"
            "else: print('in the job')\n"
        )
        bodies = {"pass": "left", "sys.exit()": "left", "sys.exit(1)": "in the job", "1 / 0": "in the job"}
        for body, after in bodies.items():
            done = library.run(code.format(body))
            self.assertEqual(done.stdout.strip(), after, body + done.stderr)

    def test_a_child_of_fork_is_refused(self):
        self.assert_runs(
            "import rwapi, errno, os\n"
            "rwapi.init()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try: rwapi.send(0, b'')\n"
            "    except rwapi.RwapiError as error: os._exit(0 if error.errno == errno.EPERM else 2)\n"
            "    os._exit(1)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "rwapi.finalize()\n"
        )

    def test_a_signal_handler_runs_during_a_wait_without_bound(self):
        self.assert_runs(
            "import rwapi, os, signal, threading\n"
            "rwapi.init()\n"
            # in a job of a shell in the background it is ignored
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
            "try:\n"
            "    while True: rwapi.wait()\n"
            "except KeyboardInterrupt: pass\n"
            "rwapi.finalize()\n"
        )

    def test_without_numpy_messages_work_and_alloc_says_what_is_missing(self):
        self.assert_runs(
            "import sys; sys.modules['numpy'] = None\n"
            "import rwapi\n"
            "with rwapi.job():\n"
            "    rwapi.send(0, b'a')\n"
            "    while rwapi.receive() is None: rwapi.wait(1)\n"
            "    try: rwapi.alloc(3)\n"
            "    except ImportError as error: assert 'numpy' in str(error)\n"
            "    else: raise SystemExit('not refused')\n"
        )

    @needs_loopback
    def test_a_node_that_is_gone_is_reported_once_with_its_rank(self):
        self.assert_runs(
            "import rwapi, errno\n"
            "with rwapi.job() as me:\n"
            "    assert me.size == 2\n"
            "    try: rwapi.receive()\n"
            "    except rwapi.NodeGone as error: assert (error.node, error.errno) == (1, errno.EHOSTDOWN)\n"
            "    else: raise SystemExit('not reported')\n"
            "    assert rwapi.receive() is None\n"
            "    try: rwapi.send(1, b'')\n"
            "    except rwapi.NodeGone as error: assert error.node == 1 and str(error).endswith('is gone'), error\n"
            "    else: raise SystemExit('not refused')\n",
            LOOPBACK_GONE="1",
        )


class Loading(unittest.TestCase):
    def import_error(self, path):
        done = library.run("try:\n import rwapi\nexcept ImportError as error: print(error)", RWAPI_LIBRARY=path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_library_that_is_not_there_is_named(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "librwapi.so")
            self.assertIn("RWAPI_LIBRARY names a library that does not load: " + path, self.import_error(path))

    def test_a_library_of_something_else_is_refused(self):
        self.assertIn("has no function rwapi_init", self.import_error("libc.so.6"))

    def test_errors_survive_pickling(self):
        for error in (rwapi.NodeGone(3), rwapi.NodeGone(None), rwapi.Again(errno.EAGAIN, "no room")):
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), copy.errno, str(copy)), (type(error), error.errno, str(error)))
        self.assertEqual(pickle.loads(pickle.dumps(rwapi.NodeGone(3))).node, 3)


if __name__ == "__main__":
    unittest.main()
