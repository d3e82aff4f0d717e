//! Lends the cache to loaders of this machine over a Unix-domain socket: descriptors of segments, or rings
//! with copies of grains. A loader gets a segment's pass over HTTP; a wrong pass closes the connection. The
//! messages are in `shardd_api::local_transport`.
//!
//! Connections, rings, each user's number of both, frames and waits are bounded. A ring belongs to its
//! connection. When that ends, the node empties the ring, even if a process keeps its descriptor.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use shardd_api::local_transport::{
    self, Answer, Ask, BadFrame, FORMAT, Hello, MAGIC, MAX_PIECES, Piece, RING_BYTES, Share,
};
use shardd_api::node::LocalSocket;
use shardd_api::protocol::host_identity;
use shardd_engine::engine::{Engine, PassError};
use shardfmt::shard::file_will_need;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

/// How much is copied at once.
const COPY_BYTES: usize = 256 << 10;

/// How much there may be of everything. A node has the defaults; tests have less of it.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at once. 1024...
    connections: usize,
    /// ...and those of one user, so that others find a place. 256.
    a_user: usize,
    /// Rings at once, of 16 MiB each. 64...
    rings: usize,
    /// ...and those of one user. 32.
    rings_a_user: usize,
    /// How long a loader may say nothing before it is cut off; it connects again when it wants something. 5 min.
    quiet: Duration,
    /// How long it may take over a frame that it has begun, or to take an answer. 10 s.
    prompt: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [quiet, prompt] = [300, 10].map(Duration::from_secs);
        Self { connections: 1024, a_user: 256, rings: 64, rings_a_user: 32, quiet, prompt }
    }
}

/// A listening Unix socket. Dropping it removes its file.
pub(crate) struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    /// Tells its file from another one at the same path.
    file: (u64, u64),
}

impl LocalListener {
    /// Listens at `path`. What a node left there that does not run any more is replaced.
    ///
    /// # Errors
    /// Something else is there, another node listens, or what binding gives: a path of more than 107 bytes is too long for a
    /// socket.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        match std::fs::symlink_metadata(&path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(io::Error::new(ErrorKind::AlreadyExists, "something else is there"));
            }
            Ok(_) => match std::os::unix::net::UnixStream::connect(&path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(&path)?,
                Ok(_) => return Err(io::Error::new(ErrorKind::AddrInUse, "another process listens there")),
                Err(error) => return Err(error),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = UnixListener::bind(&path)?;
        let listener = Self { listener, file: device_and_inode(&path)?, path };
        // Other users may connect: the passes that they send decide their grains.
        std::fs::set_permissions(&listener.path, std::fs::Permissions::from_mode(0o666))?;
        Ok(listener)
    }

    /// Its entry in the node's record; `None` if the path is not UTF-8, or the machine has no identity.
    pub(crate) fn record(&self) -> Option<LocalSocket> {
        Some(LocalSocket { host: host_identity()?, path: self.path.to_str()?.to_owned() })
    }

    /// Lends until `stop`.
    pub(crate) async fn serve(self, engine: Arc<Engine>, share: Share, stop: CancellationToken) {
        self.serve_within(Limits::default(), engine, share, stop).await;
    }

    async fn serve_within(self, limits: Limits, engine: Arc<Engine>, share: Share, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let lender = Arc::new(LocalServer {
            engine,
            share,
            limits,
            connections: Semaphore::new(limits.connections),
            users: Mutex::default(),
            rings: Arc::new(Semaphore::new(limits.rings)),
        });
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (lender, stop) = (Arc::clone(&lender), stop.clone());
                    tasks.spawn(async move {
                        tokio::select! {
                            () = stop.cancelled() => {}
                            () = lender.handle(stream) => {}
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others must end before it is worth trying again.
                    warn!(%error, "a loader could not be admitted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        tasks.close();
        tasks.wait().await;
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // While it listens, no other file gets the number of its own, not even when that was removed.
        let removed = match device_and_inode(&self.path) {
            Ok(file) if file != self.file => Err(io::Error::other("the place has another owner now")),
            Ok(_) => std::fs::remove_file(&self.path),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            debug!(path = %self.path.display(), %error, "the socket's file is not removed");
        }
    }
}

/// The identity of a file, apart from its name.
fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Why a connection ends before the loader ends it.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] BadFrame),
    #[error("{0}")]
    Refused(String),
    #[error("it takes too long")]
    TooSlow,
}

