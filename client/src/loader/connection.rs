//! The connection that a rank keeps open to a node while its process lives. The kernel closes it when the process
//! ends, however it ends: by that nodes see that a rank was killed.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardd_api::protocol::RunView;
use shardd_store::http::{HttpError, Lines};
use tracing::debug;

use super::asking::Asking;
use super::{LoadError, spawn};

/// Nodes send a line every ten seconds.
const SILENCE: Duration = Duration::from_secs(30);
/// How soon a broken connection is opened again: nodes wait five seconds for it.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long the rank tries only its present node, which may be restarting.
const SAME_NODE_FOR: Duration = Duration::from_secs(10);
/// How soon a node is asked again that refused: another release may be started in its place.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Every address worth trying, the rank's own node first, those that do not answer last.
pub(super) fn addresses(asking: &Asking, servers: &[String], view: &Mutex<RunView>) -> Vec<String> {
    let mut all = servers.to_vec();
    for node in &view.lock().expect("no panic while held").nodes {
        if !all.contains(&node.http) {
            all.push(node.http.clone());
        }
    }
    asking.in_order(all)
}

/// The rank that keeps the connection, and whom it may connect to.
pub(super) struct Connects {
    pub(super) asking: Asking,
    /// The addresses that the user gave; the first is the rank's own node.
    pub(super) servers: Vec<String>,
    pub(super) view: Arc<Mutex<RunView>>,
    /// `/v1/runs/{run}/ranks/{rank}?…`
    pub(super) path: String,
}

/// The thread that keeps the connection, which ends with this.
pub(super) struct Connection {
    asking: Asking,
    is_connected: Arc<AtomicBool>,
    /// Dropped to end the thread.
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Connection {
    /// Connects to the node that the rank is attached to, and to others when that is gone.
    pub(super) fn keep(rank: Connects, attached_to: String) -> Result<Self, LoadError> {
        let asking = rank.asking.clone();
        let (end, ended) = sync_channel(0);
        let is_connected = Arc::new(AtomicBool::new(false));
        let connected = Arc::clone(&is_connected);
        let thread = spawn("shardd-connect", move || rank.keep_connected(attached_to, &ended, &connected))?;
        Ok(Self { asking, is_connected, end: Some(end), thread: Some(thread) })
    }

    /// No connection is opened any more: one that came after the rank has detached would attach it again. An open one stays, so
    /// that the rank is not taken for lost before it has detached.
    pub(super) fn open_no_more(&mut self) {
        self.end = None;
        if !self.is_connected.load(Relaxed) {
            self.end_thread();
        }
    }

    fn end_thread(&mut self) {
        self.end = None;
        self.asking.lasting.shut_down();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl Connects {
    fn keep_connected(&self, mut node: String, ended: &Receiver<()>, is_connected: &AtomicBool) {
        let mut connected = Instant::now();
        loop {
            let nodes = match connected.elapsed() < SAME_NODE_FOR {
                true => vec![node.clone()],
                false => addresses(&self.asking, &self.servers, &self.view),
            };
            let mut again_after = AGAIN_AFTER;
            for server in nodes {
                match self.open(&server) {
                    Ok(lines) => {
                        is_connected.store(true, Relaxed);
                        node = self.stay(server, lines);
                        is_connected.store(false, Relaxed);
                        (connected, again_after) = (Instant::now(), AGAIN_AFTER);
                        break;
                    }
                    Err(error) => {
                        debug!(server, %error, "this rank cannot connect to a node");
                        if error.is_final() {
                            again_after = REFUSED_FOR;
                        }
                        // A node that refuses is there: the rank stays with it.
                        if error.is_final() && server == node {
                            connected = Instant::now();
                            break;
                        }
                    }
                }
            }
            match ended.recv_timeout(again_after) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn open(&self, server: &str) -> Result<Lines, HttpError> {
        self.asking.lasting.get_lines(&format!("{server}{}", self.path), &[], SILENCE)
    }

    /// Keeps a connection until it breaks, and moves to the rank's own node when that is back. Returns the node that it was to.
    fn stay(&self, mut node: String, mut lines: Lines) -> String {
        while let Some(Ok(_)) = lines.next() {
            let Some(own) = self.servers.first().filter(|own| **own != node) else { continue };
            if let Ok(to_own) = self.open(own) {
                (node, lines) = (own.clone(), to_own);
            }
        }
        node
    }
}
