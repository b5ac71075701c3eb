//! Connections between launcher and agents. Owns: how frames stand in a TCP stream, handshakes, and the task that keeps a session over whatever
//! connections there are.
//!
//! A frame is its length (four bytes, little-endian) and so many sealed bytes. Both ends send something each [`BEAT`]; a connection on which nothing
//! arrives for [`SILENCE_MAX`] is left. The agent makes the next one, over whichever address of the launcher answers first: a launcher with several
//! networks is reached while one of them works.

use crate::message::MESSAGE_BYTES_MAX;
use crate::proof::{ANSWER_BYTES, Called, Calling, HELLO_BYTES, Key, PROOF_BYTES, SEAL_BYTES, Seal, Seals};
use crate::session::{FRAME_BYTES, Session};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

/// Time between two frames at most.
pub const BEAT: Duration = Duration::from_secs(1);
/// Silence that ends a connection.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time between two attempts over different addresses.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);
/// Frames that wait for a task.
const FRAMES: usize = 16;

/// Random bytes of the system.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    while getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(N) {}
    bytes
}

/// A connection both ends of which have proved themselves.
pub struct Connection {
    stream: TcpStream,
    seals: Box<Seals>,
}

async fn read_array<const N: usize>(stream: &mut TcpStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn stranger() -> Error {
    Error::new(ErrorKind::PermissionDenied, "the other end does not know the secret of this job")
}

/// Takes a connection that an agent has made. Returns the agent's number.
///
/// # Errors
/// It is none, or broke.
pub async fn accept(mut stream: TcpStream, secret: &Key) -> Result<(u32, Connection)> {
    let shake = async {
        stream.set_nodelay(true)?;
        let hello: [u8; HELLO_BYTES] = read_array(&mut stream).await?;
        let (called, agent, answer) = Called::new(secret, &hello, random()).ok_or_else(stranger)?;
        stream.write_all(&answer).await?;
        let proof: [u8; PROOF_BYTES] = read_array(&mut stream).await?;
        let seals = called.proved(&proof).ok_or_else(stranger)?;
        Ok::<_, Error>((agent, Box::new(seals)))
    };
    let (agent, seals) = timeout(HANDSHAKE, shake).await.map_err(|_| Error::from(ErrorKind::TimedOut))??;
    Ok((agent, Connection { stream, seals }))
}

async fn call_one(address: SocketAddr, key: Key, agent: u32) -> Result<Connection> {
    let shake = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (calling, hello) = Calling::new(key, agent, random());
        stream.write_all(&hello).await?;
        let answer: [u8; ANSWER_BYTES] = read_array(&mut stream).await?;
        let (proof, seals) = calling.answered(&answer).ok_or_else(stranger)?;
        stream.write_all(&proof).await?;
        Ok::<_, Error>(Connection { stream, seals: Box::new(seals) })
    };
    timeout(HANDSHAKE, shake).await.map_err(|_| Error::from(ErrorKind::TimedOut))?
}

/// Calls the launcher at all its addresses, a little one after the other; the first that answers is taken.
///
/// # Errors
/// That of a refused connection, if there was one: then the launcher's host answers, and the launcher does not. Otherwise any.
pub async fn call(addresses: &[SocketAddr], key: &Key, agent: u32) -> Result<Connection> {
    let mut tries = JoinSet::new();
    for (i, address) in addresses.iter().enumerate() {
        let (address, key) = (*address, key.clone());
        tries.spawn(async move {
            sleep(NEXT_ADDRESS * i as u32).await;
            call_one(address, key, agent).await
        });
    }
    let mut failed = Error::from(ErrorKind::AddrNotAvailable);
    while let Some(one) = tries.join_next().await {
        match one.unwrap_or_else(|_| Err(ErrorKind::Other.into())) {
            Ok(connection) => return Ok(connection),
            Err(why) if failed.kind() != ErrorKind::ConnectionRefused => failed = why,
            Err(_) => {}
        }
    }
    Err(failed)
}

async fn write_frames(
    mut to: OwnedWriteHalf,
    mut seal: Seal,
    mut frames: mpsc::Receiver<Vec<u8>>,
) -> Result<()> {
    while let Some(mut frame) = frames.recv().await {
        seal.close(&mut frame);
        to.write_all(&(frame.len() as u32).to_le_bytes()).await?;
        to.write_all(&frame).await?;
    }
    to.shutdown().await
}

