//! Both ends of a connection prove that they know the job's secret, and seal what they send afterwards. Owns: the bytes of the handshake, and keys.
//!
//! An agent's key is derived from the secret and the agent's number, so that a host cannot pass for another. The agent writes a hello, the launcher
//! an answer with its proof, the agent its own proof; each proof covers the fresh random numbers of both. Then everything is sealed with
//! ChaCha20-Poly1305 under a key of its own for each connection and direction, with a counter for a nonce. A stranger gets 40 bytes that depend on
//! nothing secret but a keyed hash (BLAKE3), and is dropped.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Bytes of a secret or a key.
pub const KEY_BYTES: usize = 32;
/// Bytes by which sealing makes a message longer.
pub const SEAL_BYTES: usize = 16;
/// Begins a connection; its last byte is the version.
const MAGIC: [u8; 8] = *b"rerail\x00\x01";

/// The first bytes of an agent: magic, its number, random.
pub const HELLO_BYTES: usize = 8 + 4 + 16;
/// What the launcher answers: random, proof.
pub const ANSWER_BYTES: usize = 16 + KEY_BYTES;
/// What the agent answers.
pub const PROOF_BYTES: usize = KEY_BYTES;

/// The secret of a job, or what is derived from it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// From random bytes.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The key of an agent.
    pub fn of_agent(&self, agent: u32) -> Self {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        hash.update(b"rerail launch: agent").update(&agent.to_le_bytes());
        Self(*hash.finalize().as_bytes())
    }

    /// In hexadecimal digits, for the standard input of an agent.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The reverse of [`Key::to_hex`].
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        let bytes: Vec<u8> =
            digits?.chunks(2).map(|two| two[0] << 4 | two.get(1).copied().unwrap_or(0)).collect();
        (text.len() == 2 * KEY_BYTES).then(|| Self(bytes.try_into().expect("so many digits")))
    }

    fn keyed(&self, words: &[u8], both: &Both) -> blake3::Hash {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        hash.update(words).update(&both.agent.to_le_bytes()).update(&both.theirs).update(&both.ours);
        hash.finalize()
    }

    fn seal(&self, words: &[u8], both: &Both) -> Seal {
        let key = self.keyed(words, both);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_bytes()).expect("32 bytes");
        Seal { key: LessSafeKey::new(key), next: 0 }
    }
}

/// The random numbers of a handshake: of the agent, and of the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Both {
    agent: u32,
    theirs: [u8; 16],
    ours: [u8; 16],
}

/// One direction of a connection.
pub struct Seal {
    key: LessSafeKey,
    next: u64,
}

impl Seal {
    fn nonce(&mut self) -> Nonce {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        Nonce::assume_unique_for_key(bytes)
    }

    /// Seals a message in place.
    pub fn close(&mut self, message: &mut Vec<u8>) {
        let nonce = self.nonce();
        self.key.seal_in_place_append_tag(nonce, Aad::empty(), message).expect("far below the limit");
    }

    /// Opens the next message; `None`: it is not what the other end sealed next.
    pub fn open<'a>(&mut self, message: &'a mut [u8]) -> Option<&'a [u8]> {
        let nonce = self.nonce();
        self.key.open_in_place(nonce, Aad::empty(), message).ok().map(|text| &*text)
    }
}

/// Both directions: what is sent, what is received.
pub type Seals = (Seal, Seal);

/// The agent's side of a handshake.
pub struct Calling {
    key: Key,
    both: Both,
}

impl Calling {
    /// Begins one, with random bytes. Returns what is sent.
    pub fn new(key: Key, agent: u32, random: [u8; 16]) -> (Self, [u8; HELLO_BYTES]) {
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..12].copy_from_slice(&agent.to_le_bytes());
        hello[12..].copy_from_slice(&random);
        (Self { key, both: Both { agent, theirs: random, ours: [0; 16] } }, hello)
    }

    /// The launcher has answered. Returns what is sent; `None`: it does not know the secret.
    pub fn answered(mut self, answer: &[u8; ANSWER_BYTES]) -> Option<([u8; PROOF_BYTES], Seals)> {
        self.both.ours.copy_from_slice(&answer[..16]);
        let wanted = self.key.keyed(b"rerail launch: launcher", &self.both);
        let given: [u8; KEY_BYTES] = answer[16..].try_into().expect("its length");
        // compared in constant time
        if wanted != blake3::Hash::from_bytes(given) {
            return None;
        }
        let proof = *self.key.keyed(b"rerail launch: proof", &self.both).as_bytes();
        let seal = |words: &[u8]| self.key.seal(words, &self.both);
        Some((proof, (seal(b"rerail launch: from agent"), seal(b"rerail launch: from launcher"))))
    }
}

