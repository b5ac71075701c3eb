//! Every order in which the two sides of a ring, and the threads of one side, can pass through the words that they
//! share (`control.rs`, `lent.rs`). The files themselves are compiled here, with loom's atomics. The bytes are atomics
//! as well, or, where nothing may read them while they are written, a cell: loom reports such a read.

mod sync {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[allow(dead_code)]
#[path = "../src/control.rs"]
mod control;
#[allow(dead_code)]
#[path = "../src/lent.rs"]
mod lent;
#[path = "../src/sleepers.rs"]
mod sleepers;

use control::Control;
use lent::{State, Words};
use loom::cell::UnsafeCell;
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

/// What the table of connections keeps of a process whose threads share a ring: under its lock, as in `shared.rs`.
#[derive(Default)]
struct Process {
    ring: Model,
    sleepers: sleepers::Sleepers,
    table: loom::sync::Mutex<()>,
}

impl Process {
    fn tell_who_sleeps(&self) {
        let _table = self.table.lock().unwrap();
        self.ring.control.reader_sleeps(self.sleepers.any());
    }
}

#[test]
fn a_thread_that_goes_to_sleep_while_another_wakes_up_misses_no_bell() {
    loom::model(|| {
        let p = Arc::new(Process::default());
        // one sleeps
        p.sleepers.enter();
        p.tell_who_sleeps();
        let waking = {
            let p = p.clone();
            thread::spawn(move || {
                p.sleepers.leave();
                p.tell_who_sleeps();
            })
        };
        // another goes to sleep, while the first wakes up
        p.sleepers.enter();
        p.tell_who_sleeps();
        fence(Ordering::SeqCst);
        assert_eq!(p.ring.control.taken(), p.ring.control.ready(), "nothing was written yet");
        waking.join().unwrap();
        // it sleeps now, and something comes
        assert!(p.ring.push(7));
        assert!(p.ring.reader_bell.load(Ordering::SeqCst), "it sleeps, and no bell is rung");
    });
}

#[test]
fn a_thread_that_goes_to_sleep_while_another_begins_to_wait_for_room_misses_no_bell() {
    loom::model(|| {
        let p = Arc::new(Process::default());
        for value in 0..PLACES {
            assert!(p.ring.push(value));
        }
        let waits = Arc::new(AtomicBool::new(false));
        let news = Arc::new(AtomicBool::new(false));
        let reader = {
            let p = p.clone();
            thread::spawn(move || assert_eq!(p.ring.pop(), Some(0)))
        };
        // an awake thread finds no room, begins to wait for it, and goes on to compute
        let awake = {
            let (p, waits, news) = (p.clone(), waits.clone(), news.clone());
            thread::spawn(move || {
                waits.store(true, Ordering::Relaxed);
                let lock = || p.table.lock().ok();
                let has_room = || p.ring.control.written() - p.ring.control.freed() < PLACES;
                if p.sleepers.arm(lock, || p.ring.control.writer_sleeps(true), has_room) {
                    news.store(true, Ordering::SeqCst);
                }
            })
        };
        // another goes to sleep, as `before_sleep` does
        p.sleepers.enter();
        {
            let _table = p.table.lock().unwrap();
            p.ring.control.writer_sleeps(p.sleepers.any() && waits.load(Ordering::Relaxed));
        }
        fence(Ordering::SeqCst);
        let sees =
            waits.load(Ordering::Relaxed) && p.ring.control.written() - p.ring.control.freed() < PLACES;
        reader.join().unwrap();
        awake.join().unwrap();
        let woken = p.ring.writer_bell.load(Ordering::SeqCst) || news.load(Ordering::SeqCst);
        assert!(sees || woken, "it sleeps, and there is room that is waited for");
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

/// A writer's memory, of which pieces are lent, and the words.
#[derive(Default)]
struct Lending {
    words: Words,
    memory: [AtomicU64; 3],
}

impl Lending {
    fn set(&self, at: usize, value: u64) {
        self.memory[at].store(value, Ordering::Relaxed);
    }

    /// The reader copies up to `most` of what is lent, and says what it got; nothing when it does not count.
    fn read(&self, most: usize) -> Vec<u64> {
        let Some(offer) = self.words.offer() else { return Vec::new() };
        let n = offer.left().expect("the writer is not broken").min(most);
        if !self.words.begin(&offer) {
            return Vec::new();
        }
        let from = offer.at as usize + offer.read;
        let copied = (from..from + n).map(|i| self.memory[i].load(Ordering::Relaxed)).collect();
        if self.words.end(&offer, n) { copied } else { Vec::new() }
    }
}

#[test]
fn what_was_called_in_and_lent_again_elsewhere_is_not_taken_for_the_first() {
    loom::model(|| {
        let m = Arc::new(Lending::default());
        m.set(0, 1);
        m.words.lend(1, 0, 1);
        let reader = {
            let m = m.clone();
            thread::spawn(move || m.read(1))
        };
        let first = m.words.call_in();
        // the memory is the program's again
        m.set(0, 99);
        m.set(1, 2);
        m.words.lend(2, 1, 1);
        let got = reader.join().unwrap();
        let second = m.words.call_in();
        let told: &[u64] = match (first, second) {
            (1, 0) => &[1],
            (0, 1) => &[2],
            (0, 0) => &[],
            both => panic!("one reader read {both:?}"),
        };
        assert_eq!(got, told, "both sides agree on what was read, and it is what was lent");
    });
}

#[test]
fn what_is_read_in_pieces_is_read_once_each() {
    loom::model(|| {
        let m = Arc::new(Lending::default());
        (0..3).for_each(|i| m.set(i, i as u64 + 1));
        m.words.lend(1, 0, 3);
        let reader = {
            let m = m.clone();
            thread::spawn(move || [m.read(1), m.read(1), m.read(2)].concat())
        };
        let seen = m.words.look();
        let told = m.words.call_in();
        // what is not read goes another way; the memory is the program's again
        (0..3).for_each(|i| m.set(i, 99));
        let got = reader.join().unwrap();
        assert!(
            seen.1 <= told && (seen.0 != State::None || seen.1 == 3),
            "given back when it was read to its end"
        );
        assert!(got.into_iter().eq(1..=told as u64), "{told} of it count");
    });
}

#[test]
fn who_knows_that_it_was_read_may_write_over_it() {
    // a cell, because nothing reads what is void here: loom reports a read while it is overwritten
    for calls_in in [false, true] {
        loom::model(move || {
            let m = Arc::new((Words::default(), UnsafeCell::new(7)));
            m.0.lend(1, 0, 1);
            let reader = {
                let m = m.clone();
                thread::spawn(move || {
                    let Some(offer) = m.0.offer().filter(|o| m.0.begin(o)) else { return };
                    // SAFETY: loom sees to it.
                    assert_eq!(m.1.with(|p| unsafe { *p }), 7);
                    m.0.end(&offer, 1);
                })
            };
            while !calls_in && m.0.is_out() {
                thread::yield_now();
            }
            if !calls_in || m.0.call_in() == 1 {
                // SAFETY: as above.
                m.1.with_mut(|p| unsafe { *p = 8 });
            }
            reader.join().unwrap();
        });
    }
}

#[test]
fn a_refusal_counts_for_the_loan_that_was_refused_alone() {
    loom::model(|| {
        let m = Arc::new(Lending::default());
        m.words.lend(1, 0, 1);
        let reader = {
            let m = m.clone();
            thread::spawn(move || {
                let offer = m.words.offer().filter(|o| m.words.begin(o));
                offer.map(|o| {
                    m.words.refuse(&o);
                    o.at
                })
            })
        };
        let first = m.words.look().0 == State::Refused;
        m.words.call_in();
        m.words.lend(2, 1, 1);
        let refused = reader.join().unwrap();
        let second = m.words.look().0 == State::Refused;
        assert!(!first || refused == Some(0));
        assert_eq!(second, refused == Some(1), "the refusal of the first does not count for the second");
    });
}

#[test]
fn who_sees_where_the_mark_is_sees_the_mark() {
    loom::model(|| {
        let m = Arc::new(Lending::default());
        let writer = {
            let m = m.clone();
            thread::spawn(move || m.words.set_mark(8, 5))
        };
        assert!(m.words.mark().is_none_or(|mark| mark == (8, 5)));
        writer.join().unwrap();
    });
}
