//! A sent message that is not acknowledged in full.
//!
//! Owns: the retained copy or the application's vectors, how far the message is, what was lost of it. Changed only by
//! [`Outgoing`](crate::message::outgoing::Outgoing), which counts what it keeps.

use crate::message::body::Body;
use crate::message::envelope::Envelope;
use crate::message::fragments::Fragments;
use crate::message::kept::Kept;
use crate::message::levels::Levels;
use crate::types::{CompletionLevel, PathId, RemoteKey};
use smallvec::SmallVec;

/// How far a sent message is.
#[derive(Debug, Clone)]
enum State {
    /// Sent without a grant; waits for its acknowledgement.
    Eager,
    /// Announced (or refused); waits for the grant.
    Announced,
    /// Granted; fragments are on their way. Boxed, because most messages have none.
    Granted(Box<Fragments>),
}

/// What is reported to the application when the message is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// How it ended.
    Always,
    /// Only an error.
    Errors,
    /// Nothing: it was reported before, or another operation reports it.
    Never,
}

/// A message to be sent.
pub(crate) struct Draft {
    pub envelope: Envelope,
    pub body: Body,
    /// It goes without a grant.
    pub eager: bool,
    pub context: usize,
    pub report: Report,
    pub level: CompletionLevel,
}

impl Draft {
    /// How much memory it will keep.
    #[inline]
    pub(super) fn kept(&self) -> Kept {
        Kept::of(&self.envelope, &self.body)
    }
}

/// What became of a message whose memory is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withdrawal {
    /// It is granted, and untouched: finish it.
    Granted,
    /// Only its envelope is still to arrive. `was_eager`: it went without a grant, and may have arrived; it is an
    /// announcement now.
    Announced { was_eager: bool },
}

#[derive(Debug, Clone)]
pub(crate) struct TxMsg {
    envelope: Envelope,
    body: Body,
    state: State,
    context: usize,
    report: Report,
    level: CompletionLevel,
    /// Place of the path whose turn this message is, under `round-robin`.
    turn: Option<u8>,
    /// What was lost of it, and where.
    levels: Option<Box<Levels>>,
    /// What decides whether an adapter may write it.
    placing: Option<Box<Placing>>,
}

/// See [`TxMsg::placing`].
#[derive(Debug, Clone, Default)]
struct Placing {
    /// By which keys its receiver's memory may be written, on which paths.
    keys: SmallVec<[(PathId, RemoteKey); 2]>,
    /// Fragments that went in datagrams or as bytes of a stream, as bits: their arrival may complete the message at any time.
    copied: Vec<u64>,
}

impl TxMsg {
    #[inline]
    pub(super) fn new(d: Draft) -> Self {
        Self {
            envelope: d.envelope,
            body: d.body,
            state: if d.eager { State::Eager } else { State::Announced },
            context: d.context,
            report: d.report,
            level: d.level,
            turn: None,
            levels: None,
            placing: None,
        }
    }

    // ---- what happens to it ------------------------------------------------------------------------------------

    /// It is announced from now on. False: it was not eager, and stays what it is.
    pub(super) fn announce(&mut self) -> bool {
        let was_eager = self.is_eager();
        if was_eager {
            self.state = State::Announced;
        }
        was_eager
    }

    /// The peer takes its first `bytes`. How many that are; `None`: it was withdrawn, or it is granted already. `again`: planted, a grant that
    /// comes again grants again.
    pub(super) fn grant(&mut self, bytes: u64, again: bool) -> Option<u64> {
        if matches!(self.body, Body::Withdrawn) {
            return None;
        }
        let granted = bytes.min(self.envelope.total);
        match &mut self.state {
            State::Granted(f) if again => f.grant_again(granted),
            State::Granted(_) => return None,
            State::Eager | State::Announced => {
                self.state = State::Granted(Box::new(Fragments::new(granted, self.envelope.granule)));
            }
        }
        Some(granted)
    }

    pub(super) fn fragments_mut(&mut self) -> Option<&mut Fragments> {
        match &mut self.state {
            State::Granted(f) => Some(f),
            State::Eager | State::Announced => None,
        }
    }

    /// It is the turn of the path in place `i` to carry it.
    pub(super) fn takes_turn(&mut self, i: usize) {
        self.turn = Some(i as u8);
    }

    /// What byte `at` belongs to was lost on the path in place `i`. The level that its vfrag has reached there.
    pub(super) fn note_loss(&mut self, at: u64, i: usize, counts: bool) -> u32 {
        let frag = at / u64::from(self.envelope.granule);
        self.levels.get_or_insert_default().note(frag, i, counts)
    }

    /// The fragment that byte `at` is in goes again.
    pub(super) fn goes_again(&mut self, at: u64) {
        self.levels.get_or_insert_default().goes_again(at / u64::from(self.envelope.granule));
    }