/// The launcher's side.
pub struct Called {
    key: Key,
    both: Both,
}

impl Called {
    /// A connection has begun so. Returns the agent's number and what is sent; `None`: that is no agent.
    pub fn new(
        secret: &Key,
        hello: &[u8; HELLO_BYTES],
        random: [u8; 16],
    ) -> Option<(Self, u32, [u8; ANSWER_BYTES])> {
        if hello[..8] != MAGIC {
            return None;
        }
        let agent = u32::from_le_bytes(hello[8..12].try_into().expect("four"));
        let key = secret.of_agent(agent);
        let both = Both { agent, theirs: hello[12..].try_into().expect("16"), ours: random };
        let mut answer = [0; ANSWER_BYTES];
        answer[..16].copy_from_slice(&random);
        answer[16..].copy_from_slice(key.keyed(b"rerail launch: launcher", &both).as_bytes());
        Some((Self { key, both }, agent, answer))
    }

    /// The agent has proved itself; `None`: it does not know the secret.
    pub fn proved(self, proof: &[u8; PROOF_BYTES]) -> Option<Seals> {
        let wanted = self.key.keyed(b"rerail launch: proof", &self.both);
        let seal = |words: &[u8]| self.key.seal(words, &self.both);
        (wanted == blake3::Hash::from_bytes(*proof))
            .then(|| (seal(b"rerail launch: from launcher"), seal(b"rerail launch: from agent")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(agents: Key, launchers: &Key) -> Option<(Seals, Seals)> {
        let (calling, hello) = Calling::new(agents, 3, [1; 16]);
        let (called, agent, answer) = Called::new(launchers, &hello, [2; 16])?;
        assert_eq!(agent, 3);
        let (proof, seals) = calling.answered(&answer)?;
        Some((seals, called.proved(&proof)?))
    }

    #[test]
    fn two_ends_that_know_the_secret_read_each_other_and_no_other_end_does() {
        let secret = Key::new([7; 32]);
        let key = Key::from_hex(&secret.of_agent(3).to_hex()).unwrap();
        let ((mut send, _), (_, mut receive)) = joined(key.clone(), &secret).unwrap();
        for text in [&b"one"[..], b"two"] {
            let mut sealed = text.to_vec();
            send.close(&mut sealed);
            assert_eq!(sealed.len(), text.len() + SEAL_BYTES);
            assert!(!sealed.starts_with(text));
            assert_eq!(receive.open(&mut sealed), Some(text));
        }
        // a repeated one, and a changed one
        let mut sealed = b"three".to_vec();
        send.close(&mut sealed);
        let mut changed = sealed.clone();
        changed[0] ^= 1;
        assert_eq!(receive.open(&mut changed), None);
        assert!(joined(secret.of_agent(4), &secret).is_none(), "another agent's key");
        assert!(joined(key, &Key::new([8; 32])).is_none(), "another job");
        assert!(Called::new(&secret, &[0; HELLO_BYTES], [0; 16]).is_none(), "a stranger");
    }

    #[test]
    fn a_launcher_that_is_none_is_found_out_and_an_agent_too() {
        let secret = Key::new([7; 32]);
        let (calling, hello) = Calling::new(secret.of_agent(3), 3, [1; 16]);
        let (called, _, mut answer) = Called::new(&secret, &hello, [2; 16]).unwrap();
        answer[20] ^= 1;
        assert!(calling.answered(&answer).is_none());
        assert!(called.proved(&[0; PROOF_BYTES]).is_none());
        for text in ["", "zz", &"0".repeat(63), &"é".repeat(32)] {
            assert!(Key::from_hex(text).is_none(), "{text}");
        }
    }
}
