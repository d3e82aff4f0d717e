//! The transport of bytes from a node to a loader on its machine: descriptors of the node's files, a ring of
//! memory, or a stream; the batches are the same for all of them.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use serde_json::{Value, json};
use shardd_api::local_transport::{self, Answer, Ask, Hello, MAGIC, Piece, RING_BYTES, Transport};
use shardd_client::loader::{Loader, LoaderConfig, LoaderSource};
use shardd_store::http::Credentials;
use shardd_tests::{Node, RankProcess, Reading, binary, run, wait_until};
use shardfmt::PlanId;
use tempfile::TempDir;

/// Who owns nothing here.
const NOBODY: u32 = 65534;

/// A node with a dataset, and a place that everybody can enter, with its socket and with what loaders run.
struct House {
    node: Node,
    plan: Value,
    public: TempDir,
    // Last: the node is stopped before its directory goes.
    _root: TempDir,
}

impl House {
    fn new(share: &str) -> House {
        Self::with(share, &[])
    }

    fn with(share: &str, more: &[(&str, String)]) -> House {
        // A temporary directory can be entered by its owner only, and so can the node's data in it.
        let root = TempDir::new().expect("a temporary directory");
        let public = TempDir::new().expect("a temporary directory");
        std::fs::set_permissions(public.path(), Permissions::from_mode(0o755)).expect("our own");
        let socket = public.path().join("socket").display().to_string();
        let variables = [("SHARDD_SHARE", share.to_owned()), ("SHARDD_SOCKET", socket)];
        let node = Node::start_with(root.path(), "n1", None, &[&variables[..], more].concat());
        let mut house = House { node, plan: Value::Null, public, _root: root };
        let ingest = ["ingest", "--name", "digits", "--shard-size", "8KiB"];
        run(house.shardctl().args(ingest).arg(digits()));
        let plan = run(house.shardctl().args(["--json", "partition", "--q", "0.3", "--partitions", "16"]));
        house.plan = serde_json::from_str(&plan).expect("JSON");
        house
    }

    fn socket(&self) -> PathBuf {
        self.public.path().join("socket")
    }

    /// `shardctl` of the node's own user.
    fn shardctl(&self) -> Command {
        self.command(&binary("shardctl"))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["--server", &self.node.http]);
        let token = self.node.data.join("admin-token");
        if token.exists() {
            command.env("SHARDD_TOKEN_FILE", token);
        }
        command
    }

    /// `shardctl` of another user; `None` where we may not become one.
    fn foreign(&self) -> Option<Command> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can run a loader as another user");
            return None;
        }
        let program = self.public.path().join("shardctl");
        if !program.exists() {
            std::fs::copy(binary("shardctl"), &program).expect("copied");
        }
        let mut command = self.command(&program);
        command.uid(NOBODY).gid(NOBODY).current_dir("/").env("HOME", self.public.path());
        Some(command)
    }

    fn reading(&self, run: &str) -> Reading {
        Reading { run: run.to_owned(), ..Reading::alone(&self.plan, 2) }
    }

    /// Every line that a loader prints of its reads, and the transport.
    fn read(&self, command: Command, name: &str) -> (Vec<Value>, Value) {
        let mut rank = RankProcess::start(command, &self.reading(name), 0);
        let mut lines = Vec::new();
        while let Some(line) = rank.next_line() {
            lines.push(line);
        }
        let done = lines.pop().expect("it says that it is done");
        (lines, done["transports"][&self.node.http].clone())
    }
}

fn digits() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../client/data/digits/train.parquet"))
}

#[test]
fn whoever_reads_and_however_the_batches_are_the_same() {
    let mut all: Option<Vec<Value>> = None;
    for (share, transport) in [("files", "files"), ("ring", "ring"), ("none", "stream")] {
        let house = House::new(share);
        assert_eq!(house.socket().exists(), share != "none");
        let own = Some(house.shardctl());
        for (who, command) in [("own", own), ("foreign", house.foreign())] {
            let Some(command) = command else { continue };
            let (lines, by) = house.read(command, who);
            assert_eq!(by, transport, "{who}, from a node that shares {share}");
            assert!(lines.len() > 100, "{} steps", lines.len());
            let first = all.get_or_insert_with(|| lines.clone());
            assert!(*first == lines, "{who} reads something else by {transport}");
        }
    }
}

