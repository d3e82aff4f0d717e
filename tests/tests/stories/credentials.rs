//! Credentials of stores, as people configure them: `shardctl` reads a file in a bucket with each of them. moto checks
//! signatures, session tokens and trust policies, and its STS gives roles. Services of cloud machines and of IAM Identity Center
//! are small ones of these tests, which check a request as the real ones do.

mod azure_google;
mod machines;
mod payer;
#[cfg(feature = "aws-profiles")]
mod profiles;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use shardd_tests::s3::{FOREIGN, S3};
use shardd_tests::{binary, error_line, run};
use tempfile::TempDir;

/// A moment in which nothing has expired.
const LATER: &str = "2100-01-01T00:00:00Z";

/// A person with a home, and a bucket with a file.
struct Person {
    home: TempDir,
    s3: S3,
}

/// The credentials of a session, as STS gives them.
#[derive(Clone)]
struct Session {
    key: String,
    secret: String,
    token: String,
}

impl Person {
    /// `None`, and a line that says so, where there is no moto.
    fn new() -> Option<Person> {
        Person::over(&[])
    }

    fn over(options: &[&str]) -> Option<Person> {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let folder = home.path().join("bucket");
        fs::create_dir(&folder).expect("it can be made");
        fs::write(folder.join("x.csv"), "a,b\n1,2\n3,4\n").expect("written");
        let s3 = S3::moto(&folder, options)?;
        Some(Person { home, s3 })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Writes a file of the home.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("in the home")).expect("it can be made");
        fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Ingests the file of the bucket.
    fn ingest(&self, variables: &[(&str, &str)]) -> (TempDir, Command) {
        let store = tempfile::tempdir().expect("a temporary directory can be made");
        let mut command = shardctl(self.home.path());
        command.arg("--store").arg(store.path()).args(["--json", "ingest", "s3://data/x.csv", "--name", "x"]);
        command.envs(self.s3.place()).envs(variables.iter().copied());
        (store, command)
    }

    /// The file can be read with the credentials of these variables.
    fn reads(&self, variables: &[(&str, &str)]) {
        let (_store, mut command) = self.ingest(variables);
        let printed = run(&mut command);
        let done: Value = serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON");
        assert!(done["version"].is_string(), "{printed}");
    }

    /// It cannot; the error. No secret is in it.
    fn refused(&self, variables: &[(&str, &str)]) -> String {
        let (_store, mut command) = self.ingest(variables);
        let output = command.output().expect("shardctl starts");
        let line = error_line(&output);
        println!("{line}");
        assert_eq!(output.status.code(), Some(1), "{line}");
        let printed: Value = serde_json::from_str(&line).expect("JSON");
        let line = printed["error"].as_str().expect("an error").to_owned();
        assert!(!line.contains(self.s3.keys().1) && !line.contains("a-secret"), "{line}");
        line
    }

    /// A session of the role `reader`.
    fn session(&self) -> Session {
        let mut answer = ureq::post(&self.s3.endpoint)
            .query_pairs([
                ("Action", "AssumeRoleWithWebIdentity"),
                ("Version", "2011-06-15"),
                ("RoleArn", "arn:aws:iam::123456789012:role/reader"),
                ("RoleSessionName", "test"),
                ("WebIdentityToken", "t"),
            ])
            .send_empty()
            .expect("moto answers");
        let text = answer.body_mut().read_to_string().expect("text");
        let of = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("{name}: {text}"));
            rest.split('<').next().unwrap_or_default().to_owned()
        };
        Session { key: of("AccessKeyId"), secret: of("SecretAccessKey"), token: of("SessionToken") }
    }
}

impl Session {
    /// As services of cloud machines give it.
    fn document(&self) -> Value {
        json!({
            "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z",
            "AccessKeyId": self.key, "SecretAccessKey": self.secret, "Token": self.token, "Expiration": LATER,
        })
    }
}

/// shardctl with nothing in its environment that leads to a cloud.
fn shardctl(home: &Path) -> Command {
    let mut command = Command::new(binary("shardctl"));
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        let is_foreign =
            ["AWS_", "GOOGLE_", "AZURE_", "GCE_", "IDENTITY_"].iter().any(|start| name.starts_with(start));
        if is_foreign || name.to_ascii_lowercase().ends_with("_proxy") {
            command.env_remove(name);
        }
    }
    FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
    command.env("HOME", home).env("TMPDIR", home);
    command
}