async fn read_frames(mut from: OwnedReadHalf, mut seal: Seal, frames: mpsc::Sender<Vec<u8>>) -> Result<()> {
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length).await?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MESSAGE_BYTES_MAX + FRAME_BYTES + SEAL_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut frame = vec![0; length];
        from.read_exact(&mut frame).await?;
        let text = seal.open(&mut frame).ok_or(ErrorKind::InvalidData)?.to_vec();
        if frames.send(text).await.is_err() {
            return Ok(());
        }
    }
}

/// A connection in use.
struct Wire {
    to: mpsc::Sender<Vec<u8>>,
    from: mpsc::Receiver<Vec<u8>>,
    /// The last frame came then.
    arrived: Instant,
    /// One task each, which ends with this.
    writes: JoinSet<Result<()>>,
    _reads: JoinSet<Result<()>>,
}

impl Wire {
    fn new(connection: Connection) -> Self {
        let (read, write) = connection.stream.into_split();
        let (send, receive) = *connection.seals;
        let (to, frames) = mpsc::channel(FRAMES);
        let (mut reads, mut writes) = (JoinSet::new(), JoinSet::new());
        writes.spawn(write_frames(write, send, frames));
        let (frames, from) = mpsc::channel(FRAMES);
        reads.spawn(read_frames(read, receive, frames));
        Self { to, from, arrived: Instant::now(), writes, _reads: reads }
    }
}

impl Wire {
    /// Sends one frame more, and ends when it is written.
    async fn finish(mut self, frame: Vec<u8>) {
        let _ = self.to.send(frame).await;
        drop(self.to);
        self.writes.join_next().await;
    }
}

/// What comes out of a session.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// There is a connection.
    Connected,
    /// There is none any more.
    Lost,
    /// A message.
    Message(Vec<u8>),
}

/// Where a session's messages come from and go to.
pub struct Ends {
    /// Messages that are sent at once, whatever waits.
    pub urgent: mpsc::UnboundedReceiver<Vec<u8>>,
    /// Messages that are taken while there is room.
    pub bulk: mpsc::Receiver<Vec<u8>>,
    /// Connections, of which the newest counts.
    pub connections: mpsc::Receiver<Connection>,
    /// What has arrived.
    pub news: mpsc::Sender<News>,
}

enum Step {
    Urgent(Option<Vec<u8>>),
    Bulk(Option<Vec<u8>>),
    Connection(Connection),
    Frame(Option<Vec<u8>>),
    Beat,
}