    /// The application's memory is not read any more: it goes on from a copy.
    pub(super) fn copy_memory(&mut self) {
        let Body::User(v) = &self.body else { return };
        let total = self.envelope.total as usize;
        let mut copy = Vec::with_capacity(total);
        v.gather(0, total, &mut copy);
        self.body = Body::Retained(copy);
    }

    /// Its memory, of which there is no copy, is taken back, and no completion is reported.
    pub(super) fn withdraw(&mut self) -> Withdrawal {
        debug_assert!(self.body.copied().is_none(), "what is copied need not be withdrawn");
        self.report = Report::Never;
        if self.fragments().is_some() {
            return Withdrawal::Granted;
        }
        let was_eager = self.is_eager();
        (self.body, self.state) = (Body::Withdrawn, State::Announced);
        Withdrawal::Announced { was_eager }
    }

    // ---- what it is --------------------------------------------------------------------------------------------

    #[inline]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    #[inline]
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The same, of a message that is done.
    #[inline]
    pub fn into_body(self) -> Body {
        self.body
    }

    pub fn context(&self) -> usize {
        self.context
    }

    #[inline]
    pub fn report(&self) -> Report {
        self.report
    }

    /// When the application was promised that it completes.
    #[inline]
    pub fn level(&self) -> CompletionLevel {
        self.level
    }

    /// The application was promised that it completes when the peer has it, or later.
    #[inline]
    pub fn delivery(&self) -> bool {
        self.level >= CompletionLevel::Delivered
    }

    /// The key by which the receiver's memory may be written on a path.
    pub fn key(&self, path: PathId) -> Option<RemoteKey> {
        self.placing.as_ref()?.keys.iter().find(|(p, _)| *p == path).map(|(_, key)| *key)
    }

    pub(super) fn set_key(&mut self, path: PathId, key: RemoteKey) {
        let keys = &mut self.placing.get_or_insert_default().keys;
        keys.retain(|(p, _)| *p != path);
        keys.push((path, key));
    }

    pub(super) fn set_copied(&mut self, at: u64) {
        let frag = at / u64::from(self.envelope.granule);
        let (word, bit) = ((frag / 64) as usize, frag % 64);
        let copied = &mut self.placing.get_or_insert_default().copied;
        if copied.len() <= word {
            copied.resize(word + 1, 0);
        }
        copied[word] |= 1 << bit;
    }

    /// Whether the fragment that byte `at` is in went by a way on which the receiver's engine puts it into its place.
    pub fn was_copied(&self, at: u64) -> bool {
        let frag = at / u64::from(self.envelope.granule);
        let word = self.placing.as_ref().and_then(|p| p.copied.get((frag / 64) as usize));
        word.is_some_and(|w| w >> (frag % 64) & 1 == 1)
    }

    pub fn turn(&self) -> Option<usize> {
        self.turn.map(usize::from)
    }

    #[inline]
    pub fn is_eager(&self) -> bool {
        matches!(self.state, State::Eager)
    }

    #[inline]
    pub fn is_announced(&self) -> bool {
        matches!(self.state, State::Announced)
    }

    /// Its fragments, once it is granted.
    #[inline]
    pub fn fragments(&self) -> Option<&Fragments> {
        match &self.state {
            State::Granted(f) => Some(f),
            State::Eager | State::Announced => None,
        }
    }

    /// Whether `[at, at + len)` is a piece of a fragment that still has to arrive.
    pub fn needs(&self, at: u64, len: u64) -> bool {
        self.fragments().is_some_and(|f| f.needs(at, len))
    }

    /// Whether the fragment that byte `at` is in was lost on the path in place `i` before.
    pub fn was_lost_on(&self, at: u64, i: usize) -> bool {
        self.levels.as_ref().is_some_and(|l| l.was_lost(at / u64::from(self.envelope.granule), i))
    }

    /// It is the answer to a read: its bytes are in registered memory.
    pub fn is_read(&self) -> bool {
        self.envelope.is_read()
    }

    /// How much memory it keeps.
    #[inline]
    pub(super) fn kept(&self) -> Kept {
        Kept::of(&self.envelope, &self.body)
    }

    /// How far it is, in words.
    pub fn describe(&self) -> String {
        let state = match self.state {
            State::Eager => "Eager",
            State::Announced => "Announced",
            State::Granted(_) => "Granted",
        };
        let total = self.envelope.total;
        let (granted, next, acked, count) =
            self.fragments().map_or((0, 0, 0, 0), |f| (f.granted(), f.next(), f.acked(), f.count()));
        format!("{state} {total} bytes, granted {granted} next {next} acked {acked} of {count} fragments")
    }
}
