//! What nodes of this machine lend to a loader: the descriptors of their segments, or a ring into which they copy grains. Finds
//! out, for each node, which of the two works, and says why when it is neither: then the node is asked for bytes over HTTP.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, recvmsg, socket_with,
};
use serde::de::DeserializeOwned;
use shardd_api::local_transport::{
    self, Answer, Ask, BadFrame, FORMAT, Hello, MAGIC, MAX_PIECES, Piece, RING_BYTES, Share, Transport,
};
use shardd_api::node::{LocalSocket, NodeId, NodeRecord};
use tracing::{debug, info};

/// How long a node may take for a message. The requested grains lie on its disk, which reads all of them side by side.
const WORD_WITHIN: Duration = Duration::from_secs(10);

/// How long it may take to let us in. Only where very many wait already, as at a process that is stopped, does it take any time.
const LET_IN_WITHIN: Duration = Duration::from_secs(1);

/// Why something is not lent.
#[derive(Debug, thiserror::Error)]
enum LendError {
    /// The connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The bytes are not a node's message.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// Its process is stopped, or cannot keep up.
    #[error("no client is admitted, and too many wait already")]
    Full,
    /// A program that may stand between us and the node.
    #[error(
        "user {0} serves the socket, who is neither root, nor this user, nor the owner of the socket's file"
    )]
    OtherUser(u32),
    /// The socket of another node.
    #[error("another node than {0} serves the socket")]
    OtherNode(NodeId),
    /// Another release.
    #[error("the node speaks format {0} and this loader format {FORMAT}; upgrade the older of the two")]
    Format(u32),
    /// The node does not want to.
    #[error("the node refuses: {0}")]
    Refused(String),
    /// It was to come with an answer.
    #[error("no descriptor arrived; a sandbox may block descriptors")]
    NoDescriptor,
    /// It sent something else.
    #[error("the answer does not fit the request")]
    Unexpected,
}

