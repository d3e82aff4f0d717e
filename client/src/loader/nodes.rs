//! Rows from nodes: asks the host of each partition where its grains are, maps their segments or has them copied where the node
//! lends that (`lent.rs`), and takes their bytes where not. A node that does not answer is passed over for another: any node can give any grain.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use memmap2::Mmap;
use shardd_api::local_transport::Transport;
use shardd_api::loop_time::LoopTime;
use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::protocol::{
    Attach, AuditReport, LocateReply, LocateRequest, Located, RunId, RunView, host_identity,
};
use shardd_plan::{GrainNo, Plan, Read};
use shardd_store::http::{HttpClient, HttpError};
use shardfmt::shard::{nothing_beside, populate, will_need};
use shardfmt::{ByteSize, Manifest};
use tokio_util::sync::CancellationToken;
use tracing::{debug, debug_span, warn};

use super::LoadError;
use super::asking::{Answer, Asked, Asking, Unanswered, reported_to};
use super::clocks::{Clocks, On};
use super::connection::{Connection, Connects, addresses};
use super::grains::{AskAgain, GivenGrain, Grains, LentGrain, Verifier};
use super::lent::{LocalServers, Place};
use super::order::SourceRead;
use super::source::{Reads, Ready, RowSource};

/// How long a loader keeps trying all nodes before it gives up on a grain.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait before asking again for the missing grains.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// No question asks for more grains than this...
const GRAINS_A_QUESTION: usize = 4096;

/// ...nor for more bytes, going by the mean size of a grain, where bytes are what will be sent.
const BYTES_A_QUESTION: u64 = 32 << 20;

/// How many bytes of grains that came over the network are kept for later steps of their epoch.
const KEPT_BYTES: usize = 512 << 20;

/// From this many bytes on, a question to the kernel about the pages of a grain costs little beside verifying it.
const MANY_PAGES: usize = 32 << 10;

/// No pass is longer, in bytes.
const MAX_PASS: usize = 256;

/// The most that a grain has before the ends of its rows: two counts, and a path of 32 hashes.
const MAX_GRAIN_HEAD_BYTES: u64 = 8 + 32 * 32;

/// A rank's connection to the nodes of its run; leaves the run when dropped. Shared by the thread that reads and the one that reports.
pub(crate) struct Nodes {
    asking: Asking,
    run: RunId,
    rank: u32,
    world: u32,
    /// The addresses of nodes that the user gave; the first is the rank's own.
    servers: Vec<String>,
    /// This machine; `None` if nothing is to be borrowed from nodes.
    host: Option<String>,
    /// The transport of each node's grains, of those already got.
    transports: Mutex<BTreeMap<String, Transport>>,
    view: Arc<Mutex<RunView>>,
    /// A node has reported that its room is short: it is asked for rows.
    by_rows: AtomicBool,
    /// A lent row was wrong: the next request says so.
    doubts: AtomicBool,
    /// Epoch and position up to which the user has taken samples, and a signal that it has changed.
    consumed: Mutex<(u32, u64)>,
    /// Where the time of the user's loop went.
    loop_time: Mutex<LoopTime>,
    /// The addresses of nodes that take reports of it, and whether with the notes of the trainer.
    take_loop_time: Mutex<BTreeMap<String, bool>>,
    has_consumed: Condvar,
    /// By it nodes see whether this process lives. It ends after the rank has left the run.
    connection: Connection,
}

