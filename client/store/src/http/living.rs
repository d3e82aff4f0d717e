//! Which of several servers live, before any of them is asked for what takes a while.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::{Credentials, HttpClient};

/// How long a server may take to say that it lives.
const WITHIN: Duration = Duration::from_secs(2);

/// Splits servers, each in the order given: those that answer, or were not waited for as one before them has answered; and those that do not
/// answer. A single one is not asked.
pub fn living_first(servers: &[String], credentials: &Credentials) -> (Vec<String>, Vec<String>) {
    if servers.len() < 2 {
        return (servers.to_vec(), Vec::new());
    }
    let (tell, told) = sync_channel(servers.len());
    for (number, server) in servers.iter().enumerate() {
        let (tell, http) = (tell.clone(), HttpClient::with(WITHIN, credentials));
        let url = format!("{}/v1/health", server.trim_end_matches('/'));
        let look = move || {
            // The receiver may be gone.
            let _ = tell.send((number, http.get(&url).is_ok()));
        };
        if std::thread::Builder::new().name("shardd-look".to_owned()).spawn(look).is_err() {
            return (servers.to_vec(), Vec::new());
        }
    }
    drop(tell);
    let mut lives: Vec<Option<bool>> = vec![None; servers.len()];
    // The first in order that has not failed has answered: whatever comes after it need not be known.
    while lives.iter().find(|lives| **lives != Some(false)) != Some(&Some(true)) {
        let Ok((number, answers)) = told.recv() else { break };
        lives[number] = Some(answers);
    }
    let of = |silent: bool| {
        let those = servers.iter().zip(&lives).filter(|(_, lives)| (**lives == Some(false)) == silent);
        those.map(|(server, _)| server.clone()).collect()
    };
    (of(false), of(true))
}
