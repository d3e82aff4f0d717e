//! `shardctl doctor` on set-ups that are broken for real: it names each fault with its evidence, the printed remedy is carried
//! out, and then the check is content.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use shardd_certificates::{Authority, LIFETIME, read_key};
use shardd_tests::s3::{FOREIGN, S3};
use shardd_tests::{Cluster, Node, binary, ended, python, run, wait_until};
use tempfile::TempDir;

const DAY: u64 = 24 * 3600;

/// A person at a machine, whose home is a directory of its own.
struct Desk {
    home: TempDir,
}

/// The findings of a run, and its exit code.
struct Report {
    findings: Vec<Value>,
    exit: i32,
}

impl Desk {
    fn new() -> Desk {
        Desk { home: TempDir::new().expect("a directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// `program`, with nothing in its environment that belongs to another set-up.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.home.path()).env("HOME", self.home.path()).env_remove("XDG_CONFIG_HOME");
        FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
        for variable in ["SHARDD_TOKEN", "SHARDD_TOKEN_FILE", "SHARDD_CA", "SHARDD_CONTEXT", "SHARDD_CONFIG"]
        {
            command.env_remove(variable);
        }
        for variable in ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"] {
            command.env_remove(variable);
        }
        command
    }

    /// `shardctl doctor`, with all findings as JSON.
    fn doctor(&self, words: &[&str]) -> Command {
        let mut command = self.command(binary("shardctl").to_str().expect("UTF-8"));
        command.args(["--json", "doctor", "--all"]).args(words);
        command
    }

    /// The same behind lines of a shell.
    fn doctor_after(&self, lines: &str, words: &[&str]) -> Command {
        let mut command = self.command("sh");
        let shardctl = binary("shardctl");
        command
            .arg("-c")
            .arg(format!("{lines}\nexec \"$0\" --json doctor --all \"$@\""))
            .arg(shardctl)
            .args(words);
        command
    }
}

impl Report {
    fn of(command: &mut Command) -> Report {
        let output = ended(command);
        let stdout = String::from_utf8(output.stdout).expect("text");
        let exit = output.status.code().expect("it ends by itself");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!([0, 1].contains(&exit), "exit code {exit}: {stderr}");
        let findings: Vec<Value> =
            stdout.lines().map(|line| serde_json::from_str(line).expect("a finding is JSON")).collect();
        let has_error = findings.iter().any(|finding| finding["severity"] == "error");
        assert_eq!(exit == 1, has_error, "{stdout}{stderr}");
        Report { findings, exit }
    }

    /// The findings of a check.
    fn all(&self, check: &str) -> Vec<&Value> {
        self.findings.iter().filter(|finding| finding["check"] == check).collect()
    }

    /// The finding of a check that is no praise.
    fn fault(&self, check: &str) -> &Value {
        let is_fault = |finding: &&&Value| finding["severity"] == "error" || finding["severity"] == "warning";
        let all = self.all(check);
        let fault =
            all.iter().find(is_fault).unwrap_or_else(|| panic!("no fault of {check}: {:#?}", self.findings));
        println!("{check}: {}\n  remedy: {}", text(fault, "evidence"), text(fault, "remedy"));
        if fault["command"].is_string() {
            println!("  $ {}", text(fault, "command"));
        }
        fault
    }

    /// Whether a check was made, and found no fault.
    fn is_content(&self, check: &str) -> bool {
        let all = self.all(check);
        !all.is_empty()
            && all.iter().all(|finding| finding["severity"] == "ok" || finding["severity"] == "info")
    }

    fn assert_content(&self, check: &str) {
        assert!(self.is_content(check), "{check}: {:#?}", self.all(check));
    }
}

fn text<'a>(finding: &'a Value, field: &str) -> &'a str {
    finding[field].as_str().unwrap_or_else(|| panic!("no {field}: {finding:#}"))
}

fn carry_out(command: &str) {
    run(Command::new("sh").args(["-c", command]));
}

/// The text between the first two backticks.
fn quoted(text: &str) -> &str {
    text.split('`').nth(1).unwrap_or_else(|| panic!("nothing to type in {text:?}"))
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the mode can be set");
}

