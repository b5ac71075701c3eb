//! The proof of a peer's identity, and the encrypted session with it.
//!
//! Owns: the keys of the pair, whether the peer has shown that it has them too, and the encrypted session. Invariant: a peer that has proved itself
//! stays so; what comes in its name without a proof changes nothing for it.

use crate::cipher::Session;
use rerail_wire::PairKeys;

/// See above.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    /// The keys that only the peer and this process have; `None`: its public key is not known yet.
    keys: Option<PairKeys>,
    proved: bool,
    session: Option<Box<Session>>,
}

impl Credentials {
    /// There are keys of the pair.
    pub fn know(&mut self, keys: PairKeys) {
        self.keys = Some(keys);
    }

    /// The keys of the pair.
    #[inline]
    pub fn keys(&self) -> Option<&PairKeys> {
        self.keys.as_ref()
    }

    /// The peer was known from a hello only, and is forgotten. Returns the keys of the pair.
    pub fn forget(&mut self) -> Option<PairKeys> {
        self.keys.take()
    }

    /// The peer has shown that it has the keys: a hello in its name takes effect only if it shows that as well.
    pub fn prove(&mut self) {
        self.proved = true;
    }

    /// Whether it has.
    pub fn is_proved(&self) -> bool {
        self.proved
    }

    // ---- the encrypted session ---------------------------------------------------------------------------------

    /// The session that there is.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    /// The session, which begins if there is none.
    pub fn session_or(&mut self, begin: impl FnOnce() -> Session) -> &Session {
        self.session.get_or_insert_with(|| Box::new(begin()))
    }

    /// The session, to be joined by the peer, and the keys of the pair.
    pub fn joining(&mut self) -> Option<(&mut Session, &PairKeys)> {
        Some((self.session.as_deref_mut()?, self.keys.as_ref()?))
    }

    /// The session is over. Returns it.
    pub fn end_session(&mut self) -> Option<Session> {
        self.session.take().map(|s| *s)
    }

    /// Planted: the next session is this one again.
    pub fn repeat_session(&mut self) -> Option<Session> {
        self.session.as_mut().map(|s| s.repeat())
    }
}