impl Nodes {
    /// Attaches the rank to its node and learns who hosts what.
    pub(crate) fn attach(
        asking: Asking,
        servers: Vec<String>,
        run: RunId,
        rank: u32,
        world: u32,
        start: (u32, u64),
        borrows: bool,
    ) -> Result<Self, LoadError> {
        let attach = Attach { world, epoch: start.0 };
        let mut last = None;
        for server in asking.in_order(servers.clone()) {
            let attached = asking.http.post_json(&format!("{server}/v1/runs/{run}/ranks/{rank}"), &attach);
            asking.said(&server, &attached);
            match attached {
                Ok(view) => {
                    warn_of_room(&view);
                    let by_rows = view.room.is_some_and(|room| room.by_rows);
                    let view = Arc::new(Mutex::new(view));
                    let Attach { world, epoch } = attach;
                    let connects = Connects {
                        asking: asking.clone(),
                        servers: servers.clone(),
                        view: Arc::clone(&view),
                        path: format!("/v1/runs/{run}/ranks/{rank}?world={world}&epoch={epoch}"),
                    };
                    return Ok(Self {
                        connection: Connection::keep(connects, server)?,
                        asking,
                        run,
                        rank,
                        world,
                        servers,
                        host: host_identity().filter(|_| borrows),
                        transports: Mutex::default(),
                        view,
                        by_rows: AtomicBool::new(by_rows),
                        doubts: AtomicBool::new(false),
                        consumed: Mutex::new(start),
                        loop_time: Mutex::default(),
                        take_loop_time: Mutex::default(),
                        has_consumed: Condvar::new(),
                    });
                }
                Err(error) if error.is_final() => return Err(error.into()),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or(LoadError::NoServers, LoadError::from))
    }

    /// The user has taken samples up to here. Every request from now on says so, however long reports take.
    pub(crate) fn reached(&self, epoch: u32, position: u64, time: LoopTime) {
        *self.loop_time.lock().expect("no panic while held") = time;
        *self.consumed.lock().expect("no panic while held") = (epoch, position);
        self.has_consumed.notify_all();
    }

    /// Waits until grains of `epoch` may be asked for: once the user is in the epoch before, or has taken all samples before
    /// `from`; whether only that. Nodes keep two epochs of a run, and learn from its ranks which.
    fn await_epoch(&self, epoch: u32, from: (u32, u64), stop: &CancellationToken) -> bool {
        let mut consumed = self.consumed.lock().expect("no panic while held");
        while consumed.0.saturating_add(1) < epoch && *consumed != from && !stop.is_cancelled() {
            // The loader closes without a signal here.
            let waited = self.has_consumed.wait_timeout(consumed, AGAIN_AFTER);
            consumed = waited.expect("no panic while held").0;
        }
        consumed.0.saturating_add(1) < epoch
    }

    /// Reports how far the rank has come: it is the clock of the exchange.
    pub(crate) fn report(&self, partitions: Range<u32>) {
        let (epoch, _) = *self.consumed.lock().expect("no panic while held");
        let view = self.view.lock().expect("no panic while held").clone();
        let hosts: Vec<String> = match &view.placement {
            Some(placement) => partitions.filter_map(|p| address(&view, placement.host(p))).collect(),
            None => self.servers.clone(),
        };
        let own = self.own();
        for server in reported_to(own.clone(), hosts, &self.asking.asked()) {
            if self.asking.is_avoided(&server) {
                continue;
            }
            self.report_to(&server, epoch, own.as_ref() == Some(&server));
        }
    }

    /// Reports to one node, the rank's own if it answers, how the loop fares: people look at it there.
    pub(crate) fn report_time(&self) {
        let (epoch, _) = *self.consumed.lock().expect("no panic while held");
        if let Some(server) = self.addresses().first().filter(|server| !self.asking.is_avoided(server)) {
            self.report_to(server, epoch, true);
        }
    }

    /// Reports to a node; where the time of the loop goes only to the rank's own, so that each rank counts once in a cluster.
    fn report_to(&self, server: &str, epoch: u32, is_own: bool) {
        let transport = self.transports().get(server).copied().unwrap_or_default();
        let mut question = self.question(transport, epoch, &[], Vec::new(), false);
        // An older release refuses requests with fields that it does not know.
        let takes = self.take_loop_time.lock().expect("no panic while held").get(server).copied();
        if let Some(takes_notes) = takes.filter(|_| is_own) {
            let time = *self.loop_time.lock().expect("no panic while held");
            question.loop_time = Some(if takes_notes { time } else { time.without_notes() });
        }
        let told = ask(&self.asking.quick, &self.run, server, &question);
        self.asking.said(server, &told);
        match told {
            Ok((reply, _)) => self.heard(server, &reply),
            Err(error) => debug!(server, %error, "this rank could not report its progress to a node"),
        }
    }

    /// Notes what a node's reply says of the node.
    fn heard(&self, server: &str, reply: &LocateReply) {
        let mut takes = self.take_loop_time.lock().expect("no panic while held");
        match (reply.takes_loop_time, takes.get_mut(server)) {
            (true, Some(takes_notes)) => *takes_notes = reply.takes_notes,
            (true, None) => drop(takes.insert(server.to_owned(), reply.takes_notes)),
            (false, _) => drop(takes.remove(server)),
        }
    }

    /// Reports the samples read in an epoch; whether a node has taken it, or refuses to for good.
    pub(crate) fn report_audit(&self, report: &AuditReport) -> bool {
        let path = format!("/v1/runs/{}/audit", self.run);
        self.addresses().iter().any(|server| {
            let sent =
                self.asking.quick.post_json::<_, serde_json::Value>(&format!("{server}{path}"), report);
            self.asking.said(server, &sent);
            if let Err(error) = &sent
                && error.is_final()
            {
                warn!(run = %self.run, epoch = report.epoch, %error, "the audit of an epoch is refused");
                return true;
            }
            sent.is_ok()
        })
    }

    /// Best effort: a run that a rank did not leave is taken over by its next launch.
    fn detach(&self) {
        let path = format!("/v1/runs/{}/ranks/{}", self.run, self.rank);
        let http = &self.asking.quick;
        let _ = self.addresses().iter().any(|server| http.delete(&format!("{server}{path}")).is_ok());
    }

    fn question(
        &self,
        transport: Transport,
        for_epoch: u32,
        grains: &[GrainNo],
        rows: Vec<Vec<u32>>,
        doubted: bool,
    ) -> LocateRequest {
        let (epoch, position) = *self.consumed.lock().expect("no panic while held");
        LocateRequest {
            rank: self.rank,
            world: self.world,
            epoch,
            position,
            for_epoch,
            grains: grains.iter().map(|grain| grain.0).collect(),
            transport,
            doubted,
            rows,
            loop_time: None,
        }
    }

    /// The first of [`addresses`](Self::addresses), the rank's own node if that answers. Makes no list of all and looks after none,
    /// as the rank reports with every step.
    fn own(&self) -> Option<String> {
        let view = self.view.lock().expect("no panic while held");
        self.asking.first(self.servers.iter().chain(view.nodes.iter().map(|node| &node.http))).cloned()
    }

    /// Every address worth trying, the rank's own node first, those that do not answer last.
    fn addresses(&self) -> Vec<String> {
        addresses(&self.asking, &self.servers, &self.view)
    }

    /// Of these addresses those that answer; all, if none does.
    fn talking(&self) -> Vec<String> {
        let all = self.addresses();
        let talking: Vec<String> =
            all.iter().filter(|server| !self.asking.is_avoided(server)).cloned().collect();
        if talking.is_empty() { all } else { talking }
    }

    /// The record of the node at an address.
    fn record(&self, server: &str) -> Option<NodeRecord> {
        let view = self.view.lock().expect("no panic while held");
        view.nodes.iter().find(|node| node.http == server).cloned()
    }

    fn refresh(&self) {
        for server in self.addresses() {
            let view = self.asking.quick.get_json::<RunView>(&format!("{server}/v1/runs/{}", self.run));
            self.asking.said(&server, &view);
            match view {
                Ok(view) => return self.know(view),
                Err(error) => debug!(server, %error, "a node could not be asked for the run"),
            }
        }
    }

    /// Who hosts what by now. A node whose lease has ended is asked first no more.
    fn know(&self, view: RunView) {
        let before = std::mem::replace(&mut *self.view.lock().expect("no panic while held"), view.clone());
        let is_gone = |node: &&NodeRecord| view.nodes.iter().all(|other| other.http != node.http);
        before.nodes.iter().filter(is_gone).for_each(|node| self.asking.fell_silent(&node.http));
    }

    /// The addresses of the nodes, the rank's own first.
    pub(crate) fn known(&self) -> Vec<String> {
        self.addresses()
    }

    /// How often each node was asked.
    pub(crate) fn asked(&self) -> BTreeMap<String, Asked> {
        self.asking.asked()
    }

    /// The transport of each node's grains, by the nodes' addresses, of those already got.
    pub(crate) fn transports(&self) -> BTreeMap<String, Transport> {
        self.transports.lock().expect("no panic while held").clone()
    }

    fn took(&self, server: &str, transport: Transport) {
        self.transports.lock().expect("no panic while held").insert(server.to_owned(), transport);
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.connection.open_no_more();
        self.detach();
    }
}

/// Asks a node where grains are.
fn ask(
    http: &HttpClient,
    run: &RunId,
    server: &str,
    question: &LocateRequest,
) -> Result<(LocateReply, Bytes), HttpError> {
    let grains = question.grains.len();
    let _asking = debug_span!("locate", server, %run, rank = question.rank, grains).entered();
    let url = format!("{server}/v1/runs/{run}/locate");
    let body = http.post_for_bytes(&url, question)?;
    parse_reply(&body, question.grains.len()).ok_or_else(|| HttpError::Protocol {
        url,
        reason: "the answer is not one of locate's; is this another release of shardd?".into(),
    })
}

fn address(view: &RunView, node: &NodeId) -> Option<String> {
    view.nodes.iter().find(|record| record.id == *node).map(|record| record.http.clone())
}

fn parse_reply(body: &Bytes, asked: usize) -> Option<(LocateReply, Bytes)> {
    let header_len = u32::from_le_bytes(body.get(..4)?.try_into().ok()?) as usize;
    let header = body.get(4..4usize.checked_add(header_len)?)?;
    let reply: LocateReply = serde_json::from_slice(header).ok()?;
    (reply.grains.len() == asked).then(|| (reply, body.slice(4 + header_len..)))
}

/// A grain that is read, and the partition it is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    grain: GrainNo,
    partition: u32,
}