/// Keeps a session until its news are not wanted any more, or until nothing more is to be sent and everything was acknowledged.
pub async fn keep(mut ends: Ends) {
    let mut session = Session::default();
    let mut wire: Option<Wire> = None;
    let mut news: VecDeque<News> = VecDeque::new();
    let mut beat = interval(BEAT);
    let (mut urgent, mut bulk) = (true, true);
    loop {
        if !urgent && !bulk && session.is_idle() {
            if let Some(wire) = wire.take() {
                // the other end waits for the acknowledgement of its last message
                wire.finish(session.greeting()).await;
            }
            return;
        }
        let wants = session.wants();
        let (to, from) = match &mut wire {
            Some(wire) => (Some(&wire.to), Some(&mut wire.from)),
            None => (None, None),
        };
        let step = tokio::select! {
            biased;
            message = ends.urgent.recv(), if urgent => Step::Urgent(message),
            Ok(permit) = ends.news.reserve(), if !news.is_empty() => {
                permit.send(news.pop_front().expect("there are some"));
                continue;
            }
            () = ends.news.closed() => return,
            Some(connection) = ends.connections.recv() => Step::Connection(connection),
            frame = async { from.expect("checked").recv().await }, if from.is_some() && news.is_empty() => Step::Frame(frame),
            permit = async { to.expect("checked").reserve().await }, if to.is_some() && wants => {
                match permit {
                    Ok(permit) => permit.send(session.poll().expect("it wants")),
                    // the reading half ends as well, and then it is left
                    Err(_) => sleep(Duration::from_millis(1)).await,
                }
                continue;
            }
            message = ends.bulk.recv(), if bulk && !session.is_full() => Step::Bulk(message),
            _ = beat.tick() => Step::Beat,
        };
        match step {
            Step::Urgent(Some(message)) | Step::Bulk(Some(message)) => session.push(message),
            Step::Urgent(None) => urgent = false,
            Step::Bulk(None) => bulk = false,
            Step::Connection(connection) => {
                session.connected();
                let next = Wire::new(connection);
                let _ = next.to.try_send(session.greeting());
                if wire.replace(next).is_none() {
                    news.push_back(News::Connected);
                }
            }
            Step::Frame(frame) => {
                let found = frame.map(|frame| session.arrived(&frame).map(|m| m.map(<[u8]>::to_vec)));
                match (found, &mut wire) {
                    (Some(Ok(message)), Some(wire)) => {
                        wire.arrived = Instant::now();
                        news.extend(message.map(News::Message));
                    }
                    _ => {
                        wire = None;
                        news.push_back(News::Lost);
                    }
                }
            }
            Step::Beat => {
                let Some(w) = &mut wire else { continue };
                if !news.is_empty() {
                    // this end does not read at the moment
                    w.arrived = Instant::now();
                }
                if w.arrived.elapsed() > SILENCE_MAX {
                    wire = None;
                    news.push_back(News::Lost);
                } else {
                    let _ = w.to.try_send(session.greeting());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    struct End {
        urgent: mpsc::UnboundedSender<Vec<u8>>,
        connections: mpsc::Sender<Connection>,
        news: mpsc::Receiver<News>,
    }

    fn end() -> End {
        let (urgent, from_urgent) = mpsc::unbounded_channel();
        let (_, bulk) = mpsc::channel(1);
        let (connections, from_connections) = mpsc::channel(1);
        let (to_news, news) = mpsc::channel(4);
        tokio::spawn(keep(Ends { urgent: from_urgent, bulk, connections: from_connections, news: to_news }));
        End { urgent, connections, news }
    }

    /// What is between the two ends, until it breaks after so many bytes.
    async fn between(listener: &TcpListener, launcher: SocketAddr, bytes: u64) {
        let (from, _) = listener.accept().await.unwrap();
        let to = TcpStream::connect(launcher).await.unwrap();
        let ((mut read, mut back), (mut answers, mut write)) = (from.into_split(), to.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
        let _ = tokio::io::copy(&mut (&mut read).take(bytes), &mut write).await;
    }

    async fn met(listener: &TcpListener, address: SocketAddr, secret: &Key) -> (Connection, Connection) {
        let key = secret.of_agent(3);
        let addresses = [address];
        let (called, took) = tokio::join!(call(&addresses, &key, 3), async {
            accept(listener.accept().await.unwrap().0, secret).await
        });
        let (agent, connection) = took.unwrap();
        assert_eq!(agent, 3);
        (called.unwrap(), connection)
    }

    #[tokio::test]
    async fn every_message_arrives_once_over_connections_that_break() {
        let secret = Key::new([5; 32]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let launcher = listener.local_addr().unwrap();
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = proxy.local_addr().unwrap();
        tokio::spawn(async move {
            for n in 0u64.. {
                // in the middle of a handshake not, in the middle of a frame often
                between(&proxy, launcher, 200 + n * 997).await;
            }
        });
        let (mut agent, mut other) = (end(), end());
        let messages = 400u32;
        for n in 0..messages {
            agent.urgent.send([&n.to_le_bytes()[..], &[7; 300]].concat()).unwrap();
        }
        let (mut next, mut connections) = (0, 0);
        while next < messages {
            let (ours, theirs) = met(&listener, address, &secret).await;
            agent.connections.send(ours).await.unwrap();
            other.connections.send(theirs).await.unwrap();
            connections += 1;
            loop {
                match other.news.recv().await.unwrap() {
                    News::Connected => {}
                    News::Lost => break,
                    News::Message(message) => {
                        assert_eq!(message[..4], next.to_le_bytes(), "in order");
                        next += 1;
                        if next == messages {
                            break;
                        }
                    }
                }
            }
            // the agent notices as well, before it has the next one
            while next < messages && agent.news.recv().await.unwrap() != News::Lost {}
        }
        assert!(connections > 5, "{connections} connections: they do not break");
    }

    #[tokio::test]
    async fn a_stranger_on_either_side_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let secret = Key::new([5; 32]);
        let (addresses, other) = ([address], Key::new([6; 32]).of_agent(1));
        let (called, took) = tokio::join!(call(&addresses, &other, 1), async {
            accept(listener.accept().await.unwrap().0, &secret).await
        });
        assert_eq!(called.err().map(|why| why.kind()), Some(ErrorKind::PermissionDenied));
        assert!(took.is_err());
        drop(listener);
        let refused = call(&[address], &secret.of_agent(1), 1).await;
        assert_eq!(refused.err().map(|why| why.kind()), Some(ErrorKind::ConnectionRefused));
    }
}