#[test]
fn a_node_says_by_what_each_rank_reads() {
    let house = House::new("files");
    let mut rank = RankProcess::start(house.shardctl(), &Reading::alone(&house.plan, 20), 0);
    // It cannot end before we have read its output: that is more than a pipe holds.
    rank.next_line().expect("a step");
    let status: Value =
        serde_json::from_str(&run(house.shardctl().args(["--json", "status"]))).expect("JSON");
    let readers = &status["nodes"][0]["status"]["readers"];
    assert_eq!((&readers[0]["run"], &readers[0]["rank"]), (&json!("r"), &json!(0)), "{readers}");
    assert_eq!(readers[0]["transport"], "files");
    let page = run(house.shardctl().arg("status"));
    assert!(page.lines().any(|line| line.starts_with("r ") && line.trim_end().ends_with("files")), "{page}");
    drop(rank);
}

#[test]
fn a_loader_does_without_a_socket_and_finds_that_of_a_node_that_came_back() {
    let mut house = House::new("files");
    let (whole, by) = house.read(house.shardctl(), "r1");
    assert_eq!(by, "files");
    std::fs::remove_file(house.socket()).expect("there");
    let (lines, by) = house.read(house.shardctl(), "r2");
    assert_eq!(by, "stream");
    assert!(lines == whole);
    house.node.kill();
    house.node.restart();
    // What a killed node leaves behind is no hindrance either.
    house.node.kill();
    assert!(house.socket().exists());
    house.node.restart();
    let (lines, by) = house.read(house.shardctl(), "r3");
    assert_eq!(by, "files");
    assert!(lines == whole);
    house.node.stop();
    assert!(!house.socket().exists());
}

#[test]
fn a_loader_that_is_killed_leaves_no_ring_and_the_next_one_reads() {
    let house = House::new("ring");
    let (whole, _) = house.read(house.shardctl(), "r1");
    let rings = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", house.node.pid())).expect("of our own process");
        let named = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
        open.filter_map(named).filter(|path| path.to_string_lossy().contains("shardd-ring")).count()
    };
    wait_until("the ring of the first loader is gone", || rings() == 0);
    let mut rank = RankProcess::start(house.shardctl(), &Reading::alone(&house.plan, 20), 0);
    rank.next_line().expect("a step");
    assert_eq!(rings(), 1);
    drop(rank); // kill -9
    wait_until("the ring of the killed loader is gone", || rings() == 0);
    let (lines, by) = house.read(house.shardctl(), "r2");
    assert_eq!(by, "ring");
    assert!(lines == whole);
}

/// A disk gives other bytes than a while ago. A loader has verified some grains by then, of which it has yet to read most rows;
/// others it finds changed.
#[test]
fn rows_that_change_after_they_were_verified_are_not_delivered() {
    for grain_rows in ["1", "16"] {
        let house = House::new("files");
        let partition =
            ["--json", "partition", "--q", "0.3", "--partitions", "16", "--grain-rows", grain_rows];
        let plan: Value = serde_json::from_str(&run(house.shardctl().args(partition))).expect("JSON");
        let source = LoaderSource::Nodes {
            servers: vec![house.node.http.clone()],
            run: "r".parse().expect("a name"),
            credentials: Credentials::default(),
        };
        let plan: PlanId = plan["plan"].as_str().expect("its name").parse().expect("a plan");
        let mut config = LoaderConfig::new(source, plan, 8);
        (config.audit, config.end_epoch) = (true, 1);
        let mut loader = Loader::open(config).expect("opens");
        for _ in 0..4 {
            loader.next_step().expect("reads").expect("there are many");
        }
        let transports = loader.transports();
        assert!(transports.values().all(|by| *by == Transport::Files), "{transports:?}");
        let segments = house.node.data.join("cache/segments");
        for segment in std::fs::read_dir(segments).expect("a directory") {
            let path = segment.expect("a file").path();
            let file = File::options().read(true).write(true).open(path).expect("our own");
            let mut bytes = Vec::new();
            (&file).read_to_end(&mut bytes).expect("reads");
            bytes.iter_mut().step_by(50).for_each(|byte| *byte ^= 4);
            // Where they lie, as a disk would: the loader has this file mapped.
            file.write_all_at(&bytes, 0).expect("written");
        }
        while loader.next_step().expect("reads").is_some() {}
        let (audit, all) = (loader.audits()[0], loader.sources()[0].manifest.digest_sum());
        assert_eq!((audit.samples, audit.digest_sum), (1437, all), "with {grain_rows} rows in a grain");
    }
}

/// A loader of another make.
struct Stranger {
    stream: UnixStream,
}