impl Wanted {
    fn of(read: &Read) -> Self {
        Self { grain: read.grain, partition: read.partition.0 }
    }
}

/// The grains asked of a node at once.
struct Question {
    transport: Transport,
    wanted: Vec<Wanted>,
    request: LocateRequest,
}

/// Says before the training begins what caches that are too small will cost.
fn warn_of_room(view: &RunView) {
    let Some(room) = view.room.filter(|room| room.from_store_bytes_per_epoch > 0) else { return };
    let size = |bytes| ByteSize(bytes).to_string();
    warn!(
        run = %view.run.id, needed = size(room.needed_bytes), caches = size(room.cache_bytes),
        from_store_per_epoch = size(room.from_store_bytes_per_epoch),
        "the nodes' caches are too small for this run: the grains that do not fit are read from the store \
         in every epoch; raise --cache-size, or add nodes"
    );
}

/// The rows of a run, through its nodes.
pub(crate) struct NodeRows {
    nodes: Arc<Nodes>,
    verifier: Verifier,
    epoch: u32,
    /// The grains of the window, and those with rows for later windows.
    window: HashMap<GrainNo, GivenGrain>,
    known: HashMap<GrainNo, GivenGrain>,
    /// The rows that the window wants of each grain, and those of them that came by themselves.
    rows: HashMap<GrainNo, Vec<u32>>,
    sparse: HashMap<GrainNo, Bytes>,
    /// The step being prepared is longer than an epoch.
    is_long_step: bool,
    /// A node gave wrong bytes: the next request says so.
    doubts: bool,
    /// By the segments' passes.
    maps: HashMap<String, Arc<Mmap>>,
    lenders: LocalServers,
    /// Nodes may lend.
    borrows: bool,
    /// Passes of segments that were not to be had in this epoch, before the questions that were asked last...
    in_vain: HashSet<String>,
    /// ...and after them: several answers may name a segment that was dropped since they were given.
    just_lost: HashSet<String>,
    clocks: Arc<Clocks>,
    /// The grains are not wanted any more.
    stop: CancellationToken,
}

