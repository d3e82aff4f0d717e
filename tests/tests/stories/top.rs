//! `shardctl top` in a terminal, and `shardctl events`, of real nodes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use shardd_tests::{Cluster, binary, ended, run, wait_until};

/// A program in a terminal of 80 columns and 24 lines (`script` of util-linux makes it).
struct Terminal {
    script: Child,
    output: Arc<Mutex<Vec<u8>>>,
    folder: PathBuf,
}

impl Terminal {
    /// Runs a command of a shell, and notes its process, its exit code, and the terminal's modes before and after it.
    fn start(folder: &Path, command: &str) -> Terminal {
        let lines = [
            "stty rows 24 cols 80".to_owned(),
            "stty -g >before".to_owned(),
            format!("sh -c 'echo $$ >pid; exec {command}'"),
            "echo $? >code".to_owned(),
            "stty -g >after".to_owned(),
        ];
        let spawned = Command::new("script")
            .args(["--quiet", "--flush", "--command", lines.join("\n").as_str(), "/dev/null"])
            .current_dir(folder)
            .env("TERM", "xterm-256color")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut script = spawned.expect("script, of util-linux, starts");
        let output = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (script.stdout.take().expect("piped"), Arc::clone(&output));
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut part) {
                into.lock().expect("no panic while held").extend_from_slice(&part[..length]);
            }
        });
        Terminal { script, output, folder: folder.to_owned() }
    }

    /// Waits until the screen has a text. A frame alone writes only the cells that differ: Ctrl-L asks for all.
    fn wait_for(&mut self, text: &str) {
        wait_until(&format!("{text} is shown"), || {
            self.press("\u{c}");
            self.letters().contains(text)
        });
    }

    /// Everything that was written so far.
    fn raw(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("no panic while held")).into_owned()
    }

    /// The letters of that: without escapes and without spaces, for which a program may move the cursor.
    fn letters(&self) -> String {
        let raw = self.raw();
        let parts = raw.split('\u{1b}').enumerate().map(|(number, part)| match number {
            0 => part,
            _ => part.find(|c: char| c.is_ascii_alphabetic()).map_or("", |end| &part[end + 1..]),
        });
        parts.collect::<String>().split_whitespace().collect()
    }

    fn press(&mut self, keys: &str) {
        let stdin = self.script.stdin.as_mut().expect("piped");
        stdin.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    fn note(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.folder.join(name)).ok()?;
        text.ends_with('\n').then(|| text.trim().to_owned())
    }

    fn pid(&self) -> Pid {
        let pid = self.note("pid").and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        pid.expect("the program has noted its process")
    }

    /// The exit code of the program, once the terminal is found as it was.
    fn restored(mut self) -> String {
        wait_until("the program has ended", || self.note("after").is_some());
        assert_eq!(
            self.note("before"),
            self.note("after"),
            "the modes of the terminal are those from before"
        );
        drop(self.script.stdin.take());
        self.script.wait().expect("it has ended");
        wait_until("its own screen is left", || self.raw().contains("\u{1b}[?1049l"));
        assert!(self.raw().contains("\u{1b}[?25h"), "the cursor is shown again");
        self.note("code").expect("its exit code is noted")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // With `script` its terminal goes, and with that the program.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

fn top(cluster: &Cluster, folder: &Path) -> Terminal {
    fs::create_dir(folder).expect("a folder for notes");
    let program = binary("shardctl");
    let command = format!("{} --server {} top --interval 1s", program.display(), cluster.nodes[0].http);
    Terminal::start(folder, &command)
}

#[test]
fn top_follows_a_cluster_over_the_death_of_its_node_and_leaves_the_terminal_as_it_was() {
    let mut cluster = Cluster::start(2);
    wait_until("n1 knows both", || {
        cluster.nodes[0].get("/v1/nodes").as_array().is_some_and(|all| all.len() == 2)
    });
    let mut terminal = top(&cluster, &cluster.root().join("one"));
    wait_until("the first frame is drawn", || terminal.letters().contains("asked:n1"));
    terminal.wait_for("Nothingtrains");
    terminal.wait_for("n2");
    terminal.press("\u{1b}OP");
    terminal.wait_for("anykeyclosesthishelp");
    terminal.press(" ");
    cluster.nodes[0].kill();
    terminal.wait_for("asked:n2");
    terminal.press("q");
    assert_eq!(terminal.restored(), "0");
}

#[test]
fn top_leaves_the_terminal_as_it_was_when_it_is_ended_by_a_signal_or_ctrl_c() {
    let cluster = Cluster::start(1);
    let terminal = top(&cluster, &cluster.root().join("signal"));
    wait_until("a frame is drawn", || terminal.letters().contains("asked:n1"));
    kill_process(terminal.pid(), Signal::TERM).expect("it runs");
    assert_eq!(terminal.restored(), "0");

    let mut terminal = top(&cluster, &cluster.root().join("key"));
    wait_until("a frame is drawn", || terminal.letters().contains("asked:n1"));
    terminal.press("\u{3}");
    assert_eq!(terminal.restored(), "0");
}

#[test]
fn top_into_a_pipe_is_one_frame_of_text_or_of_json() {
    let cluster = Cluster::start(1);
    let frame = run(cluster.shardctl().arg("top"));
    assert!(
        frame.starts_with("Nothing trains") && frame.contains("3 Nodes (1)") && frame.contains("n1"),
        "{frame}"
    );
    assert!(!frame.contains('\u{1b}'), "{frame}");
    let view: Value = serde_json::from_str(&run(cluster.shardctl().args(["--json", "top"]))).expect("JSON");
    assert_eq!((&view["node"], &view["nodes"]["live"]), (&"n1".into(), &1.into()));
    let nowhere =
        ended(Command::new(binary("shardctl")).args(["--server", "http://127.0.0.1:9", "top", "--once"]));
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("no shardd answers at"), "{nowhere:?}");
}

