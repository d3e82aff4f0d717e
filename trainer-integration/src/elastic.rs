//! A rank that stays when others of its group go: it asks the launcher for its next place, and trains on in the same process.
//!
//! A launcher (`shardtrain run --elastic`) listens at a Unix socket in a directory of its own, and tells the processes that it starts where
//! ([`SOCKET`]) and which of them they are ([`MEMBER`]). Both sides send lines of JSON, at most [`LONGEST_LINE`] bytes each. A member says
//! [`Word::Hello`] once, and [`Word::Ask`] whenever it is in no group: when it has been started, when its group has
//! paused, when its group has lost a rank. The answer is a [`Place`] in the next group, as soon as there is one. A launcher that ends closes
//! the socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::checkpoint::StopFlag;

/// In which a launcher says where it listens for its members.
pub const SOCKET: &str = "SHARDD_ELASTIC";

/// In which it says which member a process is.
pub const MEMBER: &str = "SHARDD_MEMBER";

/// Of the lines; a launcher refuses members that speak another.
pub const FORMAT: u32 = 1;

/// A longer one shows that the other side is another program.
pub const LONGEST_LINE: u64 = 1 << 20;

/// A message of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Who it is; the first of its words.
    Hello {
        /// [`FORMAT`].
        format: u32,
        /// Its number.
        member: u32,
    },
    /// It wants a place in the next group.
    Ask(Left),
    /// As rank 0: its group has trained its first step.
    Formed(Reforming),
}

/// Why a member is in no group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// It has just been started.
    New,
    /// All ranks of its group have stopped after the same step, as requested.
    Paused,
    /// Another rank is gone or late.
    Lost {
        /// Which, and how that was noticed.
        reason: String,
    },
}

/// A message of a launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Where to continue.
    Place(Place),
    /// Others wait to join this group: all its ranks are to stop after the same step, and to ask.
    Pause {
        /// The group.
        generation: u64,
    },
    /// This group has lost a rank: a rank that still waits for it need not.
    Over {
        /// The group.
        generation: u64,
    },
    /// There is no next group.
    End,
    /// The member is none.
    Refused {
        /// Why.
        reason: String,
    },
}

/// A place in a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Which group of the launch it is, from 1.
    pub generation: u64,
    /// From 0: those that were in the group before come first, in their order.
    pub rank: u32,
    /// How many ranks there are.
    pub world: u32,
    /// How many there were in the group before; 0 if it is the first.
    pub world_before: u32,
    /// Where they meet.
    pub master: String,
    /// How the groups before this one were formed, but for the first.
    pub history: Vec<Reforming>,
    /// Why the group before ended; empty if it is the first.
    pub cause: String,
}

/// How a group took over from the one before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reforming {
    /// Which group of the launch it is.
    pub generation: u64,
    /// Ranks of the one before.
    pub world_before: u32,
    /// And of this one.
    pub world: u32,
    /// Why the one before ended.
    pub cause: String,
    /// Steps that this rank had trained before.
    pub from_step: u64,
    /// Steps of the training when it continued.
    pub to_step: u64,
    /// The source of the numbers with which it continued.
    pub state: Origin,
    /// Seconds from the end of the last step of this rank before to the beginning of the first one after.
    pub seconds: f64,
}

/// Where the numbers of a group come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The memory of ranks of the group before.
    Ranks,
    /// The newest checkpoint.
    Checkpoint,
    /// None: the training began again.
    Beginning,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Origin::Ranks => "from the memory of its ranks",
            Origin::Checkpoint => "from the newest checkpoint",
            Origin::Beginning => "from the beginning",
        })
    }
}

/// Why a process cannot be a member.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ElasticError {
    /// A variable of the environment is not a number.
    #[error("{MEMBER} is {value:?}; a launcher says there which member a process is")]
    Variable { value: String },
    /// No launcher listens there.
    #[error("no launcher listens at {}", .path.display())]
    NoLauncher { path: PathBuf, source: io::Error },
    /// It does not take this process.
    #[error("the launcher refuses this process: {reason}")]
    Refused { reason: String },
    /// It has ended.
    #[error("the launcher that started this process has ended")]
    Ended,
}

/// A message as a line.
pub fn to_line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("numbers and text serialize");
    line.push(b'\n');
    line
}