impl NodeRows {
    pub(crate) fn new(
        nodes: Arc<Nodes>,
        plan: Arc<Plan>,
        manifest: Arc<Manifest>,
        clocks: Arc<Clocks>,
        stop: CancellationToken,
    ) -> Self {
        let (window, known, maps) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (rows, sparse) = (HashMap::new(), HashMap::new());
        let lenders = LocalServers::default();
        let (in_vain, just_lost) = (HashSet::new(), HashSet::new());
        Self {
            nodes,
            verifier: Verifier { plan, manifest },
            epoch: 0,
            window,
            known,
            rows,
            sparse,
            is_long_step: false,
            doubts: false,
            maps,
            lenders,
            borrows: true,
            in_vain,
            just_lost,
            clocks,
            stop,
        }
    }

    /// Whether a grain may lie so: passes are short and plain, and no grain is larger than all rows of its shard.
    fn is_plausible(&self, grain: GrainNo, segment: &str, len: u32) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        let Verifier { plan, manifest } = &self.verifier;
        let shard = &manifest.shards[plan.locate_grain(grain).shard as usize];
        let ends = 4 * u64::from(plan.document().grain_rows.min(shard.rows));
        let most = shard.row_bytes.saturating_add(MAX_GRAIN_HEAD_BYTES + ends);
        segment.len() <= MAX_PASS && segment.bytes().all(is_plain) && u64::from(len) <= most
    }

    /// How many grains to ask for at once.
    fn question_size(&self) -> usize {
        let Verifier { plan, manifest } = &self.verifier;
        let grain_bytes = manifest.row_bytes() / plan.grain_count().max(1) + 1;
        GRAINS_A_QUESTION
            .min(usize::try_from(BYTES_A_QUESTION / grain_bytes).unwrap_or(GRAINS_A_QUESTION))
            .max(1)
    }

    /// Asks for grains until all are here: first the hosts, then, for the rest, any node.
    fn bring(&mut self, wanted: Vec<Wanted>) -> Result<(), LoadError> {
        let began = Instant::now();
        let mut left = wanted;
        let mut last_error = None;
        let mut attempt = 0;
        while !left.is_empty() {
            if self.stop.is_cancelled() {
                return Err(LoadError::Stopped);
            }
            if attempt > 0 {
                if began.elapsed() > TIMEOUT {
                    return Err(last_error.map_or(LoadError::NotGenuine { waited: TIMEOUT }, LoadError::from));
                }
                std::thread::sleep(AGAIN_AFTER);
            }
            self.in_vain.extend(std::mem::take(&mut self.just_lost));
            let by_server = self.choose(&left, attempt)?;
            let found_wrong = self.borrows && self.nodes.doubts.swap(false, Relaxed);
            let doubted = std::mem::take(&mut self.doubts) | found_wrong;
            let answers = self.ask_all(by_server, doubted).ok_or(LoadError::Stopped)?;
            left = Vec::new();
            let mut stale = attempt > 0;
            let mut answers = answers.into_iter().peekable();
            answers.peek().into_iter().for_each(|first| self.begin_to_read(first));
            while let Some((server, question, answer)) = answers.next() {
                // While these are verified, the disk reads those after them.
                answers.peek().into_iter().for_each(|next| self.begin_to_read(next));
                let (transport, wanted) = (question.transport, question.wanted.clone());
                match answer {
                    Ok((reply, body)) => {
                        stale |= reply.generation != self.generation();
                        if reply.by_rows {
                            self.nodes.by_rows.store(true, Relaxed);
                        }
                        let (again, lent) = self.take(&server, wanted, &reply, &body, doubted);
                        // Grains in no segment come along in the answer, in every transport.
                        let is_sent = !reply.grains.iter().any(|at| matches!(at, Located::File { .. }));
                        if let Some(by) = lent.or(is_sent.then_some(transport)).filter(|_| self.borrows) {
                            self.nodes.took(&server, by);
                        }
                        left.extend(again);
                    }
                    Err(Unanswered::Error(error)) if error.is_final() => return Err(error.into()),
                    Err(unanswered) => {
                        if let Unanswered::Error(error) = unanswered {
                            debug!(server, %error, "asking another node");
                            last_error = Some(error);
                        }
                        left.extend(wanted);
                        stale = true;
                    }
                }
            }
            if stale {
                self.nodes.refresh();
            }
            attempt += 1;
        }
        Ok(())
    }

    /// The question to each of these servers, and its result; from another where one is late.
    fn ask_all(
        &mut self,
        by_server: BTreeMap<String, Vec<Wanted>>,
        doubted: bool,
    ) -> Option<Vec<Answer<Question, (LocateReply, Bytes)>>> {
        let (question_size, mut questions) = (self.question_size(), Vec::new());
        for (server, wanted) in by_server {
            let transport = self.transport(&server);
            let question = |wanted: &[Wanted]| self.question(transport, wanted.to_vec(), doubted);
            questions.extend(wanted.chunks(question_size).map(|wanted| (server.clone(), question(wanted))));
        }
        let (nodes, stop) = (Arc::clone(&self.nodes), self.stop.clone());
        // A thread that waits for a node that hangs does not keep this rank attached.
        let (http, run) = (nodes.asking.http.clone(), nodes.run.clone());
        let asked = move |server: &str, question: &Question| ask(&http, &run, server, &question.request);
        let mut instead = |late: &str, question: &Question| {
            let other = nodes.talking().into_iter().find(|server| server != late)?;
            let transport = self.transport(&other);
            Some((other, self.question(transport, question.wanted.clone(), doubted)))
        };
        nodes.asking.ask_all(questions, asked, &mut instead, || stop.is_cancelled())
    }

    fn question(&self, transport: Transport, wanted: Vec<Wanted>, doubted: bool) -> Question {
        let grains: Vec<GrainNo> = wanted.iter().map(|wanted| wanted.grain).collect();
        // Rows are for nodes whose room is short.
        let by_rows = self.nodes.by_rows.load(Relaxed);
        let rows_of = |grain| self.rows.get(grain).cloned().unwrap_or_default();
        let rows = grains.iter().filter(|_| by_rows).map(rows_of).collect();
        let mut request = self.nodes.question(transport, self.epoch, &grains, rows, doubted);
        if self.is_long_step {
            // It has all that is left of the epochs before.
            (request.epoch, request.position) = (request.epoch, request.position).max((request.for_epoch, 0));
        }
        Question { transport, wanted, request }
    }

    fn generation(&self) -> u64 {
        let view = self.nodes.view.lock().expect("no panic while held");
        view.placement.as_ref().map_or(0, |placement| placement.generation)
    }

    /// The server to ask for each grain: the host of its partition; if that does not answer, others in turn.
    fn choose(&self, left: &[Wanted], attempt: usize) -> Result<BTreeMap<String, Vec<Wanted>>, LoadError> {
        let all = self.nodes.talking();
        if all.is_empty() {
            return Err(LoadError::NoServers);
        }
        let view = self.nodes.view.lock().expect("no panic while held").clone();
        let mut by_server: BTreeMap<String, Vec<Wanted>> = BTreeMap::new();
        for wanted in left {
            let host = view
                .placement
                .as_ref()
                .and_then(|placement| address(&view, placement.host(wanted.partition)));
            let server = match host {
                Some(host) if !self.nodes.asking.is_avoided(&host) => host,
                _ => all[attempt % all.len()].clone(),
            };
            by_server.entry(server).or_default().push(*wanted);
        }
        Ok(by_server)
    }

    /// How the grains of a node are got from now on.
    fn transport(&mut self, server: &str) -> Transport {
        let Some(host) = self.nodes.host.as_ref().filter(|_| self.borrows) else { return Transport::Stream };
        match self.nodes.record(server) {
            Some(record) => self.lenders.transport(server, &record, host),
            None => Transport::Stream,
        }
    }

    /// Takes an answer's grains, to a question that `doubted` the grains given before or did not; returns
    /// those that must be asked for again, and how those came that were lent, if any were.
    fn take(
        &mut self,
        server: &str,
        wanted: Vec<Wanted>,
        reply: &LocateReply,
        body: &[u8],
        doubted: bool,
    ) -> (Vec<Wanted>, Option<Transport>) {
        let mut again = Vec::new();
        let (mut strange, mut lost, mut at) = (false, Vec::new(), 0usize);
        let (mut is_nonsense, mut came) = (false, None);
        let (mut lying, mut places) = (Vec::new(), Vec::new());
        let mut given = Vec::with_capacity(wanted.len());
        for (wanted, located) in wanted.into_iter().zip(&reply.grains) {
            match located {
                Located::Inline { len } => {
                    let end = at + *len as usize;
                    let bytes = body.get(at..end).map(Bytes::copy_from_slice);
                    at = end;
                    given.push((wanted, bytes.map(Unverified::Own)));
                }
                Located::Rows { len } => {
                    let end = at + *len as usize;
                    let bytes = body.get(at..end).map(Bytes::copy_from_slice);
                    at = end;
                    let rows = self.rows.get(&wanted.grain).map_or(&[][..], Vec::as_slice);
                    match bytes.filter(|bytes| self.verifier.are_genuine(wanted.grain, rows, bytes)) {
                        Some(bytes) => drop(self.sparse.insert(wanted.grain, bytes)),
                        None => again.push(wanted),
                    }
                }
                Located::File { segment, len, .. } if !self.is_plausible(wanted.grain, segment, *len) => {
                    is_nonsense = true;
                    again.push(wanted);
                }
                Located::File { segment, offset, len } => {
                    lying.push(wanted);
                    places.push(Place { segment: segment.clone(), offset: *offset, len: *len });
                }
            }
        }
        let sent = given.len();
        let by = if self.lenders.is_ring(server) { Transport::Ring } else { Transport::Files };
        let began = Instant::now();
        let lent = self.borrow(server, &places);
        self.clocks.add(On::Disk, began.elapsed());
        given.extend(lying.into_iter().zip(lent));
        for (number, (wanted, bytes)) in given.into_iter().enumerate() {
            let Some(bytes) = bytes else {
                // Dropped since, and then it is not named again.
                let named = number.checked_sub(sent).and_then(|lent| places.get(lent));
                lost.extend(named.map(|place| place.segment.clone()));
                again.push(wanted);
                continue;
            };
            match bytes.verified(&self.verifier, wanted.grain, doubted) {
                Some(grain) => {
                    came = came.or((number >= sent).then_some(by));
                    self.window.insert(wanted.grain, grain.clone());
                    // Each row is read once in an epoch.
                    if self.verifier.rows_of(wanted.grain) > 1 {
                        self.known.insert(wanted.grain, grain);
                    }
                }
                None => {
                    // Damaged since it was checked. Where that was checked again, the lent bytes are not
                    // those that the node reads.
                    strange |= doubted && number >= sent;
                    self.doubts = true;
                    again.push(wanted);
                }
            }
        }
        let is_known = lost.iter().any(|segment| self.in_vain.contains(segment));
        self.just_lost.extend(lost);
        if is_nonsense {
            self.lenders.stream(server, &"the reply names no valid segment or grain");
        }
        if is_known {
            self.lenders.stream(server, &"the segment that it names could not be had, several times");
        }
        if strange {
            warn!(server, "the lent grains of the node do not match the manifest");
            self.lenders.stream(server, &"wrong bytes, time and again");
        }
        (again, came)
    }

    /// The grains that lie at these places of a node's segments, by whatever way is open; `None` for those that cannot be had
    /// that way, now or ever.
    fn borrow(&mut self, server: &str, places: &[Place]) -> Vec<Option<Unverified>> {
        if self.lenders.is_ring(server) {
            let copies = self.lenders.copies(server, places);
            return copies.into_iter().map(|copy| copy.map(|copy| Unverified::Own(copy.into()))).collect();
        }
        places.iter().map(|place| self.map(server, place).and_then(|at| self.present(server, at))).collect()
    }

    /// Has the disk begin to read the grains that an answer lends, so that none waits for the one before it.
    fn begin_to_read(&mut self, (server, question, answer): &Answer<Question, (LocateReply, Bytes)>) {
        let Ok((reply, _)) = answer else { return };
        if self.lenders.is_ring(server) {
            return;
        }
        let began = Instant::now();
        for (wanted, located) in question.wanted.iter().zip(&reply.grains) {
            if let Located::File { segment, offset, len } = located
                && self.is_plausible(wanted.grain, segment, *len)
            {
                let place = Place { segment: segment.clone(), offset: *offset, len: *len };
                let at = self.map(server, &place);
                at.into_iter().for_each(|(map, range)| will_need(&map[range]));
            }
        }
        self.clocks.add(On::Disk, began.elapsed());
    }

    /// Drops grains from the network when they take too much memory, but not those wanted now.
    fn trim(&mut self, wanted: &BTreeSet<Wanted>) {
        let owned = |grain: &GivenGrain| if let GivenGrain::Owned(bytes) = grain { bytes.len() } else { 0 };
        if self.known.values().map(owned).sum::<usize>() > KEPT_BYTES {
            let wanted: HashSet<GrainNo> = wanted.iter().map(|wanted| wanted.grain).collect();
            self.known.retain(|grain, bytes| owned(bytes) == 0 || wanted.contains(grain));
        }
    }

    /// A stretch of a segment that is mapped, or is from now on.
    fn map(&mut self, server: &str, place: &Place) -> Option<(Arc<Mmap>, Range<usize>)> {
        let Place { segment, offset, len } = place;
        let range =
            usize::try_from(*offset).ok()?..usize::try_from(offset.checked_add((*len).into())?).ok()?;
        let map = match self.maps.get(segment) {
            Some(map) if map.len() >= range.end => Arc::clone(map),
            _ => {
                let file = self.lenders.file(server, segment)?;
                // SAFETY: a segment is only ever appended to, never truncated or rewritten (docs/ARCHITECTURE.md), so no process
                // changes the mapped bytes as long as the map lives, also when the file is unlinked. What a bad disk changes, the
                // batch is checked for (`grains.rs`).
                let map = match unsafe { Mmap::map(&file) } {
                    Ok(map) => Arc::new(map),
                    Err(error) => {
                        self.lenders.no_files(server, &error);
                        return None;
                    }
                };
                // Grains of a step lie anywhere: what the kernel reads beside them would take the place of others.
                nothing_beside(&map);
                self.maps.insert(segment.clone(), Arc::clone(&map));
                map
            }
        };
        if map.len() < range.end {
            return None;
        }
        Some((map, range))
    }

    /// The stretch, once its pages are in memory: one that cannot be read is an error here, not a signal later.
    fn present(&mut self, server: &str, (map, range): (Arc<Mmap>, Range<usize>)) -> Option<Unverified> {
        // Pages that were dropped before their turn are read in one go, and not each when it is touched.
        if range.len() >= MANY_PAGES {
            will_need(&map[range.clone()]);
        }
        match populate(&map[range.clone()]) {
            Ok(()) => Some(Unverified::Mapped(map, range)),
            Err(error) => {
                warn!(server, %error, "a segment cannot be read; asking again");
                self.doubts = true;
                None
            }
        }
    }
}

