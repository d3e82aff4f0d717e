//! A real etcd of one member or several on loopback, whose members die without a word and come back.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{run, wait_until};

/// Members of one etcd, each a process with a directory of its own. Killed when dropped.
pub struct Etcd {
    members: Vec<Member>,
    root: TempDir,
    /// Speaks TLS only, to those who show a certificate, and lets in a user with a password.
    is_secured: bool,
}

struct Member {
    name: String,
    /// Where clients connect.
    client: String,
    /// Where the other members do.
    peer: String,
    child: Option<Child>,
}

impl Etcd {
    /// The user of a secured etcd.
    pub const USER: &str = "root";

    /// Starts `count` members and waits until all of them answer; `None`, with a word about it, where etcd is not installed.
    /// Its data is in memory where it can be: it outlives the processes, and no busy disk makes a story late.
    pub fn start(count: usize) -> Option<Self> {
        Self::start_in(memory(), count, false)
    }

    /// The same with its data on the disk of temporary files, for those who measure.
    pub fn start_on_disk(count: usize) -> Option<Self> {
        Self::start_in(std::env::temp_dir(), count, false)
    }

    /// Starts one member that wants TLS with a client's certificate, and [`USER`](Self::USER) with the password in
    /// [`file`](Self::file) `password`.
    pub fn start_secured() -> Option<Self> {
        let etcd = Self::start_in(memory(), 1, true)?;
        let password = std::fs::read_to_string(etcd.file("password")).expect("just written");
        etcd.control(&["user", "add", &format!("{}:{}", Self::USER, password.trim())]);
        etcd.control(&["user", "grant-role", Self::USER, "root"]);
        etcd.control(&["auth", "enable"]);
        Some(etcd)
    }

