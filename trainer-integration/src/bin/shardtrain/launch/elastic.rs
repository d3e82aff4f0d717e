//! A launch whose ranks stay when others go: members ask over a socket for their next place. Who is in which group is decided in `membership.rs`;
//! here are processes, the socket, and the clock.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use shardd_trainer::elastic::{
    Answer, FORMAT, LONGEST_LINE, MEMBER, Place, Reforming, SOCKET, Word, of_line, to_line,
};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::membership::{Act, Membership, SIGNALLED};
use super::restart_policy::{End, Rules};
use super::{Failure, Launch, Order, RankSettings, Signals, continuing, free_address, numbers, tend};

/// Words of members that wait to be heard.
const QUEUE: usize = 64;

/// Runs a training to its end: the exit code.
pub(super) async fn supervise(launch: &Launch, settings: &RankSettings) -> Result<u8, Failure> {
    let rules = Rules { min_ranks: launch.min_ranks, max_restarts: launch.max_restarts, keeps_world: false };
    let mut launcher = Launcher::new(
        launch,
        settings,
        Membership::new(rules, launch.respawn_after.is_some(), settings.multiple),
    )?;
    for seat in 0..launch.place.ranks {
        launcher.start(seat, false)?;
    }
    launcher.run().await
}

/// The messages of members, and the beginning and end of their connections.
enum Heard {
    Hello(u32, OwnedWriteHalf),
    Said(u32, Word),
    /// A process that is not a member, or does not speak as one.
    Stranger(OwnedWriteHalf, String),
}

struct Launcher<'a> {
    launch: &'a Launch,
    settings: &'a RankSettings,
    roster: Membership,
    signals: Signals,
    /// Asks for ranks that are missing.
    recalls: Signal,
    /// Holds the socket, and goes with this.
    folder: TempDir,
    listener: UnixListener,
    heard: (mpsc::Sender<Heard>, mpsc::Receiver<Heard>),
    /// Reads what members say.
    readers: JoinSet<()>,
    processes: JoinSet<(u32, io::Result<End>)>,
    members: BTreeMap<u32, Process>,
    /// Strangers' connections stay open until the end, so that they hear why.
    strangers: Vec<OwnedWriteHalf>,
    /// When which seat's next process is started.
    returns: Vec<(Instant, u32)>,
    /// When patience ends with those of the present group, or with all at the end.
    patience: Option<Instant>,
    history: Vec<Reforming>,
    code: Option<u8>,
}

/// A member's.
struct Process {
    pid: u32,
    orders: watch::Sender<Order>,
    connection: Option<OwnedWriteHalf>,
}

