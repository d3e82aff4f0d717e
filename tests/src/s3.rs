//! Real servers that speak S3: moto, which checks signatures, policies and conditions as Amazon does, and s3s-fs, which keeps
//! objects as files. Each is a process of its own, killed when it is dropped.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::python;

/// Everything in the environment that could point to a real cloud, or to other settings than a test's.
pub const FOREIGN: [&str; 6] = [
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HTTP_PROXY",
    "http_proxy",
    "SHARDD_SERVER",
];

/// A server with a bucket `data`.
pub struct S3 {
    child: Child,
    /// Its address.
    pub endpoint: String,
    key: String,
    secret: String,
    _root: Option<TempDir>,
}

impl S3 {
    /// moto, with the files of a folder in the bucket; `options` are those of `tests/reference/s3_server.py`. `None`, and a
    /// line that says so, where there is no Python with moto.
    pub fn moto(folder: &Path, options: &[&str]) -> Option<S3> {
        let python = python()?;
        let has_moto = Command::new(&python).args(["-c", "import moto.server, boto3"]).output();
        if !has_moto.is_ok_and(|output| output.status.success()) {
            println!("skipped: {} has no moto (tests/run installs it)", python.display());
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/s3_server.py");
        let mut command = Command::new(python);
        command.arg(script).arg(folder).args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python starts");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("it says where it is");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let text = |field: &str| said[field].as_str().expect("text").to_owned();
        Some(S3 { child, endpoint: text("endpoint"), key: text("key"), secret: text("secret"), _root: None })
    }

    /// moto with an empty bucket.
    pub fn empty_moto() -> Option<S3> {
        let empty = tempfile::tempdir().expect("a temporary directory can be made");
        S3::moto(empty.path(), &[])
    }

    /// s3s-fs with an empty bucket. `None`, and a line that says so, where it is not installed.
    pub fn files() -> Option<S3> {
        let Some(binary) = std::env::var_os("SHARDD_S3S_FS").map(PathBuf::from).filter(|path| path.exists())
        else {
            println!(
                "skipped: SHARDD_S3S_FS is not the path of s3s-fs (tests/run installs it and sets this)"
            );
            return None;
        };
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        std::fs::create_dir(root.path().join("data")).expect("a bucket is a directory");
        // Free now; it says nothing of a port that it chose itself.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.expect("a free port").port();
        let (key, secret) = ("the-key".to_owned(), "the-secret".to_owned());
        let mut command = Command::new(binary);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--access-key", &key, "--secret-key", &secret]).arg(root.path());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("s3s-fs starts");
        let server =
            S3 { child, endpoint: format!("http://127.0.0.1:{port}"), key, secret, _root: Some(root) };
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::yield_now();
        }
        Some(server)
    }

    /// What a process needs in its environment to use it.
    pub fn variables(&self) -> [(&'static str, &str); 4] {
        [
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_ACCESS_KEY_ID", &self.key),
            ("AWS_SECRET_ACCESS_KEY", &self.secret),
            ("AWS_REGION", "us-east-1"),
        ]
    }

    /// Its address and region, without a credential.
    pub fn place(&self) -> [(&'static str, &str); 2] {
        [("AWS_ENDPOINT_URL_S3", &self.endpoint), ("AWS_REGION", "us-east-1")]
    }

    /// The id and the secret of the one who may do anything.
    pub fn keys(&self) -> (&str, &str) {
        (&self.key, &self.secret)
    }

    /// Stops the process where it is: it takes connections, and answers nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it continue.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("it runs");
    }

    /// Of moto: the objects that were asked for, each as often as it was.
    pub fn gets(&self) -> Vec<String> {
        let mut answer = ureq::get(format!("{}/-/gets", self.endpoint)).call().expect("it answers");
        answer.body_mut().read_json().expect("a list")
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // It may have been killed already; a child that is not waited for would stay.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