impl From<tokio::time::error::Elapsed> for Ended {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::TooSlow
    }
}

struct LocalServer {
    engine: Arc<Engine>,
    share: Share,
    limits: Limits,
    connections: Semaphore,
    /// The users that have connections.
    users: Mutex<HashMap<u32, User>>,
    rings: Arc<Semaphore>,
}

/// The connections of one user.
struct User {
    /// Its open connections.
    connections: usize,
    /// The rings that it may still have.
    rings: Arc<Semaphore>,
}

/// Permits one connection of a user, and counts towards the user's limit until it is dropped.
struct ConnectionPermit<'a> {
    lender: &'a LocalServer,
    user: u32,
    /// The rings that its user may still have.
    rings: Arc<Semaphore>,
}

impl Drop for ConnectionPermit<'_> {
    fn drop(&mut self) {
        let mut users = self.lender.users.lock().expect("no panic while held");
        if let Some(user) = users.get_mut(&self.user) {
            user.connections -= 1;
            if user.connections == 0 {
                users.remove(&self.user);
            }
        }
    }
}

impl LocalServer {
    fn permit(&self, user: u32) -> Option<ConnectionPermit<'_>> {
        let mut users = self.users.lock().expect("no panic while held");
        let new = || User { connections: 0, rings: Arc::new(Semaphore::new(self.limits.rings_a_user)) };
        let known = users.entry(user).or_insert_with(new);
        if known.connections >= self.limits.a_user {
            return None;
        }
        known.connections += 1;
        Some(ConnectionPermit { lender: self, user, rings: Arc::clone(&known.rings) })
    }

    /// A place for one more ring of a user, or why there is none.
    fn ring_place(&self, permit: &ConnectionPermit<'_>) -> Result<[OwnedSemaphorePermit; 2], String> {
        let Ok(of_user) = Arc::clone(&permit.rings).try_acquire_owned() else {
            let most = self.limits.rings_a_user;
            return Err(format!("{most} rings are lent to user {}, and no more are made", permit.user));
        };
        let Ok(of_all) = Arc::clone(&self.rings).try_acquire_owned() else {
            return Err(format!("{} rings are lent, and no more are made", self.limits.rings));
        };
        Ok([of_user, of_all])
    }

    async fn handle(&self, mut stream: UnixStream) {
        let Ok(peer) = stream.peer_cred() else { return };
        let (user, process) = (peer.uid(), peer.pid());
        let (Ok(_place), Some(permit)) = (self.connections.try_acquire(), self.permit(user)) else {
            debug!(user, process, "no more loaders are admitted");
            return;
        };
        debug!(user, process, "a loader has come");
        match self.serve(&mut stream, &permit).await {
            Ok(()) => debug!(user, process, "a loader has gone"),
            Err(ended) => {
                debug!(user, process, error = %ended, "a loader is sent away");
                if let Ended::Refused(_) | Ended::Frame(_) = &ended {
                    // Sends the reason, in case the loader still reads.
                    let reason = ended.to_string();
                    let _ = self.write_frame(&mut stream, &Answer::Refused { reason }, None).await;
                }
            }
        }
    }

    /// Answers one request after the other until the loader closes the connection.
    async fn serve(&self, stream: &mut UnixStream, permit: &ConnectionPermit<'_>) -> Result<(), Ended> {
        let hello = Hello { format: FORMAT, node: self.engine.node().clone(), share: self.share };
        tokio::time::timeout(self.limits.prompt, stream.write_all(&MAGIC)).await??;
        self.write_frame(stream, &hello, None).await?;
        let mut copier: Option<Copier> = None;
        while let Some(ask) = self.read_frame(stream).await? {
            match ask {
                Ask::File { .. } if self.share != Share::Files => {
                    return Err(Ended::Refused("this node lends no files, by --share".to_owned()));
                }
                Ask::File { segment } => {
                    let engine = Arc::clone(&self.engine);
                    match blocking(move || engine.open_segment(&segment)).await? {
                        Ok(file) => self.write_frame(stream, &Answer::File, Some(file.as_fd())).await?,
                        Err(PassError::Gone) => self.write_frame(stream, &Answer::Gone, None).await?,
                        Err(error) => return Err(refusal(&error)),
                    }
                }
                Ask::Ring if copier.is_some() => {
                    return Err(Ended::Refused("a connection has one ring".to_owned()));
                }
                Ask::Ring => {
                    let place = match self.ring_place(permit) {
                        Ok(place) => place,
                        Err(reason) => {
                            self.write_frame(stream, &Answer::Refused { reason }, None).await?;
                            continue;
                        }
                    };
                    let ring = make_ring()?;
                    let mine = Copier { ring, buffer: vec![0; COPY_BYTES], last: None, _place: place };
                    self.write_frame(stream, &Answer::Ring { bytes: RING_BYTES }, Some(mine.ring.as_fd()))
                        .await?;
                    copier = Some(mine);
                }
                Ask::Copy { pieces } => {
                    let Some(mut mine) = copier.take() else {
                        return Err(Ended::Refused("there is no ring to copy into".to_owned()));
                    };
                    // More than a ring at once can only be copied over earlier copies.
                    let bytes: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
                    let is_too_much = pieces.len() > MAX_PIECES || bytes > RING_BYTES;
                    if is_too_much || !pieces.iter().all(Piece::fits) {
                        return Err(Ended::Refused("the pieces do not fit into the ring".to_owned()));
                    }
                    let engine = Arc::clone(&self.engine);
                    let copied = blocking(move || {
                        begin_to_read_all(&engine, &pieces);
                        let done: Result<Vec<bool>, PassError> =
                            pieces.iter().map(|piece| mine.copy(&engine, piece)).collect();
                        (mine, done)
                    });
                    let (mine, done) = copied.await?;
                    let done = done.map_err(|error| refusal(&error))?;
                    self.write_frame(stream, &Answer::Copied { done }, None).await?;
                    copier = Some(mine);
                }
            }
        }
        Ok(())
    }

    /// The next request; `None` once the loader has closed the connection.
    async fn read_frame(&self, stream: &mut UnixStream) -> Result<Option<Ask>, Ended> {
        let mut head = [0; 4];
        match tokio::time::timeout(self.limits.quiet, stream.read(&mut head[..1])).await?? {
            0 => return Ok(None),
            _ => {
                tokio::time::timeout(self.limits.prompt, stream.read_exact(&mut head[1..])).await??;
            }
        }
        let mut body = vec![0; local_transport::frame_len(head)?];
        tokio::time::timeout(self.limits.prompt, stream.read_exact(&mut body)).await??;
        Ok(Some(local_transport::parse(&body)?))
    }

    /// Writes a frame; a descriptor goes with its first bytes.
    async fn write_frame(
        &self,
        stream: &mut UnixStream,
        frame: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Ended> {
        let bytes = local_transport::frame(frame);
        let writing = async {
            let sent = match descriptor {
                None => 0,
                Some(descriptor) => {
                    stream.async_io(Interest::WRITABLE, || send(stream, &bytes, descriptor)).await?
                }
            };
            stream.write_all(&bytes[sent..]).await
        };
        Ok(tokio::time::timeout(self.limits.prompt, writing).await??)
    }
}

