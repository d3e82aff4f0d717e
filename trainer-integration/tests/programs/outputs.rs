//! The files that `shardtrain` writes when a training has ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::common::DigitsStore;

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_first_step() {
    let store = DigitsStore::new();
    let folder = tempfile::tempdir().unwrap();
    let (nowhere, here) = (folder.path().join("nowhere/file"), folder.path().to_owned());
    for flag in ["--save", "--report", "--trace"] {
        for (path, why) in [(&nowhere, "No such file or directory"), (&here, "is a directory")] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
            command.arg("--store").arg(store.path()).args(["--dataset", "digits", "--epochs", "1"]);
            let output = command.args(["--virtual-ranks", "4", flag]).arg(path).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{flag}: {error}");
            let expected = format!("cannot write {}: ", path.display());
            assert!(error.contains(&expected) && error.contains(why), "{flag}: {error}");
            assert!(output.stdout.is_empty(), "{flag}: it has not trained");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

/// What clients post, each with its authorization, up to the report of the end. Answers `status` to each.
fn take_posts(listener: &TcpListener, status: &str) -> Vec<(String, Value)> {
    let mut taken = Vec::new();
    while let Ok((mut stream, _)) = listener.accept() {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut head, mut length, mut authorization) = (String::new(), 0, String::new());
        while reader.read_line(&mut head).unwrap() > 2 {
            let (name, value) = head.trim_end().split_once(": ").unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "authorization" => authorization = value.to_owned(),
                _ => {}
            }
            head.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
        stream.write_all(answer.as_bytes()).unwrap();
        taken.push((authorization, serde_json::from_slice::<Value>(&body).unwrap()));
        let report = &taken.last().unwrap().1["trainerStatus"];
        if report["progressPercentage"] == 100 {
            break;
        }
    }
    taken
}

#[test]
fn the_controller_of_a_train_job_gets_the_progress() {
    let store = DigitsStore::new();
    let folder = tempfile::tempdir().unwrap();
    let (ca, token) = (folder.path().join("ca.pem"), folder.path().join("token"));
    let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&ca, authority.cert.pem()).unwrap();
    std::fs::write(&token, "a-token\n").unwrap();
    for status in ["200 OK", "403 Forbidden"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/status", listener.local_addr().unwrap());
        let taken = std::thread::spawn(move || take_posts(&listener, status));
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
        command.arg("--store").arg(store.path()).args(["--dataset", "digits", "--epochs", "2"]);
        command.args(["--virtual-ranks", "4"]).env("KUBEFLOW_TRAINER_SERVER_URL", &url);
        command.env("KUBEFLOW_TRAINER_SERVER_CA_CERT", &ca).env("KUBEFLOW_TRAINER_SERVER_TOKEN", &token);
        let output = command.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{error}");
        assert_eq!(error.contains("takes no progress"), status != "200 OK", "{error}");
        let taken = taken.join().unwrap();
        assert!(taken.iter().all(|(authorization, _)| authorization == "Bearer a-token"), "{taken:?}");
        let last = &taken.last().unwrap().1["trainerStatus"];
        assert_eq!(last["estimatedRemainingSeconds"], 0, "{last}");
        assert!(last["metrics"].as_array().unwrap().iter().any(|metric| metric["name"] == "loss"), "{last}");
    }
}