impl RowSource for NodeRows {
    fn await_epoch(&mut self, epoch: u32, from: (u32, u64)) {
        self.is_long_step = self.nodes.await_epoch(epoch, from, &self.stop);
    }

    fn prepare(&mut self, epoch: u32, window: &[&Reads]) -> Result<Arc<dyn Ready>, LoadError> {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.known.clear();
            self.maps.clear();
            self.lenders.forgive();
            self.in_vain.clear();
            self.just_lost.clear();
        }
        if self.nodes.doubts.load(Relaxed) {
            // One was wrong where it lay: the others are asked for again, too.
            self.known.retain(|_, grain| matches!(grain, GivenGrain::Owned(_)));
        }
        let wanted: BTreeSet<Wanted> =
            window.iter().copied().flatten().flatten().map(|of| Wanted::of(&of.read)).collect();
        self.trim(&wanted);
        (self.rows, self.sparse) = (HashMap::new(), HashMap::new());
        for read in window.iter().copied().flatten().flatten().map(|of| &of.read) {
            self.rows.entry(read.grain).or_default().push(read.row);
        }
        let known = |wanted: &Wanted| Some((wanted.grain, self.known.get(&wanted.grain)?.clone()));
        self.window = wanted.iter().filter_map(known).collect();
        let missing = wanted.into_iter().filter(|wanted| !self.window.contains_key(&wanted.grain)).collect();
        let (began, of_files) = (Instant::now(), self.clocks.spent(On::Disk));
        self.bring(missing)?;
        let of_files = self.clocks.spent(On::Disk) - of_files;
        self.clocks.add(On::Network, began.elapsed().saturating_sub(of_files));
        Ok(Arc::new(self.take_window(self.way_again())))
    }
}