/// The message of a line.
///
/// # Errors
/// When it is none.
pub fn of_line<T: DeserializeOwned>(line: &[u8]) -> io::Result<T> {
    serde_json::from_slice(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A place, and how others ask this rank to leave it.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The place.
    pub place: Place,
    /// Raised when the group is to stop after a step.
    pub pause: StopFlag,
    /// Set when the group has lost a rank, which those notice late that have not met it yet.
    pub is_over: Arc<AtomicBool>,
}

impl Slot {
    fn new(place: Place) -> Slot {
        Slot { place, pause: StopFlag::default(), is_over: Arc::default() }
    }
}

/// This process, as a member of a launch.
#[derive(Debug)]
pub struct Member {
    launcher: UnixStream,
    /// The answer to each question.
    answers: Receiver<Result<Option<Slot>, String>>,
}

impl Member {
    /// A member of the launch that the environment tells of, if it does. `gone` is called when the launcher has ended, on a thread of its own.
    ///
    /// # Errors
    /// When the launcher is not there.
    pub fn of_env(gone: impl FnOnce() + Send + 'static) -> Result<Option<Member>, ElasticError> {
        let Some(path) = std::env::var_os(SOCKET).filter(|path| !path.is_empty()) else { return Ok(None) };
        let value = std::env::var(MEMBER).unwrap_or_default();
        let member = value.parse().map_err(|_| ElasticError::Variable { value })?;
        Member::connect(PathBuf::from(path), member, gone).map(Some)
    }

    /// Member number `member` of the launcher that listens at `path`; `gone` as in [`Member::of_env`].
    ///
    /// # Errors
    /// When no launcher listens there.
    pub fn connect(
        path: PathBuf,
        member: u32,
        gone: impl FnOnce() + Send + 'static,
    ) -> Result<Member, ElasticError> {
        let connect = || {
            let launcher = UnixStream::connect(&path)?;
            let lines = BufReader::new(launcher.try_clone()?);
            let (send, answers) = sync_channel(1);
            let listen = move || {
                listen(lines, &send);
                gone();
            };
            std::thread::Builder::new().name("launcher".to_owned()).spawn(listen)?;
            Ok(Member { launcher, answers })
        };
        let mut connected: Member =
            connect().map_err(|source| ElasticError::NoLauncher { path: path.clone(), source })?;
        connected.say(&Word::Hello { format: FORMAT, member })?;
        Ok(connected)
    }

    /// Waits for the next place; `None` if there is none, because the training is over.
    ///
    /// # Errors
    /// When the launcher has ended, or does not take this process.
    pub fn ask(&mut self, left: Left) -> Result<Option<Slot>, ElasticError> {
        self.say(&Word::Ask(left))?;
        let answer = self.answers.recv().map_err(|_| ElasticError::Ended)?;
        answer.map_err(|reason| ElasticError::Refused { reason })
    }

    /// Tells how the group was formed.
    ///
    /// # Errors
    /// When the launcher has ended.
    pub fn tell(&mut self, formed: Reforming) -> Result<(), ElasticError> {
        self.say(&Word::Formed(formed))
    }

    fn say(&mut self, word: &Word) -> Result<(), ElasticError> {
        self.launcher.write_all(&to_line(word)).map_err(|_| ElasticError::Ended)
    }
}

type Answers = std::sync::mpsc::SyncSender<Result<Option<Slot>, String>>;

/// Until the launcher has ended.
fn listen(mut lines: BufReader<UnixStream>, answers: &Answers) {
    let current: Mutex<Option<Slot>> = Mutex::default();
    let of = |generation: u64| locked(&current).clone().filter(|seat| seat.place.generation == generation);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(read) if read > 0 => {}
            _ => return,
        }
        let Ok(answer) = of_line::<Answer>(&line) else { return };
        let told = match answer {
            Answer::Place(place) => {
                let seat = Slot::new(place);
                *locked(&current) = Some(seat.clone());
                answers.send(Ok(Some(seat)))
            }
            Answer::Pause { generation } => {
                of(generation).iter().for_each(|seat| seat.pause.raise());
                continue;
            }
            Answer::Over { generation } => {
                of(generation).iter().for_each(|seat| seat.is_over.store(true, Ordering::Relaxed));
                continue;
            }
            Answer::End => answers.send(Ok(None)),
            Answer::Refused { reason } => answers.send(Err(reason)),
        };
        if told.is_err() {
            return;
        }
    }
}

fn locked(seat: &Mutex<Option<Slot>>) -> MutexGuard<'_, Option<Slot>> {
    seat.lock().expect("no panic while a seat is copied")
}
