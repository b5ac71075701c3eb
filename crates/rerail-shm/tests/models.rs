//! Every order in which the two sides of a ring, and the threads of one side, can pass through the words that they share
//! (`control.rs`). The file itself is compiled here, with loom's atomics. The bytes of the ring are cells that loom watches: who reads one
//! while another may write it is found.

mod sync {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[allow(dead_code)]
#[path = "../src/control.rs"]
mod control;

use control::Control;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;

/// Places in the ring of the models.
const PLACES: u64 = 2;

/// A ring of numbers, its words, and the bells of its two sides.
#[derive(Default)]
struct Model {
    control: Control,
    // atomics, because a reader that comes too late reads what is being written, and throws it away
    places: [AtomicU64; PLACES as usize],
    reader_bell: AtomicBool,
    writer_bell: AtomicBool,
}

impl Model {
    /// Without the bell. `at`: how far the writer is, which it knows by itself here: a look at its own word keeps loom from trying what a
    /// reader may see of it too early.
    fn put(&self, at: u64, value: u64) -> bool {
        if at - self.control.freed() == PLACES {
            return false;
        }
        self.places[(at % PLACES) as usize].store(value, Ordering::Relaxed);
        self.control.publish(at + 1);
        true
    }

    fn push(&self, value: u64) -> bool {
        if !self.put(self.control.written(), value) {
            return false;
        }
        if self.control.reader_to_wake() {
            self.reader_bell.store(true, Ordering::SeqCst);
        }
        true
    }

    fn pop(&self) -> Option<u64> {
        let value = self.get()?;
        if self.control.writer_to_wake(|| self.has_room()) {
            self.writer_bell.store(true, Ordering::SeqCst);
        }
        Some(value)
    }

    fn get(&self) -> Option<u64> {
        loop {
            let head = self.control.taken();
            if head == self.control.ready() {
                return None;
            }
            let value = self.places[(head % PLACES) as usize].load(Ordering::Relaxed);
            if self.control.claim(head, head + 1) {
                return Some(value);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.control.ready() - self.control.taken() < PLACES
    }
}

#[test]
fn a_reader_that_goes_to_sleep_sees_what_is_there_or_is_woken() {
    loom::model(|| {
        let m = Arc::new(Model::default());
        let writer = {
            let m = m.clone();
            thread::spawn(move || assert!(m.push(7)))
        };
        m.control.reader_sleeps(true);
        fence(Ordering::SeqCst);
        let sees = m.control.taken() != m.control.ready();
        writer.join().unwrap();
        assert!(sees || m.reader_bell.load(Ordering::SeqCst), "it sleeps, and something is there");
    });
}

#[test]
fn a_writer_that_goes_to_sleep_sees_room_or_is_woken() {
    loom::model(|| {
        let m = Arc::new(Model::default());
        for value in 0..PLACES {
            assert!(m.push(value));
        }
        let reader = {
            let m = m.clone();
            thread::spawn(move || assert_eq!(m.pop(), Some(0)))
        };
        m.control.writer_sleeps(true);
        fence(Ordering::SeqCst);
        let sees = m.control.written() - m.control.freed() < PLACES;
        reader.join().unwrap();
        assert!(sees || m.writer_bell.load(Ordering::SeqCst), "it sleeps, and there is room");
    });
}

#[test]
fn two_threads_of_the_reader_take_everything_once_while_it_is_written_over() {
    loom::model(|| {
        let m = Arc::new(Model::default());
        for value in 1..=PLACES {
            assert!(m.push(value));
        }
        let taker = {
            let m = m.clone();
            thread::spawn(move || m.pop())
        };
        let writer = {
            let m = m.clone();
            thread::spawn(move || m.push(3))
        };
        let mut got: Vec<u64> = m.pop().into_iter().collect();
        got.extend(taker.join().unwrap());
        let pushed = writer.join().unwrap();
        while let Some(value) = m.pop() {
            got.push(value);
        }
        got.sort_unstable();
        let all: Vec<u64> = (1..=PLACES + u64::from(pushed)).collect();
        assert_eq!(got, all);
    });
}

#[test]
fn what_is_taken_is_what_was_written() {
    loom::model(|| {
        let m = Arc::new(Model::default());
        let writer = {
            let m = m.clone();
            thread::spawn(move || (0..=PLACES).take_while(|&at| m.put(at, at + 1)).count() as u64)
        };
        let mut got: Vec<u64> = m.get().into_iter().collect();
        let pushed = writer.join().unwrap();
        while let Some(value) = m.pop() {
            got.push(value);
        }
        assert!(got.into_iter().eq(1..=pushed));
    });
}