impl NodeRows {
    /// The grains of the window, as they came.
    fn take_window<A>(&mut self, asks_again: A) -> Grains<A> {
        let (whole, sparse) = (std::mem::take(&mut self.window), std::mem::take(&mut self.sparse));
        Grains::new(whole, sparse, self.verifier.clone(), asks_again)
    }

    fn way_again(&self) -> WayAgain {
        WayAgain {
            nodes: Arc::clone(&self.nodes),
            verifier: self.verifier.clone(),
            epoch: self.epoch,
            is_long_step: self.is_long_step,
            clocks: Arc::clone(&self.clocks),
            stop: self.stop.clone(),
        }
    }
}

/// A grain's bytes as a node gave them.
enum Unverified {
    Own(Bytes),
    Mapped(Arc<Mmap>, Range<usize>),
}

impl Unverified {
    /// The grain, if these bytes are it; of a lent one of one row `at_once` or in its batch.
    fn verified(self, verifier: &Verifier, grain: GrainNo, at_once: bool) -> Option<GivenGrain> {
        match self {
            Self::Own(bytes) => verifier.is_genuine(grain, &bytes).then_some(GivenGrain::Owned(bytes)),
            Self::Mapped(map, range) => LentGrain::in_map(verifier, grain, (map, range), at_once)
                .map(|grain| GivenGrain::Lent(Arc::new(grain))),
        }
    }
}