/// Whether this many clients follow the events of the first node.
fn is_followed(cluster: &Cluster, by: usize) -> bool {
    cluster.nodes[0].text("/metrics").contains(&format!("shardd_event_followers {by}\n"))
}

#[test]
fn events_follow_a_cluster_and_continue_where_they_ended() {
    let cluster = Cluster::start(1);
    let mut follower = cluster.shardctl();
    follower.args(["--json", "events", "--follow"]).stdout(Stdio::piped());
    let mut follower = follower.spawn().expect("shardctl starts");
    let mut lines = BufReader::new(follower.stdout.take().expect("piped")).lines();
    wait_until("it follows", || is_followed(&cluster, 1));
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet");
    let ingest = |name: &str| run(cluster.shardctl().arg("ingest").arg(&digits).args(["--name", name]));
    ingest("digits");
    // Changes that are found together come together, and the last one has the id to continue with.
    let mut has_digits = false;
    let since = loop {
        let change: Value =
            serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
        has_digits |= change["kind"] == "dataset" && change["name"] == "digits" && change["removed"] == false;
        match change["id"].as_u64() {
            Some(id) if has_digits => break id.to_string(),
            _ => {}
        }
    };
    let process = Pid::from_child(&follower);
    kill_process(process, Signal::TERM).expect("it runs");
    assert!(follower.wait().expect("it ends").success());

    ingest("more");
    let rest =
        ended(cluster.shardctl().args(["events", "--since", &since, "--kind", "dataset", "--for", "2s"]));
    let text = String::from_utf8_lossy(&rest.stdout).into_owned();
    let line =
        text.lines().find(|line| line.contains(" dataset ")).unwrap_or_else(|| panic!("no dataset:\n{text}"));
    assert!(rest.status.success() && line.ends_with("more  changed"), "{text}");
    assert!(String::from_utf8_lossy(&rest.stderr).contains("events --since"), "{rest:?}");
    let unknown = ended(cluster.shardctl().args(["events", "--since", "0", "--for", "1s"]));
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("since 0 are not known any more"),
        "{unknown:?}"
    );
}