impl<'a> Launcher<'a> {
    fn new(
        launch: &'a Launch,
        settings: &'a RankSettings,
        roster: Membership,
    ) -> Result<Launcher<'a>, Failure> {
        let folder = tempfile::Builder::new().prefix("shardtrain-").tempdir()?;
        let path = folder.path().join("launcher");
        let listener = UnixListener::bind(&path).map_err(|error| {
            format!("cannot listen at {}: {error}; set TMPDIR to another place", path.display())
        })?;
        Ok(Launcher {
            launch,
            settings,
            roster,
            signals: Signals::new()?,
            recalls: signal(SignalKind::user_defined1())?,
            folder,
            listener,
            heard: mpsc::channel(QUEUE),
            readers: JoinSet::new(),
            processes: JoinSet::new(),
            members: BTreeMap::new(),
            strangers: Vec::new(),
            returns: Vec::new(),
            patience: None,
            history: Vec::new(),
            code: None,
        })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("launcher")
    }

    fn start(&mut self, seat: u32, is_return: bool) -> io::Result<()> {
        let number = self.roster.start(seat, is_return);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.launch.arguments);
        command.args(["--launched-by", &std::process::id().to_string()]);
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"] {
            command.env_remove(name);
        }
        // A seat is a device of this machine, and stays the same whatever the rank.
        command
            .env("LOCAL_RANK", seat.to_string())
            .env("LOCAL_WORLD_SIZE", self.launch.place.ranks.to_string());
        command.env(SOCKET, self.socket()).env(MEMBER, number.to_string());
        command.stdin(std::process::Stdio::null()).process_group(0).kill_on_drop(true);
        let child = command.spawn()?;
        let pid = child.id().unwrap_or_default();
        let (orders, received) = watch::channel(Order::GoOn);
        self.processes.spawn(tend(number, child, received));
        self.members.insert(number, Process { pid, orders, connection: None });
        if is_return {
            eprintln!("shardtrain: a rank returns, process {pid}");
        }
        Ok(())
    }

    /// Training continues without a rank whose process cannot be started.
    async fn bring_back(&mut self, seat: u32) -> Result<(), Failure> {
        if let Err(error) = self.start(seat, true) {
            eprintln!("shardtrain: no process can be started for a rank that returns: {error}");
            let acts = self.roster.ended(self.roster.newest(), End::Code(1));
            self.perform(acts).await?;
        }
        Ok(())
    }

    async fn run(mut self) -> Result<u8, Failure> {
        while self.code.is_none() || !self.processes.is_empty() {
            let (patience, next) = (self.patience, self.returns.iter().min().copied());
            tokio::select! {
                Some(ended) = self.processes.join_next() => {
                    let (number, end) = ended?;
                    self.members.entry(number).and_modify(|process| process.connection = None);
                    let acts = self.roster.ended(number, end?);
                    self.perform(acts).await?;
                }
                accepted = self.listener.accept() => self.attend(accepted?.0),
                Some(heard) = self.heard.1.recv() => self.hear(heard).await?,
                asked = self.signals.next() => {
                    self.roster.stopping();
                    for (_, _) in std::mem::take(&mut self.returns) {
                        let acts = self.roster.stays_away();
                        self.perform(acts).await?;
                    }
                    self.order(&self.roster.living(), asked);
                }
                Some(()) = self.recalls.recv() => {
                    let on_the_way: Vec<u32> = self.returns.drain(..).map(|(_, seat)| seat).collect();
                    let missing = self.roster.recall(&on_the_way);
                    for seat in on_the_way.into_iter().chain(missing) {
                        self.bring_back(seat).await?;
                    }
                }
                () = until(patience) => {
                    self.patience = None;
                    let late = if self.code.is_some() { self.roster.living() } else { self.roster.late() };
                    self.order(&late, Order::End);
                }
                () = until(next.map(|(at, _)| at)) => {
                    let (_, seat) = next.expect("it has come");
                    self.returns.retain(|it| Some(*it) != next);
                    self.bring_back(seat).await?;
                }
            }
        }
        Ok(match self.code {
            Some(0) => self.signals.done(self.settings),
            code => code.unwrap_or(1),
        })
    }

    fn order(&self, members: &[u32], order: Order) {
        for process in members.iter().filter_map(|number| self.members.get(number)) {
            process.orders.send_replace(order);
        }
    }

    /// Listens to a connection.
    fn attend(&mut self, stream: UnixStream) {
        let heard = self.heard.0.clone();
        self.readers.spawn(async move {
            let (read, write) = stream.into_split();
            // No receiver is left once the launch is over.
            let _ = listen(BufReader::new(read), write, &heard).await;
        });
        while self.readers.try_join_next().is_some() {}
    }

    async fn hear(&mut self, heard: Heard) -> Result<(), Failure> {
        let acts = match heard {
            Heard::Hello(number, connection) => {
                if let Some(process) = self.members.get_mut(&number) {
                    process.connection = Some(connection);
                }
                return Ok(());
            }
            Heard::Stranger(mut connection, reason) => {
                let _ = connection.write_all(&to_line(&Answer::Refused { reason })).await;
                self.strangers.push(connection);
                return Ok(());
            }
            Heard::Said(_, Word::Hello { .. }) => return Ok(()),
            Heard::Said(number, Word::Ask(left)) => self.roster.asked(number, left),
            Heard::Said(_, Word::Formed(formed)) => {
                let Reforming { generation, from_step, to_step, state, seconds, .. } = &formed;
                eprintln!(
                    "shardtrain: group {generation} has gone on after step {to_step}, {state}; the last step before was {from_step}, {seconds:.2} s earlier"
                );
                self.history.push(formed);
                return Ok(());
            }
        };
        // A member that asks after the end gets an answer.
        let is_over = self.code.is_some();
        self.perform(acts).await?;
        if is_over {
            self.dismiss().await;
        }
        Ok(())
    }

    async fn perform(&mut self, acts: Vec<Act>) -> Result<(), Failure> {
        for act in acts {
            match act {
                Act::Form { generation, members, world_before, cause } => {
                    self.form(generation, &members, world_before, &cause).await?;
                }
                Act::Pause { generation, members } => {
                    self.tell(&members, &Answer::Pause { generation }).await;
                }
                Act::Hurry { generation, members } => {
                    self.patience = Some(Instant::now() + self.launch.grace());
                    self.tell(&members, &Answer::Over { generation }).await;
                }
                Act::Calm => self.patience = None,
                Act::Return { seat } => {
                    let after = Duration::from_secs(self.launch.respawn_after.unwrap_or_default());
                    self.returns.push((Instant::now() + after, seat));
                }
                Act::End { code, said } => {
                    self.end(code, said);
                    self.dismiss().await;
                }
            }
        }
        Ok(())
    }

    /// Gives members their places.
    async fn form(
        &mut self,
        generation: u64,
        members: &[u32],
        world_before: u32,
        cause: &str,
    ) -> Result<(), Failure> {
        let master = match &self.settings.master {
            Some(master) => master.clone(),
            None => free_address()?,
        };
        let world = members.len() as u32;
        if generation > 1 {
            eprintln!("shardtrain: {cause}; continuing with {}", continuing(world, world, 1));
        }
        let pids: Vec<String> =
            members.iter().filter_map(|number| Some(self.members.get(number)?.pid.to_string())).collect();
        eprintln!(
            "shardtrain: group {generation}: {} of {world} at {master}, processes {}",
            numbers(0, world - 1),
            pids.join(" ")
        );
        for (rank, number) in (0..).zip(members) {
            let (master, cause, history) = (master.clone(), cause.to_owned(), self.history.clone());
            let place = Place { generation, rank, world, world_before, master, history, cause };
            self.tell(&[*number], &Answer::Place(place)).await;
        }
        Ok(())
    }

    /// One that has ended is known by that, not by a failed send.
    async fn tell(&mut self, members: &[u32], answer: &Answer) {
        let line = to_line(answer);
        for number in members {
            let connection = self.members.get_mut(number).and_then(|process| process.connection.as_mut());
            if let Some(connection) = connection {
                let _ = connection.write_all(&line).await;
            }
        }
    }

    fn end(&mut self, code: u8, said: Option<String>) {
        if let Some(said) = said {
            eprintln!("shardtrain: {said}");
        }
        let mut code = code;
        if code == SIGNALLED {
            eprintln!("shardtrain: ended as requested; the steps after the last checkpoint are lost");
            code += self.signals.stopped.and_then(|signal| u8::try_from(signal).ok()).unwrap_or(0);
        }
        self.code = Some(code);
        self.returns.clear();
        self.patience = Some(Instant::now() + self.launch.grace());
        // Those that have just been started have nothing to lose.
        self.order(&self.roster.starting(), Order::End);
    }

    /// Tells those that ask that there is nothing more for them.
    async fn dismiss(&mut self) {
        let asking: Vec<u32> = self.roster.living().into_iter().filter(|it| self.roster.asks(*it)).collect();
        self.tell(&asking, &Answer::End).await;
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Passes on what a connection says, until it ends.
async fn listen(
    mut lines: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    heard: &mpsc::Sender<Heard>,
) -> Result<(), mpsc::error::SendError<Heard>> {
    let number = match next(&mut lines).await {
        Ok(Some(Word::Hello { format: FORMAT, member })) => member,
        Ok(Some(Word::Hello { format, .. })) => {
            let reason = format!("it speaks format {format}, and this launcher format {FORMAT}");
            return heard.send(Heard::Stranger(write, reason)).await;
        }
        _ => return heard.send(Heard::Stranger(write, "it does not say who it is".to_owned())).await,
    };
    heard.send(Heard::Hello(number, write)).await?;
    // One that says what cannot be understood is not heard again; its process has to end, or is killed in time.
    while let Ok(Some(word)) = next(&mut lines).await {
        heard.send(Heard::Said(number, word)).await?;
    }
    Ok(())
}

async fn next(lines: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Word>> {
    let mut line = Vec::new();
    let read = lines.take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    if read == 0 { Ok(None) } else { of_line(&line).map(Some) }
}