fn names(directory: &Path) -> Vec<String> {
    let entries =
        fs::read_dir(directory).expect("readable").map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A small file system in memory. `None`, and a line that says so, where this process may not mount one.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: &Path, size: &str) -> Option<SmallDisk> {
        fs::create_dir_all(path).expect("a directory can be made");
        let option = format!("size={size},mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(path).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            println!("skipped: `mount -t tmpfs` does not work here; it takes root");
            return None;
        }
        Some(SmallDisk { path: path.to_owned() })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

#[test]
fn a_data_directory_that_cannot_be_written_is_made_writable() {
    let desk = Desk::new();
    let data = desk.path("data");
    fs::create_dir(&data).expect("made");
    let path = data.to_str().expect("UTF-8");
    let disk = SmallDisk::mount(&data, "64m");
    match &disk {
        // Root may write whatever the mode.
        Some(_) => run(Command::new("mount").args(["-o", "remount,ro", path])),
        None => {
            mode(&data, 0o500);
            String::new()
        }
    };
    let report = Report::of(&mut desk.doctor(&["--data", path]));
    let fault = report.fault("data_directory");
    assert_eq!((report.exit, &fault["severity"]), (1, &"error".into()));
    let words = if disk.is_some() { "read-only" } else { "cannot be written" };
    assert!(text(fault, "evidence").contains(words), "{fault}");
    carry_out(text(fault, "command"));
    Report::of(&mut desk.doctor(&["--data", path])).assert_content("data_directory");
    assert_eq!(names(&data), [""; 0], "nothing is left in it");
}

#[test]
fn a_disk_that_is_nearly_full_is_freed_and_a_cache_that_does_not_fit_gets_the_size_that_does() {
    let desk = Desk::new();
    let data = desk.path("data");
    let Some(_disk) = SmallDisk::mount(&data, "256m") else { return };
    let path = data.to_str().expect("UTF-8");
    let filler = data.join("filler");
    fs::write(&filler, vec![1; 252 << 20]).expect("written");
    let small = ["--data", path, "--cache-size", "64MiB"];
    let report = Report::of(&mut desk.doctor(&small));
    let fault = report.fault("disk_space");
    assert_eq!((report.exit, &fault["severity"]), (1, &"error".into()));
    assert!(text(fault, "remedy").starts_with("Free "), "{fault}");
    fs::remove_file(filler).expect("there");
    Report::of(&mut desk.doctor(&small)).assert_content("disk_space");

    let report = Report::of(&mut desk.doctor(&["--data", path, "--cache-size", "1GiB"]));
    let fault = report.fault("disk_space");
    assert_eq!((report.exit, &fault["severity"]), (0, &"warning".into()));
    let (flag, size) = quoted(text(fault, "remedy")).split_once(' ').expect("a flag and its value");
    Report::of(&mut desk.doctor(&["--data", path, flag, size])).assert_content("disk_space");
    // That it is in memory stays a warning.
    assert!(text(report.fault("file_system"), "evidence").contains("tmpfs"));
    assert_eq!(names(&data), [""; 0], "nothing is left in it");
}

#[test]
fn a_low_limit_of_open_files_is_raised_by_the_printed_line() {
    let desk = Desk::new();
    let hard = run(Command::new("sh").args(["-c", "ulimit -H -n"]));
    if hard.trim().parse::<u64>().is_ok_and(|hard| hard < 4096) {
        println!("skipped: the hard limit of open files is {}", hard.trim());
        return;
    }
    let low = "ulimit -S -n 256";
    let report = Report::of(&mut desk.doctor_after(low, &[]));
    let fault = report.fault("open_files");
    assert!(report.exit == 1 && text(fault, "evidence").contains("256 files open"), "{fault}");
    let lines = format!("{low}\n{}", text(fault, "command"));
    Report::of(&mut desk.doctor_after(&lines, &[])).assert_content("open_files");
}

#[test]
fn a_token_that_others_may_read_or_that_the_node_refuses_is_put_right() {
    let desk = Desk::new();
    let node = Node::start_with(desk.home.path(), "n1", None, &[("SHARDD_AUTH", "tokens".to_owned())]);
    let (server, data) = (["--server", &node.http], node.data.to_str().expect("UTF-8"));
    let token = desk.path("token");
    fs::copy(node.data.join("admin-token"), &token).expect("copied");
    mode(&token, 0o644);
    let words = [&server[..], &["--data", data]].concat();
    let open = || {
        let mut command = desk.doctor(&words);
        Report::of(command.env("SHARDD_TOKEN_FILE", &token))
    };
    let report = open();
    let fault = report.fault("secret_files");
    assert!(report.exit == 0 && text(fault, "evidence").contains("all users"), "{fault}");
    report.assert_content("overview");
    carry_out(text(fault, "command"));
    open().assert_content("secret_files");

    let secret = fs::read_to_string(&token).expect("text");
    fs::write(&token, "shardd_0000000000000000_00000000\n").expect("written");
    let report = open();
    let fault = report.fault("token");
    assert!(text(fault, "evidence").contains("SHARDD_TOKEN_FILE"), "{fault}");
    let lines = format!("export SHARDD_TOKEN_FILE='{}'\n{}", token.display(), text(fault, "command"));
    let report = Report::of(&mut desk.doctor_after(&lines, &words));
    report.assert_content("overview");
    assert_eq!(report.all("token").len(), 0);
    assert!(!format!("{:?}", report.findings).contains(secret.trim()), "a secret is shown");
}

#[test]
fn a_store_that_refuses_writes_is_named_with_the_right_that_lacks() {
    let (Some(s3), Some(python)) = (S3::empty_moto(), python()) else { return };
    let desk = Desk::new();
    let policy = |action: &str| {
        let script = format!(
            "import boto3, json, os\n\
             s3 = boto3.client('s3', endpoint_url=os.environ['AWS_ENDPOINT_URL'], region_name='us-east-1')\n\
             deny = {{'Effect': 'Deny', 'Principal': '*', 'Action': 's3:PutObject', 'Resource': ['arn:aws:s3:::data/*']}}\n\
             {action}\n"
        );
        run(desk.command(python.to_str().expect("UTF-8")).arg("-c").arg(script).envs(s3.variables()));
    };
    policy(
        "s3.put_bucket_policy(Bucket='data', Policy=json.dumps({'Version': '2012-10-17', 'Statement': [deny]}))",
    );
    let look = || {
        let mut command = desk.doctor(&["--store", "s3://data/lab"]);
        Report::of(command.envs(s3.variables()))
    };
    let report = look();
    let fault = report.fault("store_write");
    assert_eq!((report.exit, &fault["severity"]), (1, &"error".into()));
    assert!(text(fault, "remedy").contains("s3:PutObject"), "{fault}");
    report.assert_content("store_list");
    policy("s3.delete_bucket_policy(Bucket='data')");
    let report = look();
    for check in
        ["store_write", "store_read", "store_list", "store_delete", "store_conditional_puts", "store_clock"]
    {
        report.assert_content(check);
    }
    let left = "assert 'Contents' not in s3.list_objects_v2(Bucket='data'), 'an object is left'";
    policy(left);
}

#[test]
fn a_store_out_of_reach_and_wrong_credentials_are_told_apart() {
    let Some(s3) = S3::empty_moto() else { return };
    let desk = Desk::new();
    let look = |variable: &str, value: &str| {
        let mut command = desk.doctor(&["--store", "s3://data/lab"]);
        Report::of(command.envs(s3.variables()).env(variable, value))
    };
    let report = look("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    let fault = report.fault("store_reached");
    assert!(report.exit == 1 && text(fault, "remedy").contains("correct its address"), "{fault}");
    look("AWS_ENDPOINT_URL", &s3.endpoint).assert_content("store_reached");

    let report = look("AWS_SECRET_ACCESS_KEY", "wrong");
    let fault = report.fault("store_list");
    assert!(text(fault, "remedy").contains("other credentials"), "{fault}");
    let (_, right) = s3.variables()[2];
    look("AWS_SECRET_ACCESS_KEY", right).assert_content("store_list");
}

#[test]
fn a_clock_that_is_wrong_is_found_by_those_of_nodes() {
    if Command::new("faketime").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: faketime is not installed");
        return;
    }
    let desk = Desk::new();
    let node = Node::start(desk.home.path(), "n1", None);
    let shardctl = binary("shardctl");
    let look = |offset: &str| {
        let mut command = desk.command("faketime");
        command
            .args(["-f", offset])
            .arg(&shardctl)
            .args(["--server", &node.http, "--json", "doctor", "--all"]);
        Report::of(&mut command)
    };
    let report = look("+5m");
    let fault = report.fault("clock_skew");
    assert_eq!((report.exit, &fault["severity"]), (1, &"error".into()));
    assert!(text(fault, "evidence").contains("behind that of this machine"), "{fault}");
    assert_eq!(text(fault, "command"), "timedatectl set-ntp true");
    assert_eq!(look("-5s").fault("clock_skew")["severity"], "warning");
    // NTP sets the clock of this machine to the time that it has without faketime.
    Report::of(&mut desk.doctor(&["--server", &node.http])).assert_content("clock_skew");
}

#[test]
fn a_certificate_near_its_end_is_renewed_by_the_printed_remedy() {
    let desk = Desk::new();
    let mut node = Node::start(desk.home.path(), "n1", None);
    node.stop();
    let tls = node.data.join("tls");
    let authority = Authority::open(&tls).expect("it is there");
    let key = read_key(&tls.join("node.key")).expect("a key");
    let hosts = ["127.0.0.1".parse().expect("a host")];
    let then = shardd_api::duration::now() - LIFETIME.as_secs() + DAY;
    let certificate = authority.certify_at(&"n1".parse().expect("a name"), &hosts, &key, LIFETIME, then);
    fs::write(tls.join("node.pem"), certificate.expect("signed").pem()).expect("written");
    let data = node.data.to_str().expect("UTF-8").to_owned();
    let report = Report::of(&mut desk.doctor(&["--data", &data]));
    let fault = report.fault("certificate");
    assert_eq!(fault["severity"], "error");
    assert!(text(fault, "remedy").starts_with("Start the node"), "{fault}");
    node.restart();
    wait_until("the certificate is renewed", || {
        Report::of(&mut desk.doctor(&["--data", &data])).is_content("certificate")
    });
    Report::of(&mut desk.doctor(&["--server", &node.http])).assert_content("certificates");
}

#[test]
fn variables_that_are_misspelt_and_proxies_in_the_way_are_mended_by_the_printed_lines() {
    let desk = Desk::new();
    let node = Node::start(desk.home.path(), "n1", None);
    let words = ["--server", node.http.as_str()];
    let misspelt = "export SHARDD_CASHE_SIZE=1GiB";
    let report = Report::of(&mut desk.doctor_after(misspelt, &words));
    let fault = report.fault("unknown_variables");
    assert!(report.exit == 0 && text(fault, "evidence").contains("is it SHARDD_CACHE_SIZE?"), "{fault}");
    let lines = format!("{misspelt}\n{}", text(fault, "command"));
    Report::of(&mut desk.doctor_after(&lines, &words)).assert_content("unknown_variables");

    let proxy = "export http_proxy=http://me:hush@127.0.0.1:3128";
    let report = Report::of(&mut desk.doctor_after(proxy, &words));
    let fault = report.fault("proxies");
    assert!(text(fault, "evidence").contains("127.0.0.1"), "{fault}");
    assert!(!format!("{:?}", report.findings).contains("hush"), "a secret is shown");
    let lines = format!("{proxy}\n{}", text(fault, "command"));
    Report::of(&mut desk.doctor_after(&lines, &words)).assert_content("proxies");

    // Every setting of a node is known.
    let template =
        run(desk.command(binary("shardd").to_str().expect("UTF-8")).args(["config", "show", "--default"]));
    let is_end = |c: char| !c.is_ascii_uppercase() && c != '_';
    let settings = template.split("SHARDD_").skip(1).filter_map(|rest| rest.split(is_end).next());
    let mut command = desk.doctor(&words);
    let mut count = 0;
    for setting in settings {
        // Empty ones decide nothing.
        command.env(format!("SHARDD_{setting}"), "");
        count += 1;
    }
    assert!(count > 20, "{template}");
    Report::of(&mut command).assert_content("unknown_variables");
}

#[test]
fn a_settings_file_is_checked_by_the_node_and_used_for_its_directory() {
    let desk = Desk::new();
    let (data, file) = (desk.path("data"), desk.path("shardd.toml"));
    fs::create_dir(&data).expect("made");
    let write = |key: &str| {
        fs::write(&file, format!("data = \"{}\"\n{key} = \"64MiB\"\n", data.display())).expect("written");
    };
    write("cach-size");
    let words = ["--config", file.to_str().expect("UTF-8")];
    let report = Report::of(&mut desk.doctor(&words));
    let fault = report.fault("settings_file");
    assert!(text(fault, "evidence").contains("is it `cache-size`?"), "{fault}");
    write("cache-size");
    let report = Report::of(&mut desk.doctor(&words));
    report.assert_content("settings_file");
    assert!(text(report.all("data_directory")[0], "evidence").contains("data can be written"));
}

#[test]
fn a_healthy_cluster_has_no_error_and_a_bundle_of_it_has_no_secret() {
    let desk = Desk::new();
    let mut cluster = Cluster::start_with(2, &[("SHARDD_AUTH", "tokens".to_owned())]);
    let token = cluster.nodes[0].data.join("admin-token");
    let config = desk.path("shardd.toml");
    let data = cluster.nodes[0].data.clone();
    let join = fs::read_to_string(data.join("join-token")).expect("text");
    fs::write(&config, format!("data = \"{}\"\njoin = \"{}\"\n", data.display(), join.trim()))
        .expect("written");
    let bundle = desk.path("bundle.tar.gz");
    let log = data.with_extension("log");
    let both = format!("{},{}", cluster.nodes[0].http, cluster.nodes[1].http);
    let bundled = || {
        let mut command = desk.doctor(&["--server", &both, "--config"]);
        command.arg(&config).arg("--bundle").arg(&bundle).arg("--log").arg(&log);
        command.env("SHARDD_TOKEN_FILE", &token);
        command
    };
    let report = Report::of(&mut bundled());
    assert_eq!(report.exit, 0, "{:#?}", report.findings);
    for check in [
        "node_http",
        "overview",
        "releases",
        "certificates",
        "silences",
        "clock_skew",
        "clocks_of_nodes",
        "datagrams",
    ] {
        report.assert_content(check);
    }
    assert_eq!(fs::metadata(&bundle).expect("there").permissions().mode() & 0o777, 0o600);
    let again = ended(&mut bundled());
    assert_eq!(again.status.code(), Some(2), "it is not overwritten");
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(&bundle).expect("there")));
    let mut all = Vec::new();
    let secret = fs::read_to_string(&token).expect("text");
    for entry in tar.entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        let (mut content, name) = (String::new(), entry.path().expect("a path").display().to_string());
        entry.read_to_string(&mut content).expect("text");
        for secret in [secret.trim(), join.trim().rsplit(',').next().expect("a secret")] {
            assert!(!content.contains(secret), "{name} has a secret");
        }
        all.push(name);
    }
    println!("{all:?}");
    for wanted in [
        "findings.jsonl",
        "versions.json",
        "environment.txt",
        "shardd.toml",
        "overview.json",
        "addresses.json",
        "nodes/n1/status.json",
        "nodes/n2/status.json",
        "log.txt",
    ] {
        assert!(all.contains(&format!("shardd-doctor/{wanted}")), "{wanted}");
    }

    // A node that dies is named, and another start mends it.
    cluster.nodes[1].kill();
    let look = || {
        let mut command = desk.doctor(&["--server", &both]);
        Report::of(command.env("SHARDD_TOKEN_FILE", &token))
    };
    wait_until("the node is lost", || !look().all("node_lost").is_empty());
    let report = look();
    assert_eq!(report.exit, 1, "an address that was given does not answer");
    assert!(text(report.fault("node_lost"), "remedy").starts_with("Start it again"));
    report.fault("node_http");
    cluster.nodes[1].restart();
    wait_until("it is back", || {
        let report = look();
        report.is_content("node_http") && report.all("node_lost").is_empty()
    });
}