impl Stranger {
    fn enter(house: &House) -> Stranger {
        let stream = UnixStream::connect(house.socket()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
        let mut stranger = Stranger { stream };
        let mut magic = [0; 8];
        stranger.stream.read_exact(&mut magic).expect("it names its kind");
        assert_eq!(magic, MAGIC);
        let hello: Hello = local_transport::parse(&stranger.hear().0).expect("understood");
        assert_eq!(hello.node.as_str(), "n1");
        stranger
    }

    fn ask(&mut self, ask: &Ask) -> (Answer, Option<OwnedFd>) {
        self.stream.write_all(&local_transport::frame(ask)).expect("it is taken");
        let (body, descriptor) = self.hear();
        (local_transport::parse(&body).expect("understood"), descriptor)
    }

    fn hear(&mut self) -> (Vec<u8>, Option<OwnedFd>) {
        let mut head = [0; 4];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [std::io::IoSliceMut::new(&mut head)];
        let received = rustix::net::recvmsg(
            &self.stream,
            &mut into,
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
        );
        assert_eq!(received.expect("it answers").bytes, 4);
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        assert!(descriptors.len() <= 1);
        let mut body = vec![0; local_transport::frame_len(head).expect("no longer than may be")];
        self.stream.read_exact(&mut body).expect("all of it");
        (body, descriptors.pop())
    }
}

#[test]
fn who_may_read_is_lent_what_was_told_to_read_only_and_nothing_else() {
    let house = House::with("files", &[("SHARDD_AUTH", "tokens".to_owned())]);
    house.read(house.shardctl(), "r");
    let token = std::fs::read_to_string(house.node.data.join("admin-token")).expect("the first token");
    let url = format!("{}/v1/runs/r/locate", house.node.http);
    let question = json!({
        "rank": 0, "world": 1, "epoch": 0, "position": 0, "for_epoch": 0, "grains": [0], "transport": "files"
    });
    let refused = ureq::post(&url).send_json(&question).expect_err("nobody");
    assert!(matches!(refused, ureq::Error::StatusCode(401)), "{refused}");
    let mut answer = ureq::post(&url)
        .header("authorization", format!("Bearer {}", token.trim()))
        .send_json(&question)
        .expect("the administrator");
    let body = answer.body_mut().read_to_vec().expect("an answer");
    let head = u32::from_le_bytes(body[..4].try_into().expect("four bytes")) as usize;
    let reply: Value = serde_json::from_slice(&body[4..4 + head]).expect("JSON");
    assert_eq!(body.len(), 4 + head, "no grain is sent");
    let place = &reply["grains"][0]["file"];
    let (offset, len) =
        (place["offset"].as_u64().expect("a number"), place["len"].as_u64().expect("a number"));
    let segment = place["segment"].as_str().expect("a pass").to_owned();
    assert!(!segment.contains('/'), "{segment} tells a path");

    let mut stranger = Stranger::enter(&house);
    let (answer, descriptor) = stranger.ask(&Ask::File { segment: segment.clone() });
    assert_eq!(answer, Answer::File);
    let file = File::from(descriptor.expect("it comes with the answer"));
    let mut grain = vec![0; len as usize];
    file.read_exact_at(&mut grain, offset).expect("readable");
    file.write_all_at(b"x", offset).expect_err("not to be written");
    file.set_len(0).expect_err("nor cut");

    let (answer, ring) = stranger.ask(&Ask::Ring);
    assert_eq!(answer, Answer::Ring { bytes: RING_BYTES });
    let ring = File::from(ring.expect("it comes with the answer"));
    ring.set_len(0).expect_err("no process changes its size");
    let at = RING_BYTES - len;
    let piece = |offset: u64| Piece { segment: segment.clone(), offset, len: len as u32, at };
    let (answer, _) = stranger.ask(&Ask::Copy { pieces: vec![piece(offset), piece(u64::MAX - len)] });
    assert_eq!(answer, Answer::Copied { done: vec![true, false] });
    let mut copied = vec![0; len as usize];
    ring.read_exact_at(&mut copied, at).expect("there");
    assert!(copied == grain);
    // Who keeps the descriptor keeps no memory.
    let blocks = || ring.metadata().expect("it is still ours").blocks();
    assert!(blocks() > 0);
    drop(stranger);
    wait_until("the ring is emptied", || blocks() == 0);

    // The same seal on other files, and an invalid pass.
    let seal = segment.split_once(':').expect("a name and a seal").1;
    for other in ["../lock", "../admin-token", "../tls/node.key", "cache.json", "/etc/shadow"] {
        for asked in [format!("{other}:{seal}"), other.to_owned()] {
            let mut stranger = Stranger::enter(&house);
            let (answer, descriptor) = stranger.ask(&Ask::File { segment: asked.clone() });
            assert!(matches!(answer, Answer::Refused { .. }) && descriptor.is_none(), "{asked}: {answer:?}");
        }
    }
    // No reader has suffered.
    assert_eq!(house.read(house.shardctl(), "r2").1, "files");
}
