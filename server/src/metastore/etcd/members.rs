//! The members of an etcd cluster, asked one after the other until one answers.
//!
//! Each member has a connection of its own, and all calls go to the member that answered last: a balanced
//! channel would send a part of the calls to a dead member. What may be repeated without harm is asked of the
//! next member when one breaks off; a change is not, as it may have happened. Knows nothing of keys.

use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::OpenError;
use super::super::url::EtcdUrl;

/// How long a call may take, whatever it meets. An etcd that lost its leader elects another in one or two seconds.
const TIMEOUT: Duration = Duration::from_secs(4);
/// How long one member may take, at least, for something that another could be asked instead.
const ATTEMPT: Duration = Duration::from_millis(1500);
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(1);
/// How long to wait before a member without a leader is asked again.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// A connection that waits for changes is asked for a sign of life so often (etcd hangs up on those who ask more than
/// every 5 s), and given up after this long without one.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(2));

/// The action when the outcome of a call is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Call again: it reads, or has the same effect when it happens twice.
    Harmless,
    /// Say that it is not known.
    Harmful,
}

/// Why a call gave nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// etcd was reached, and says no.
    Refused(Error),
    /// It was not, for this reason.
    Away(String),
}

/// How a call to one member went wrong.
enum Trouble {
    /// etcd's decision.
    Refused(Error),
    /// There was no connection: nothing was asked.
    Unreached(String),
    /// The member has no leader just now: nothing was done.
    Leaderless(String),
    /// It was asked, and the answer did not come.
    Unanswered(String),
}

pub(super) struct Members {
    members: Vec<Member>,
    /// The one that is asked first.
    current: AtomicUsize,
    options: ConnectOptions,
}

struct Member {
    /// `HOST:PORT`, for messages.
    name: String,
    url: String,
    client: OnceCell<Client>,
}

impl Members {
    /// Reads the files that `url` names. Connects to no one yet.
    pub(super) fn new(url: &EtcdUrl) -> Result<Self, OpenError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            // A member cut off from the others ends our waits instead of letting them sleep without end.
            .with_require_leader(true);
        if let (Some(user), Some(file)) = (&url.user, &url.password_file) {
            let password = String::from_utf8_lossy(&read(file)?).trim_end().to_owned();
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        let mut scheme = "http";
        if let Some(ca) = &url.ca {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
            if let (Some(cert), Some(key)) = (&url.cert, &url.key) {
                tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
            }
            options = options.with_tls(tls);
            scheme = "https";
        }
        let member = |name: &String| Member {
            name: name.clone(),
            url: format!("{scheme}://{name}"),
            client: OnceCell::new(),
        };
        Ok(Self { members: url.members.iter().map(member).collect(), current: AtomicUsize::new(0), options })
    }

    /// What `call` makes of `request` at the first member that answers it.
    pub(super) async fn ask<R: Clone, T, F: Future<Output = Result<T, Error>>>(
        &self,
        again: Again,
        request: R,
        call: impl Fn(Client, R) -> F,
    ) -> Result<T, Failure> {
        let until = Instant::now() + TIMEOUT;
        let mut unreached = 0;
        loop {
            let at = self.current.load(Ordering::Relaxed);
            let member = &self.members[at];
            let trouble =
                match self.attempt(member, again, until, |client| call(client, request.clone())).await {
                    Ok(value) => return Ok(value),
                    Err(Trouble::Refused(error)) => return Err(Failure::Refused(error)),
                    Err(trouble) => trouble,
                };
            self.leave(at);
            let late = Instant::now() >= until;
            match trouble {
                Trouble::Refused(error) => return Err(Failure::Refused(error)),
                Trouble::Unreached(reason) => {
                    unreached += 1;
                    // Twice each, as the first time may tell of a connection that failed long ago.
                    if late || unreached >= 2 * self.members.len() {
                        return Err(Failure::Away(format!("{}: {reason}", member.name)));
                    }
                    if unreached == self.members.len() {
                        sleep(PAUSE).await;
                    }
                }
                Trouble::Leaderless(reason) if late => {
                    return Err(Failure::Away(format!("{}: {reason}", member.name)));
                }
                Trouble::Leaderless(_) => {
                    unreached = 0;
                    sleep(PAUSE).await;
                }
                Trouble::Unanswered(reason) => match again {
                    Again::Harmful => {
                        let reason = format!(
                            "{}: {reason}; whether the change was made is not known: look before making it again",
                            member.name
                        );
                        return Err(Failure::Away(reason));
                    }
                    Again::Harmless if late => {
                        return Err(Failure::Away(format!("{}: {reason}", member.name)));
                    }
                    Again::Harmless => sleep(PAUSE).await,
                },
            }
        }
    }

    async fn attempt<T, F: Future<Output = Result<T, Error>>>(
        &self,
        member: &Member,
        again: Again,
        until: Instant,
        call: impl FnOnce(Client) -> F,
    ) -> Result<T, Trouble> {
        let now = Instant::now();
        let its_share = (TIMEOUT / u32::try_from(self.members.len()).unwrap_or(u32::MAX)).max(ATTEMPT);
        // With a user, this asks etcd who that is; nothing else happens on the way.
        let connected = timeout_at(until.min(now + its_share), member.client(&self.options)).await;
        let client = match connected {
            Ok(Ok(client)) => client.clone(),
            Ok(Err(error)) => {
                return Err(match Trouble::of(error) {
                    Trouble::Unanswered(reason) => Trouble::Unreached(reason),
                    other => other,
                });
            }
            Err(_) => return Err(Trouble::Unreached("no answer".into())),
        };
        let end = match again {
            Again::Harmless => until.min(now + its_share),
            Again::Harmful => until,
        };
        match timeout_at(end, call(client)).await {
            Ok(answer) => answer.map_err(Trouble::of),
            Err(_) => Err(Trouble::Unanswered(format!("no answer within {:?}", end - now))),
        }
    }

    /// Turns to the next member, unless another call has done so.
    fn leave(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Member {
    async fn client(&self, options: &ConnectOptions) -> Result<&Client, Error> {
        self.client.get_or_try_init(|| Client::connect([&self.url], Some(options.clone()))).await
    }
}

impl Trouble {
    fn of(error: Error) -> Self {
        use tonic::Code;
        let status = match &error {
            Error::GRpcStatus(status) => status,
            Error::LeaseKeepAliveError(_) | Error::InvalidArgs(_) | Error::InvalidUri(_) => {
                return Self::Refused(error);
            }
            _ => return Self::Unanswered(reason(&error)),
        };
        match status.code() {
            Code::Unavailable if status.message().contains("no leader") => Self::Leaderless(reason(&error)),
            Code::Ok
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated => Self::Refused(error),
            Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => match was_never_connected(status) {
                true => Self::Unreached(reason(&error)),
                false => Self::Unanswered(reason(&error)),
            },
        }
    }
}

fn was_never_connected(status: &tonic::Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The message of an error, down to its first cause, in one line and nothing twice.
pub(super) fn reason(error: &Error) -> String {
    let (first, mut cause) = match error {
        Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        other => (other.to_string(), other.source()),
    };
    let mut said = vec![first];
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.iter().any(|before| before.contains(&text)) {
            said.push(text);
        }
        cause = error.source();
    }
    said.retain(|text| !text.is_empty() && text != "transport error");
    said.join(": ").replace('\n', " ")
}

fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
    fs::read(path).map_err(|source| OpenError::File { path: path.to_owned(), source })
}
