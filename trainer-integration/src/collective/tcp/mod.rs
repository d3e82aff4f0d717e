//! Ranks as processes, each connected to each other by one TCP stream. [`rendezvous`](Rendezvous) finds them, this module
//! carries frames: per peer one thread that writes and one that reads, so that large messages in all directions at once
//! never wait for each other.
//!
//! Streams carry checksums, no encryption and no proof of identity: keep them inside a trusted network.

mod meeting;
mod rendezvous;
mod wire;

use std::io::{self, BufReader, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::inbox::{Frame, Inbox};
use super::mesh::{Link, Mesh};
use super::{CollectiveError, DEFAULT_TIMEOUT};
pub use meeting::meet;
pub use rendezvous::{JoinError, Rendezvous, connect};
use wire::{Kind, WireFrame, read_frame, write_frame};

/// Frames waiting to be written to one peer: at most those of two operations and an abort, see [`Inbox`].
const OUTGOING: usize = 4;

/// A [`Collective`](super::Collective) between processes; see [`connect`].
pub type TcpCollective = Mesh<TcpLink>;

/// How a world of processes finds together and how patient it is.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// A name all ranks must share, so that two runs on one address do not mix.
    pub run: String,
    /// How long to wait for all ranks to appear. Default 60 s.
    pub join_timeout: Duration,
    /// How long one operation may wait for the others. Default [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions { run: String::new(), join_timeout: Duration::from_secs(60), timeout: DEFAULT_TIMEOUT }
    }
}

/// The streams from one rank to the others.
#[derive(Debug)]
pub struct TcpLink {
    peers: Vec<Option<Peer>>,
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    outgoing: Option<SyncSender<(Kind, Frame)>>,
    writer: Option<JoinHandle<()>>,
    reader: Option<JoinHandle<()>>,
}

/// Puts connected streams (by rank; the own place is empty) to work.
fn assemble(rank: usize, streams: Vec<Option<TcpStream>>, timeout: Duration) -> io::Result<TcpCollective> {
    let world = streams.len();
    let inbox = Arc::new(Inbox::new(rank, world));
    let mut peers = Vec::with_capacity(world);
    for (peer, stream) in streams.into_iter().enumerate() {
        peers.push(match stream {
            Some(stream) => Some(Peer::start(peer, stream, &inbox, timeout)?),
            None => None,
        });
    }
    Ok(Mesh::new(rank, world, TcpLink { peers }, inbox, timeout))
}

impl Peer {
    fn start(peer: usize, stream: TcpStream, inbox: &Arc<Inbox>, timeout: Duration) -> io::Result<Peer> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?; // the inbox keeps the time
        stream.set_write_timeout(Some(timeout))?;
        let (outgoing, frames) = sync_channel(OUTGOING);
        let writer = std::thread::Builder::new().name(format!("to rank {peer}")).spawn({
            let (stream, inbox) = (stream.try_clone()?, Arc::clone(inbox));
            move || write_frames(peer, stream, &frames, &inbox)
        })?;
        let reader = std::thread::Builder::new().name(format!("from rank {peer}")).spawn({
            let (stream, inbox) = (stream.try_clone()?, Arc::clone(inbox));
            move || read_frames(peer, stream, &inbox)
        })?;
        Ok(Peer { stream, outgoing: Some(outgoing), writer: Some(writer), reader: Some(reader) })
    }
}

fn write_frames(peer: usize, mut stream: TcpStream, frames: &Receiver<(Kind, Frame)>, inbox: &Inbox) {
    while let Ok((kind, frame)) = frames.recv() {
        if let Err(error) = write_frame(&mut stream, kind, frame.operation, &frame.bytes) {
            // The reader may have an abort that explains it: it speaks first, this only if nothing else does.
            if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
                inbox.end(peer, gone(peer, &error));
            }
            return;
        }
    }
}

fn read_frames(peer: usize, stream: TcpStream, inbox: &Inbox) {
    let mut stream = BufReader::with_capacity(256 << 10, stream);
    loop {
        match read_frame(&mut stream) {
            Ok(WireFrame { kind: Kind::Data, operation, bytes }) => {
                inbox.deliver(peer, Frame { operation, bytes })
            }
            Ok(WireFrame { kind: Kind::Abort, operation, bytes }) => {
                let reason = String::from_utf8_lossy(&bytes).into_owned();
                return inbox.end(peer, CollectiveError::Aborted { rank: operation as u32, reason });
            }
            Ok(WireFrame { kind, .. }) => {
                let what = format!("{kind:?} in the middle of a run");
                return inbox.end(peer, CollectiveError::Malformed { rank: peer as u32, what });
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                let what = error.to_string();
                return inbox.end(peer, CollectiveError::Malformed { rank: peer as u32, what });
            }
            Err(error) => return inbox.end(peer, gone(peer, &error)),
        }
    }
}

fn gone(peer: usize, error: &io::Error) -> CollectiveError {
    let how = match error.kind() {
        ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        ErrorKind::ConnectionReset => "its connection was reset".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it takes no more data".to_owned(),
        _ => error.to_string(),
    };
    CollectiveError::Gone { rank: peer as u32, how }
}

impl Link for TcpLink {
    fn send(&self, to: usize, frame: Frame) -> Result<(), CollectiveError> {
        // A writer that has ended is noticed when this rank next waits for the peer.
        let _ = self.outgoing(to).send((Kind::Data, frame));
        Ok(())
    }

    fn abort(&self, to: usize, rank: u32, reason: &str) {
        let frame = Frame { operation: u64::from(rank), bytes: reason.as_bytes().to_vec() };
        let _ = self.outgoing(to).send((Kind::Abort, frame));
    }
}

impl TcpLink {
    fn outgoing(&self, to: usize) -> &SyncSender<(Kind, Frame)> {
        let peer = self.peers[to].as_ref().expect("no rank sends to itself");
        peer.outgoing.as_ref().expect("taken only on drop")
    }
}

impl Drop for TcpLink {
    /// Sends what was handed over (bounded by the write timeout), then closes and waits for its threads.
    fn drop(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            peer.outgoing = None;
        }
        for peer in self.peers.iter_mut().flatten() {
            join(peer.writer.take());
            let _ = peer.stream.shutdown(Shutdown::Both);
            join(peer.reader.take());
        }
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        thread.join().expect("link threads do not panic");
    }
}

#[cfg(test)]
mod tests;