impl LendError {
    /// Whether the connection has ended, as after a long silence: another one may be better.
    fn is_lost(&self) -> bool {
        matches!(self, Self::Io(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}

/// Where a grain lies, by a node's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The segment's pass.
    pub(super) segment: String,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// The nodes of this machine, by their HTTP addresses.
#[derive(Default)]
pub(super) struct LocalServers {
    links: HashMap<String, Link>,
}

/// How a node's grains are got.
struct Link {
    node: NodeId,
    socket: LocalSocket,
    /// Distinguishes the node from the same one after a restart: then all is tried again.
    started_at: u64,
    way: Way,
}

enum Way {
    Files(Connection),
    Ring(Connection, File),
    Stream,
}

impl Way {
    fn transport(&self) -> Transport {
        match self {
            Self::Files(_) => Transport::Files,
            Self::Ring(..) => Transport::Ring,
            Self::Stream => Transport::Stream,
        }
    }
}

impl LocalServers {
    /// How the grains of a node at `server` are got from now on.
    pub(super) fn transport(&mut self, server: &str, record: &NodeRecord, host: &str) -> Transport {
        let Some(socket) = record.socket.as_ref().filter(|socket| socket.host == host) else {
            return Transport::Stream;
        };
        match self.links.get(server) {
            Some(link) if link.started_at == record.started_at && link.node == record.id => {}
            _ => {
                let way = open(socket, &record.id).unwrap_or_else(|error| {
                    info!(node = %record.id, socket = socket.path, %error, "the node lends nothing here; taking bytes instead");
                    Way::Stream
                });
                debug!(node = %record.id, transport = %way.transport(), "connected");
                let (node, socket) = (record.id.clone(), socket.clone());
                let link = Link { node, socket, started_at: record.started_at, way };
                self.links.insert(server.to_owned(), link);
            }
        }
        self.links[server].way.transport()
    }

    /// Whether grains of this node come through a ring.
    pub(super) fn is_ring(&self, server: &str) -> bool {
        self.links.get(server).is_some_and(|link| matches!(link.way, Way::Ring(..)))
    }

    /// Failed requests may be tried again.
    pub(super) fn forgive(&mut self) {
        self.links.retain(|_, link| !matches!(link.way, Way::Stream));
    }

    /// A segment's file; `None` if it is gone, or no more files come from there.
    pub(super) fn file(&mut self, server: &str, segment: &str) -> Option<File> {
        let link = self.links.get_mut(server)?;
        let outcome = link.again_if_lost(|way| match way {
            Way::Files(connection) => connection.file(segment),
            Way::Ring(..) | Way::Stream => Ok(None),
        });
        match outcome {
            Ok(file) => file,
            Err(error @ LendError::NoDescriptor) => {
                self.no_files(server, &error);
                None
            }
            Err(error) => {
                self.stream(server, &error);
                None
            }
        }
    }

    /// Files of this node are of no use here: grains come through a ring, or else as bytes.
    pub(super) fn no_files(&mut self, server: &str, why: &dyn std::fmt::Display) {
        let Some(link) = self.links.get_mut(server) else { return };
        link.way = match std::mem::replace(&mut link.way, Way::Stream) {
            Way::Files(connection) => ring(connection).unwrap_or_else(|error| {
                debug!(node = %link.node, %error, "and no ring is to be had");
                Way::Stream
            }),
            other => other,
        };
        info!(node = %link.node, %why, transport = %link.way.transport(), "the node's files cannot be used from here");
    }

    /// From now on grains of this node come as bytes.
    pub(super) fn stream(&mut self, server: &str, why: &dyn std::fmt::Display) {
        let Some(link) = self.links.get_mut(server) else { return };
        if !matches!(std::mem::replace(&mut link.way, Way::Stream), Way::Stream) {
            info!(node = %link.node, %why, "the node lends nothing any more; taking bytes instead");
        }
    }

    /// Copies of grains that lie in a node's segments, through the ring; `None` for those that are gone or cannot be read.
    pub(super) fn copies(&mut self, server: &str, places: &[Place]) -> Vec<Option<Vec<u8>>> {
        let none = || places.iter().map(|_| None).collect();
        let Some(link) = self.links.get_mut(server) else { return none() };
        let outcome = link.again_if_lost(|way| match way {
            Way::Ring(connection, ring) => connection.copies(ring, places),
            Way::Files(_) | Way::Stream => Ok(none()),
        });
        outcome.unwrap_or_else(|error| {
            self.stream(server, &error);
            none()
        })
    }
}

impl Link {
    /// Does it once more over another connection if this one has ended meanwhile.
    fn again_if_lost<T>(
        &mut self,
        mut ask: impl FnMut(&mut Way) -> Result<T, LendError>,
    ) -> Result<T, LendError> {
        match ask(&mut self.way) {
            Err(error) if error.is_lost() => {
                self.way = open(&self.socket, &self.node)?;
                ask(&mut self.way)
            }
            outcome => outcome,
        }
    }
}

/// Connects to a node: its first answer decides the transport.
fn open(socket: &LocalSocket, node: &NodeId) -> Result<Way, LendError> {
    let (connection, share) = Connection::open(socket, node)?;
    match share {
        Share::Files => Ok(Way::Files(connection)),
        Share::Ring => ring(connection),
        Share::None => Ok(Way::Stream),
    }
}

fn ring(mut connection: Connection) -> Result<Way, LendError> {
    let (answer, descriptor) = connection.ask(&Ask::Ring)?;
    match (answer, descriptor) {
        (Answer::Ring { bytes }, Some(ring)) if bytes >= RING_BYTES => {
            Ok(Way::Ring(connection, File::from(ring)))
        }
        (Answer::Ring { .. }, None) => Err(LendError::NoDescriptor),
        (Answer::Refused { reason }, _) => Err(LendError::Refused(reason)),
        _ => Err(LendError::Unexpected),
    }
}

/// A connection to a node's socket.
struct Connection {
    stream: UnixStream,
}

impl Connection {
    fn open(socket: &LocalSocket, node: &NodeId) -> Result<(Self, Share), LendError> {
        let stream = connect(&socket.path)?;
        check_user(&stream, &socket.path)?;
        stream.set_read_timeout(Some(WORD_WITHIN))?;
        stream.set_write_timeout(Some(WORD_WITHIN))?;
        let mut connection = Self { stream };
        let mut magic = [0; MAGIC.len()];
        connection.read(&mut magic)?;
        if magic != MAGIC {
            return Err(LendError::OtherNode(node.clone()));
        }
        let (hello, _): (Hello, _) = connection.hear()?;
        if hello.format != FORMAT {
            return Err(LendError::Format(hello.format));
        }
        if hello.node != *node {
            return Err(LendError::OtherNode(node.clone()));
        }
        Ok((connection, hello.share))
    }

    fn file(&mut self, segment: &str) -> Result<Option<File>, LendError> {
        match self.ask(&Ask::File { segment: segment.to_owned() })? {
            (Answer::File, Some(descriptor)) => Ok(Some(File::from(descriptor))),
            (Answer::File, None) => Err(LendError::NoDescriptor),
            (Answer::Gone, _) => Ok(None),
            (Answer::Refused { reason }, _) => Err(LendError::Refused(reason)),
            _ => Err(LendError::Unexpected),
        }
    }

    /// Fills the ring, takes the grains out, and so on. The receiver verifies each grain: the memory is the
    /// node's as much as ours, so that only a copy stays unchanged.
    fn copies(&mut self, ring: &File, places: &[Place]) -> Result<Vec<Option<Vec<u8>>>, LendError> {
        let mut copies: Vec<Option<Vec<u8>>> = places.iter().map(|_| Some(Vec::new())).collect();
        for load in loads(places) {
            let pieces = load.iter().map(|(_, piece)| piece.clone()).collect();
            let done = match self.ask(&Ask::Copy { pieces })?.0 {
                Answer::Copied { done } if done.len() == load.len() => done,
                Answer::Refused { reason } => return Err(LendError::Refused(reason)),
                _ => return Err(LendError::Unexpected),
            };
            for ((place, piece), done) in load.iter().zip(done) {
                let Some(copy) = copies[*place].as_mut().filter(|_| done) else {
                    copies[*place] = None;
                    continue;
                };
                let start = copy.len();
                copy.resize(start + piece.len as usize, 0);
                ring.read_exact_at(&mut copy[start..], piece.at)?;
            }
        }
        Ok(copies)
    }

    fn ask(&mut self, ask: &Ask) -> Result<(Answer, Option<OwnedFd>), LendError> {
        self.stream.write_all(&local_transport::frame(ask))?;
        self.hear()
    }

    /// The next frame, and the descriptor that came with it.
    fn hear<T: DeserializeOwned>(&mut self) -> Result<(T, Option<OwnedFd>), LendError> {
        let mut head = [0; 4];
        let first = self.read(&mut head)?;
        let mut body = vec![0; local_transport::frame_len(head)?];
        let second = self.read(&mut body)?;
        Ok((local_transport::parse(&body)?, first.or(second)))
    }

    /// Fills the buffer. More descriptors than one are closed.
    fn read(&mut self, buffer: &mut [u8]) -> Result<Option<OwnedFd>, LendError> {
        let (mut filled, mut descriptor) = (0, None);
        while filled < buffer.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut rest = [IoSliceMut::new(&mut buffer[filled..])];
            let received = match recvmsg(&self.stream, &mut rest, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => continue,
                received => received.map_err(io::Error::from)?,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    descriptor = descriptors.into_iter().next().or(descriptor);
                }
            }
            if received.bytes == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            filled += received.bytes;
        }
        Ok(descriptor)
    }
}

/// Connects; waits for a little while, but not without limit, where others wait already.
fn connect(path: &str) -> Result<UnixStream, LendError> {
    let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(io::Error::from)?;
    // To connect counts as sending.
    set_socket_timeout(&socket, Timeout::Send, Some(LET_IN_WITHIN)).map_err(io::Error::from)?;
    match retry_on_intr(|| rustix::net::connect(&socket, &address)) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(Errno::AGAIN) => Err(LendError::Full),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Refuses who listens at a path and has nothing to say there: we would map files of that user, who can cut them.
fn check_user(stream: &UnixStream, path: &str) -> Result<(), LendError> {
    let user = listener_user(stream)?;
    let own = rustix::process::geteuid().as_raw();
    let is_owner = || std::fs::metadata(path).is_ok_and(|file| file.uid() == user);
    if user == 0 || user == own || is_owner() { Ok(()) } else { Err(LendError::OtherUser(user)) }
}

/// The user whose process listens at the other end. Not by rustix, which takes it that a process has a number: that of a process
/// outside our container is 0.
fn listener_user(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a few bytes");
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; `peer` and `len` are our own and are not moved in the
    // meantime, and no more than `len` bytes, the size of `peer`, are written. Any bytes are a `ucred`: it is three integers.
    let outcome =
        unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut len) };
    if outcome == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

/// Cuts places into loads of a ring, each piece with the number of its place, in order. Pure.
fn loads(places: &[Place]) -> Vec<Vec<(usize, Piece)>> {
    let mut loads: Vec<Vec<(usize, Piece)>> = Vec::new();
    let mut used = RING_BYTES; // nothing fits behind a missing grain
    for (number, place) in places.iter().enumerate() {
        let mut taken = 0;
        while taken < place.len {
            if used == RING_BYTES || loads.last().is_none_or(|load| load.len() == MAX_PIECES) {
                loads.push(Vec::new());
                used = 0;
            }
            let room = u32::try_from(RING_BYTES - used).unwrap_or(u32::MAX);
            let len = room.min(place.len - taken);
            let offset = place.offset.saturating_add(taken.into());
            let piece = Piece { segment: place.segment.clone(), offset, len, at: used };
            loads.last_mut().expect("pushed above").push((number, piece));
            taken += len;
            used += u64::from(len);
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_lets_nobody_in_is_not_waited_for() {
        let root = tempfile::TempDir::new().expect("a temporary directory can be made");
        let path = root.path().join("socket").display().to_string();
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let listener = listener.expect("a socket");
        rustix::net::bind(&listener, &SocketAddrUnix::new(path.as_str()).expect("short")).expect("bound");
        rustix::net::listen(&listener, 0).expect("it listens");
        let first = connect(&path).expect("one may wait");
        check_user(&first, &path).expect("it is ourselves who listen");
        assert!(matches!(connect(&path), Err(LendError::Full)));
    }

    proptest! {
        #[test]
        fn the_loads_of_a_ring_are_the_places_and_never_overlap(
            lens in proptest::collection::vec(prop_oneof![0u32..5000, 0u32..(40 << 20)], 0..1500),
        ) {
            let place = |(number, len): (usize, &u32)| Place {
                segment: format!("s{}", number % 3), offset: number as u64 * 7, len: *len,
            };
            let places: Vec<Place> = lens.iter().enumerate().map(place).collect();
            let mut taken = vec![0u32; places.len()];
            for load in loads(&places) {
                prop_assert!(!load.is_empty() && load.len() <= MAX_PIECES);
                let mut end = 0;
                for (number, piece) in load {
                    prop_assert!(piece.fits() && piece.len > 0);
                    prop_assert_eq!(piece.at, end);
                    end = piece.at + u64::from(piece.len);
                    let place = &places[number];
                    prop_assert_eq!(&piece.segment, &place.segment);
                    prop_assert_eq!(piece.offset, place.offset + u64::from(taken[number]));
                    taken[number] += piece.len;
                }
            }
            prop_assert_eq!(taken, lens);
        }
    }
}