    fn start_in(directory: PathBuf, count: usize, is_secured: bool) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            println!("skipped: etcd is not installed (on Debian: the package etcd-server)");
            return None;
        }
        let root = TempDir::new_in(directory).expect("a temporary directory can be made");
        let members = (1..=count).map(|n| {
            let [client, peer] = addresses();
            Member { name: format!("e{n}"), client, peer, child: None }
        });
        let mut etcd = Self { members: members.collect(), root, is_secured };
        if is_secured {
            etcd.make_certificates();
        }
        (0..count).for_each(|n| etcd.launch(n));
        (0..count).for_each(|n| etcd.await_member(n));
        Some(etcd)
    }

    /// The URL for `--metastore`, with the keys under `prefix`.
    pub fn url(&self, prefix: &str) -> String {
        let members: Vec<&str> = self.members.iter().map(|member| member.client.as_str()).collect();
        format!("etcd://{}/{prefix}", members.join(","))
    }

    /// A file of a secured etcd: `ca.pem`, `cert.pem`, `key.pem` or `password`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The number of the member that leads, as a member that runs says.
    pub fn leader(&self) -> usize {
        let mut found = None;
        wait_until("etcd has a leader", || {
            let running = || (0..self.members.len()).filter(|n| self.members[*n].child.is_some());
            let status = |n: usize| self.ask(n, "maintenance/status", &json!({}));
            let leader = running().find_map(|n| status(n).map(|status| status["leader"].clone()));
            found = running().find(|n| {
                let id = status(*n).map(|status| status["header"]["member_id"].clone());
                id.is_some() && id == leader
            });
            found.is_some()
        });
        found.expect("waited for")
    }

    /// Forgets the history before the present revision.
    pub fn compact(&self) {
        let revision =
            self.ask(0, "maintenance/status", &json!({})).expect("runs")["header"]["revision"].clone();
        self.ask(0, "kv/compaction", &json!({ "revision": revision })).expect("compacts");
    }

    /// SIGKILL for one member.
    pub fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.members[n].child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a killed child is reaped");
        }
    }

    /// Starts a killed member again and waits until it answers.
    pub fn restart(&mut self, n: usize) {
        self.launch(n);
        self.await_member(n);
    }

    fn launch(&mut self, n: usize) {
        let peers = self.members.iter().map(|member| format!("{}=http://{}", member.name, member.peer));
        let peers = peers.collect::<Vec<_>>().join(",");
        let member = &mut self.members[n];
        assert!(member.child.is_none(), "{} is running", member.name);
        let scheme = if self.is_secured { "https" } else { "http" };
        let (client, peer) = (format!("{scheme}://{}", member.client), format!("http://{}", member.peer));
        let log = log(self.root.path(), &member.name);
        let mut command = Command::new("etcd");
        if self.is_secured {
            command.arg("--client-cert-auth");
            for (flag, file) in
                [("cert-file", "cert.pem"), ("key-file", "key.pem"), ("trusted-ca-file", "ca.pem")]
            {
                command.arg(format!("--{flag}")).arg(self.root.path().join(file));
            }
        }
        let child = command
            .args(["--name", &member.name, "--data-dir"])
            .arg(self.root.path().join(&member.name))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file can be shared"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        member.child = Some(child);
    }

    fn await_member(&self, n: usize) {
        let name = &self.members[n].name;
        if self.is_secured {
            return wait_until(&format!("{name} answers"), || {
                let health = self.etcdctl(&["endpoint", "health"]).output();
                health.expect("etcdctl is installed with etcd").status.success()
            });
        }
        // A linearizable read: the member knows a leader, which knows a majority.
        wait_until(&format!("{name} answers"), || {
            self.ask(n, "kv/range", &json!({ "key": "AA==" })).is_some()
        });
    }

    fn control(&self, arguments: &[&str]) {
        run(&mut self.etcdctl(arguments));
    }

    fn etcdctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &format!("https://{}", self.members[0].client)]);
        for (flag, file) in [("cacert", "ca.pem"), ("cert", "cert.pem"), ("key", "key.pem")] {
            command.arg(format!("--{flag}")).arg(self.file(file));
        }
        command.args(arguments);
        command
    }

    /// An authority, one certificate for the members and for those who connect, and a password.
    fn make_certificates(&self) {
        let key = || rcgen::KeyPair::generate().expect("a key");
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let (authority_key, own_key) = (key(), key());
        let ca = authority.self_signed(&authority_key).expect("signed").pem();
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let (host, _) = self.members[0].client.split_once(':').expect("an address");
        let mut own = rcgen::CertificateParams::new([host.to_owned()]).expect("an address");
        own.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let cert = own.signed_by(&own_key, &issuer).expect("signed").pem();
        for (name, text) in [
            ("ca.pem", ca),
            ("cert.pem", cert),
            ("key.pem", own_key.serialize_pem()),
            ("password", "swordfish\n".into()),
        ] {
            std::fs::write(self.file(name), text).expect("a file can be written");
        }
    }

    /// What the JSON gateway of a member answers, if it does.
    fn ask(&self, n: usize, call: &str, request: &Value) -> Option<Value> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(2)))
            .proxy(None)
            .build()
            .into();
        let url = format!("http://{}/v3/{call}", self.members[n].client);
        agent.post(url).send_json(request).ok()?.body_mut().read_json().ok()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for n in 0..self.members.len() {
            self.kill(n);
            if std::thread::panicking() {
                let name = &self.members[n].name;
                let text = std::fs::read_to_string(self.root.path().join(name).with_extension("log"));
                let text = text.unwrap_or_default();
                let tail: Vec<&str> = text.lines().rev().take(10).collect();
                eprintln!("--- end of the log of {name}");
                tail.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        }
    }
}

/// A directory of files in memory, or that of temporary files where there is none.
fn memory() -> PathBuf {
    let shared_memory = Path::new("/dev/shm");
    if shared_memory.is_dir() { shared_memory.to_owned() } else { std::env::temp_dir() }
}

fn log(root: &Path, name: &str) -> File {
    let path = root.join(name).with_extension("log");
    File::options().create(true).append(true).open(path).expect("a log file can be made")
}

/// Two free addresses: all of 127.0.0.0/8 is this machine, so each process has an address of its own, and
/// on it takes ports in turn, below those that the kernel gives out.
fn addresses() -> [String; 2] {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 64 | high, middle, low);
    [(); 2].map(|()| format!("{host}:{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}
