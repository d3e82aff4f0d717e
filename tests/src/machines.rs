//! Machines in small: each a network namespace of Linux with an address and a boot id of its own, its own `/srv`, and one shell,
//! all behind one switch. For what only shows where nodes are on different machines. Needs root.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use tempfile::TempDir;

use crate::binary;

/// Ends each block's output.
const MARK: &str = "@@ ended with ";

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A process that is silent for this time hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A switch, and what hangs on it: `10.77.0.9` is the switch itself.
pub struct Lan {
    root: TempDir,
    prefix: String,
    spaces: Vec<String>,
    machines: Vec<Machine>,
    others: Vec<Child>,
}

/// One machine.
pub struct Machine {
    name: String,
    shell: Child,
    input: ChildStdin,
    output: Receiver<String>,
}

impl Lan {
    /// A switch without machines. `None`, and a line that says so, where this process may not make one.
    pub fn new() -> Option<Lan> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("sh{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let switch = format!("{prefix}-sw");
        let made = Command::new("ip").args(["netns", "add", &switch]).output();
        if !made.as_ref().is_ok_and(|made| made.status.success()) {
            println!("skipped: `ip netns add` does not work here; it takes iproute2 and root");
            return None;
        }
        left_over().iter().for_each(|space| remove(space));
        let root = TempDir::new().expect("a temporary directory can be made");
        let lan = Lan { root, prefix, spaces: vec![switch.clone()], machines: vec![], others: vec![] };
        lan.on(&switch, &["ip", "link", "set", "lo", "up"]);
        lan.on(&switch, &["ip", "link", "add", "lan", "type", "bridge"]);
        lan.on(&switch, &["ip", "address", "add", "10.77.0.9/24", "dev", "lan"]);
        lan.on(&switch, &["ip", "link", "set", "lan", "up"]);
        Some(lan)
    }

    /// What a machine has under `/srv`.
    pub fn srv(&self, machine: &str) -> PathBuf {
        self.root.path().join(machine)
    }

    /// Plugs in a machine with the address `10.77.0.N`, and these variables in its environment.
    pub fn add(&mut self, name: &str, n: u8, variables: &[(&str, &str)]) {
        let (space, switch) = (format!("{}-{name}", self.prefix), format!("{}-sw", self.prefix));
        // Noted before it is there, so that it is taken down whatever fails.
        self.spaces.push(space.clone());
        ip(&["netns", "add", &space]);
        self.on(
            &switch,
            &["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &space],
        );
        self.on(&switch, &["ip", "link", "set", name, "master", "lan", "up"]);
        self.on(&space, &["ip", "link", "set", "lo", "up"]);
        self.on(&space, &["ip", "address", "add", &format!("10.77.0.{n}/24"), "dev", "eth0"]);
        self.on(&space, &["ip", "link", "set", "eth0", "up"]);
        let srv = self.srv(name);
        std::fs::create_dir_all(srv.join("home")).expect("a directory can be made");
        // The system's id of itself, by which ranks know whether they share a machine.
        let boot = self.root.path().join(format!("{name}.boot-id"));
        std::fs::write(&boot, format!("00000000-0000-4000-8000-{n:012}\n")).expect("a file can be written");
        // Its own /srv, and `scp` from the others' without keys: the one thing here that a real machine has otherwise.
        let begin = format!(
            "mount --make-rprivate / && mount --rbind {} /srv && mount --bind {} {BOOT_ID} && exec bash --noprofile --norc",
            srv.display(),
            boot.display()
        );
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &space, "unshare", "--mount", "bash", "-c", &begin]);
        let built = binary("shardctl").parent().expect("binaries lie in a directory").to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", built.display())).env("HOME", "/srv/home");
        for variable in ["SHARDD_TOKEN", "SHARDD_TOKEN_FILE", "SHARDD_CA", "SHARDD_SERVER", "XDG_CONFIG_HOME"]
        {
            command.env_remove(variable);
        }
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut shell = command.spawn().expect("a shell starts");
        let input = shell.stdin.take().expect("piped");
        let lines = BufReader::new(shell.stdout.take().expect("piped")).lines();
        let (sender, output) = sync_channel(1024);
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut machine = Machine { name: name.to_owned(), shell, input, output };
        let root = self.root.path().display();
        machine.say(&format!("scp() {{ cp \"{root}/${{1%%:*}}/${{1#*:/srv/}}\" \"$2\"; }}; cd /srv"));
        self.machines.push(machine);
    }

    /// The shell of a machine.
    pub fn machine(&mut self, name: &str) -> &mut Machine {
        self.machines.iter_mut().find(|machine| machine.name == name).expect("it was added")
    }

    /// Runs a server on the switch, until the end.
    pub fn serve(&mut self, command: &[&str]) {
        let mut netns = Command::new("ip");
        netns.args(["netns", "exec", &format!("{}-sw", self.prefix)]).args(command);
        self.others.push(netns.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
    }

    /// From now on a machine hears no other.
    pub fn deafen(&mut self, machine: &str) {
        self.drop_packets(machine, "input");
    }

    /// From now on no other machine hears this one.
    pub fn silence(&mut self, machine: &str) {
        self.drop_packets(machine, "output");
    }

    fn drop_packets(&mut self, machine: &str, hook: &str) {
        let chain =
            format!("nft 'add chain inet cut {hook} {{ type filter hook {hook} priority 0; policy drop; }}'");
        self.machine(machine).run(&format!("nft add table inet cut; {chain}"));
    }

    /// Ends `deafen` and `silence`.
    pub fn reconnect(&mut self, machine: &str) {
        self.machine(machine).run("nft delete table inet cut");
    }

    /// How to ask, from the switch, what a server on a machine answers.
    pub fn asking(&self) -> Asking {
        Asking { switch: format!("{}-sw", self.prefix) }
    }

    fn on(&self, space: &str, command: &[&str]) {
        let mut all = vec!["netns", "exec", space];
        all.extend(command);
        ip(&all);
    }
}