fn refusal(error: &PassError) -> Ended {
    Ended::Refused(error.to_string())
}

/// Sends the beginning of `bytes`, and a descriptor.
fn send(stream: &UnixStream, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one");
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Memory of a fixed size, so that a process that maps it can touch all of it.
fn make_ring() -> io::Result<File> {
    let ring = rustix::fs::memfd_create("shardd-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&ring, RING_BYTES)?;
    rustix::fs::fcntl_add_seals(&ring, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(ring.into())
}

/// Copies from segments into a ring.
struct Copier {
    ring: File,
    buffer: Vec<u8>,
    /// The segment that was read last, by its pass: the next piece is often of the same.
    last: Option<(String, File)>,
    _place: [OwnedSemaphorePermit; 2],
}

impl Drop for Copier {
    /// Gives the ring's memory back, before its place: it would stay for as long as the loader keeps the descriptor.
    fn drop(&mut self) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = rustix::fs::fallocate(&self.ring, hole, 0, RING_BYTES) {
            warn!(%error, "a ring could not be emptied");
        }
    }
}

/// Has the disk read the pieces side by side: the loader waits for all of them, and nothing else has read them lately.
fn begin_to_read_all(engine: &Engine, pieces: &[Piece]) {
    let mut files: HashMap<&str, Option<File>> = HashMap::new();
    for piece in pieces {
        let file = files.entry(&piece.segment).or_insert_with(|| engine.open_segment(&piece.segment).ok());
        file.iter().for_each(|file| file_will_need(file, piece.offset, piece.len.into()));
    }
}

impl Copier {
    /// Whether a piece is in the ring now; if not, its segment has gone or cannot be read.
    fn copy(&mut self, engine: &Engine, piece: &Piece) -> Result<bool, PassError> {
        let last = self.last.take().filter(|(pass, _)| *pass == piece.segment);
        let (pass, file) = match last {
            Some(last) => last,
            None => match engine.open_segment(&piece.segment) {
                Ok(file) => (piece.segment.clone(), file),
                Err(PassError::Gone) => return Ok(false),
                Err(error) => return Err(error),
            },
        };
        let done = self.copy_from(&file, piece);
        self.last = Some((pass, file));
        // Nothing is wrong with the disk if there is nothing at the place of a read.
        let is_elsewhere =
            |error: &io::Error| matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidInput);
        if let Some(error) = done.as_ref().err().filter(|error| !is_elsewhere(error)) {
            warn!(offset = piece.offset, len = piece.len, %error, "a grain could not be copied for a loader");
        }
        Ok(done.is_ok())
    }

    fn copy_from(&mut self, segment: &File, piece: &Piece) -> io::Result<()> {
        let (mut offset, mut at, mut left) = (piece.offset, piece.at, piece.len as usize);
        while left > 0 {
            let part = &mut self.buffer[..left.min(COPY_BYTES)];
            segment.read_exact_at(part, offset)?;
            self.ring.write_all_at(part, at)?;
            let len = part.len();
            left -= len;
            at += len as u64;
            offset = offset.saturating_add(len as u64);
        }
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Ended> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Ended::Io(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Stream;

    use proptest::prelude::*;
    use shardd_engine::cache::{Cache, CacheConfig};
    use shardd_engine::engine::Passes;
    use shardd_engine::peers::Alone;
    use shardd_store::metastore::MemoryMetastore;
    use shardd_store::origin::Origin;
    use tempfile::TempDir;
    use tokio::runtime::Runtime;

    use super::*;

    /// A node's local listener without the rest of the node.
    struct LocalServer {
        root: TempDir,
        stop: CancellationToken,
        serving: Option<tokio::task::JoinHandle<()>>,
        runtime: Runtime,
    }

    impl LocalServer {
        fn open(share: Share, limits: Limits) -> LocalServer {
            let root = TempDir::new().expect("a temporary directory can be made");
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.expect("threads");
            let _inside = runtime.enter();
            let store = root.path().join("store").display().to_string();
            let origin = Arc::new(Origin::open(&store).expect("a store"));
            let cache = Cache::open(root.path().join("cache"), CacheConfig::default()).expect("a cache");
            let meta = Arc::new(MemoryMetastore::new());
            let engine =
                Engine::new("n1".parse().expect("a name"), origin, Arc::new(cache), meta, Arc::new(Alone));
            engine.lend(Passes::new([1; 32]));
            let listener = LocalListener::open(&root.path().join("socket")).expect("a socket");
            let stop = CancellationToken::new();
            let serving = tokio::spawn(listener.serve_within(limits, engine, share, stop.clone()));
            drop(_inside);
            LocalServer { root, stop, serving: Some(serving), runtime }
        }

        /// Comes in and hears the node's first word; `None` if no client is let in.
        fn enter(&self) -> Option<Stream> {
            let mut stream = Stream::connect(self.root.path().join("socket")).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
            let mut magic = [0; 8];
            stream.read_exact(&mut magic).ok()?;
            assert_eq!(magic, MAGIC);
            let hello: Hello = read_frame(&mut stream).expect("it says who it is");
            assert_eq!((hello.format, hello.node.as_str()), (FORMAT, "n1"));
            Some(stream)
        }

        /// The answer to a question.
        fn ask(&self, stream: &mut Stream, ask: &Ask) -> Option<Answer> {
            stream.write_all(&local_transport::frame(ask)).ok()?;
            read_frame(stream)
        }
    }

    impl Drop for LocalServer {
        fn drop(&mut self) {
            self.stop.cancel();
            if let Some(serving) = self.serving.take() {
                self.runtime.block_on(serving).expect("no panic");
            }
        }
    }

    /// The next frame; `None` at the end.
    fn read_frame<T: serde::de::DeserializeOwned>(stream: &mut Stream) -> Option<T> {
        let mut head = [0; 4];
        stream.read_exact(&mut head).ok()?;
        let mut body = vec![0; local_transport::frame_len(head).expect("no longer than may be")];
        stream.read_exact(&mut body).ok()?;
        Some(local_transport::parse(&body).expect("understood"))
    }

    /// Looks again and again until something is so.
    fn until(mut is_so: impl FnMut() -> bool) {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(30), "waited in vain");
            std::thread::yield_now();
        }
    }

    fn refused(answer: Option<Answer>) -> String {
        match answer {
            Some(Answer::Refused { reason }) => reason,
            other => panic!("{other:?} is no refusal"),
        }
    }

    fn piece(segment: &str, len: u32, at: u64) -> Ask {
        Ask::Copy { pieces: vec![Piece { segment: segment.to_owned(), offset: 0, len, at }] }
    }

    #[test]
    fn only_passes_that_were_given_open_anything() {
        let server = LocalServer::open(Share::Files, Limits::default());
        let seal = "0".repeat(64);
        let names = ["/etc/passwd", "../lock", "00000001-00000000.seg", "", "\0"];
        for name in names.iter().flat_map(|name| [(*name).to_owned(), format!("{name}:{seal}")]) {
            let mut stream = server.enter().expect("let in");
            let reason = refused(server.ask(&mut stream, &Ask::File { segment: name.clone() }));
            assert!(reason.contains("no such pass"), "{name:?}: {reason}");
            assert_eq!(stream.read(&mut [0]).expect("closed"), 0, "who shows one is sent away");
            let mut stream = server.enter().expect("let in");
            assert!(matches!(server.ask(&mut stream, &Ask::Ring), Some(Answer::Ring { bytes: RING_BYTES })));
            assert!(refused(server.ask(&mut stream, &piece(&name, 1, 0))).contains("no such pass"));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_others_go_on() {
        let server = LocalServer::open(Share::Ring, Limits { rings: 1, ..Limits::default() });
        let mut other = server.enter().expect("let in");
        let mut stream = server.enter().expect("let in");
        let reason = refused(server.ask(&mut stream, &Ask::File { segment: "x".to_owned() }));
        assert!(reason.contains("--share"), "{reason}");
        let mut stream = server.enter().expect("let in");
        assert!(refused(server.ask(&mut stream, &piece("x", 1, 0))).contains("no ring"));
        let half = Piece { segment: "x".to_owned(), offset: 0, len: (RING_BYTES / 2 + 1) as u32, at: 0 };
        let over = Ask::Copy { pieces: vec![half.clone(), half] };
        for outside in [piece("x", 1, RING_BYTES), piece("x", u32::MAX, 0), piece("x", 1, u64::MAX), over] {
            let mut stream = server.enter().expect("let in");
            // The ring of who was sent away before is given back.
            until(|| matches!(server.ask(&mut stream, &Ask::Ring), Some(Answer::Ring { .. })));
            assert!(refused(server.ask(&mut stream, &outside)).contains("do not fit"));
        }
        until(|| matches!(server.ask(&mut other, &Ask::Ring), Some(Answer::Ring { .. })));
        assert_eq!(
            server.ask(&mut other, &Ask::Copy { pieces: vec![] }),
            Some(Answer::Copied { done: vec![] })
        );
        let mut late = server.enter().expect("let in");
        assert!(refused(server.ask(&mut late, &Ask::Ring)).contains("1 rings are lent"));
        assert!(refused(server.ask(&mut other, &Ask::Ring)).contains("one ring"));
    }

    #[test]
    fn who_says_nothing_or_only_half_is_sent_away() {
        let quick = Duration::from_millis(20);
        let server =
            LocalServer::open(Share::Files, Limits { quiet: quick, prompt: quick, ..Limits::default() });
        let half = local_transport::frame(&Ask::Ring);
        for said in [&[][..], &half[..2], &half[..half.len() - 1]] {
            let mut stream = server.enter().expect("let in");
            // It may be sent away before it has sent anything.
            let _ = stream.write_all(said);
            match stream.read_to_end(&mut Vec::new()) {
                Ok(heard) => assert_eq!(heard, 0),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
    }

    #[test]
    fn a_user_has_so_many_connections_and_no_more() {
        let server = LocalServer::open(Share::Files, Limits { a_user: 2, ..Limits::default() });
        let (first, _second) = (server.enter().expect("let in"), server.enter().expect("let in"));
        assert!(server.enter().is_none());
        drop(first);
        until(|| server.enter().is_some());
    }

    #[test]
    fn a_user_has_so_many_rings_and_no_more() {
        let server = LocalServer::open(Share::Ring, Limits { rings_a_user: 1, ..Limits::default() });
        let (mut first, mut second) = (server.enter().expect("let in"), server.enter().expect("let in"));
        assert!(matches!(server.ask(&mut first, &Ask::Ring), Some(Answer::Ring { .. })));
        assert!(refused(server.ask(&mut second, &Ask::Ring)).contains("1 rings are lent to user"));
        drop(first);
        until(|| matches!(server.ask(&mut second, &Ask::Ring), Some(Answer::Ring { .. })));
    }

    #[test]
    fn a_socket_is_taken_over_from_the_dead_only() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("threads");
        let _inside = runtime.enter();
        let root = TempDir::new().expect("a temporary directory can be made");
        let path = root.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        let listener = LocalListener::open(&path).expect("no node listens there any more");
        let error = LocalListener::open(&path).err().expect("refused");
        assert!(error.to_string().contains("another process listens"), "{error}");
        drop(listener);
        assert!(!path.exists());
        let listener = LocalListener::open(&path).expect("no node listens there any more");
        std::fs::remove_file(&path).expect("there");
        std::fs::write(&path, "precious").expect("written");
        drop(listener);
        assert!(path.exists(), "a file of another program stays");
        let error = LocalListener::open(&path).err().expect("refused");
        assert!(error.to_string().contains("something else is there"), "{error}");
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
        assert!(LocalListener::open(&root.path().join("x".repeat(200))).is_err());
    }

    #[test]
    fn garbage_is_refused_and_the_next_one_is_served() {
        let server = LocalServer::open(Share::Files, Limits::default());
        let mut runner = proptest::test_runner::TestRunner::default();
        let framed = (proptest::collection::vec(any::<u8>(), 0..200), any::<bool>());
        let outcome = runner.run(&framed, |(bytes, is_framed)| {
            let mut stream = server.enter().expect("let in");
            let mut said = bytes;
            if is_framed {
                let len = u32::try_from(said.len()).expect("short");
                said.splice(..0, len.to_le_bytes());
            }
            // It may be sent away before it has sent all.
            let _ = stream.write_all(&said);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            prop_assert!(heard.is_empty() || String::from_utf8_lossy(&heard).contains("refused"));
            Ok(())
        });
        outcome.expect("a law");
        let mut stream = server.enter().expect("let in");
        assert!(matches!(server.ask(&mut stream, &Ask::Ring), Some(Answer::Ring { .. })));
    }
}