/// Asks nodes for the bytes of rows that are wrong in a lent file.
struct WayAgain {
    nodes: Arc<Nodes>,
    verifier: Verifier,
    epoch: u32,
    is_long_step: bool,
    clocks: Arc<Clocks>,
    stop: CancellationToken,
}

impl AskAgain for WayAgain {
    fn again(&self, reads: &[&SourceRead]) -> Result<Grains<()>, LoadError> {
        debug!(rows = reads.len(), first = %reads[0].read.grain, "lent rows are wrong; asking again for their bytes");
        // The next window is verified as it comes, and by the nodes before.
        self.nodes.doubts.store(true, Relaxed);
        let Verifier { plan, manifest } = self.verifier.clone();
        let (nodes, clocks, stop) = (Arc::clone(&self.nodes), Arc::clone(&self.clocks), self.stop.clone());
        let mut rows = NodeRows::new(nodes, plan, manifest, clocks, stop);
        (rows.epoch, rows.is_long_step) = (self.epoch, self.is_long_step);
        (rows.doubts, rows.borrows) = (true, false);
        for SourceRead { read, .. } in reads {
            rows.rows.entry(read.grain).or_default().push(read.row);
        }
        let wanted: BTreeSet<Wanted> = reads.iter().map(|of| Wanted::of(&of.read)).collect();
        rows.bring(wanted.into_iter().collect())?;
        Ok(rows.take_window(()))
    }
}