/// Asks servers from the switch.
#[derive(Debug, Clone)]
pub struct Asking {
    switch: String,
}

impl Asking {
    /// The JSON that a server answers; `None` if it does not within 2 s.
    pub fn get(&self, url: &str) -> Option<serde_json::Value> {
        let mut curl = Command::new("ip");
        curl.args(["netns", "exec", &self.switch, "curl", "--silent", "--fail", "--max-time", "2", url]);
        serde_json::from_slice(&curl.output().ok()?.stdout).ok()
    }
}

impl Machine {
    /// Runs commands to their end, and returns their output, of both streams.
    ///
    /// # Panics
    /// When they fail.
    pub fn run(&mut self, commands: &str) -> String {
        let (code, said) = self.attempt(commands);
        assert_eq!(code, 0, "{}: {commands}\n{said}", self.name);
        said
    }

    /// The same, after success or failure: their exit code, and their output.
    pub fn attempt(&mut self, commands: &str) -> (i32, String) {
        self.say(&format!("( set -e\n{commands}\n) 2>&1; code=$?; echo; echo '{MARK}'$code"));
        let mut said = String::new();
        while let Ok(line) = self.output.recv_timeout(TIMEOUT) {
            if let Some(code) = line.strip_prefix(MARK) {
                return (code.parse().expect("a number"), said.trim_end().to_owned());
            }
            said.push_str(&line);
            said.push('\n');
        }
        panic!("{}: nothing more came of {commands}\n{said}", self.name);
    }

    /// Runs a node in the background until the end, and waits until it is ready.
    pub fn start(&mut self, command: &str) {
        let wait = "until grep -q 'ready: http' /srv/terminal; do kill -0 $! || { cat /srv/terminal; exit 1; }; sleep 0.05; done";
        self.say(&format!("( exec {command} ) > /srv/terminal 2>&1 &"));
        self.run(wait);
    }

    fn say(&mut self, text: &str) {
        writeln!(self.input, "{text}").expect("the shell listens");
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for machine in &self.machines {
                let log =
                    std::fs::read_to_string(self.srv(&machine.name).join("terminal")).unwrap_or_default();
                eprintln!("--- the output of the node on {}\n{log}", machine.name);
            }
        }
        for space in &self.spaces {
            remove(space);
        }
        for child in self.machines.iter_mut().map(|machine| &mut machine.shell).chain(&mut self.others) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The namespaces of test processes that were killed.
fn left_over() -> Vec<String> {
    let listed = Command::new("ip").args(["netns", "list"]).output();
    let listed = listed.map(|all| String::from_utf8_lossy(&all.stdout).into_owned()).unwrap_or_default();
    let spaces = listed.lines().filter_map(|line| line.split_whitespace().next());
    let is_left_over = |space: &&str| {
        let owner = space.strip_prefix("sh").and_then(|rest| rest.split_once('-')).map(|(pid, _)| pid);
        let pid = owner.and_then(|pid| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    spaces.filter(is_left_over).map(String::from).collect()
}

/// Removes a namespace. Nothing that was started there outlives it.
fn remove(space: &str) {
    let pids = Command::new("ip").args(["netns", "pids", space]).output();
    let pids = pids.map(|pids| String::from_utf8_lossy(&pids.stdout).into_owned()).unwrap_or_default();
    for pid in pids.lines().filter_map(|pid| pid.trim().parse().ok()) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    let _ = Command::new("ip").args(["netns", "del", space]).output();
}

fn ip(arguments: &[&str]) {
    let made = Command::new("ip").args(arguments).output().expect("ip starts");
    assert!(made.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&made.stderr));
}

/// Whether a server answers there, as seen from a machine.
pub fn is_listening(lan: &mut Lan, machine: &str, address: &str) -> bool {
    let (host, port) = address.split_once(':').expect("an address and a port");
    lan.machine(machine).attempt(&format!("exec 3<>/dev/tcp/{host}/{port}")).0 == 0
}
