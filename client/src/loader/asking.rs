//! Sends requests to servers in parallel, and hedges a late one with another server: the first answer counts.
//! Whom to ask first is decided in `whom.rs`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shardd_store::http::{Credentials, HttpClient, HttpError, living_first};
use tracing::{Span, debug};

use super::whom::ServerStates;

/// How long one node may take to answer; it may have to ask others, and the store, first.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The limit of a request that only reports; the node may find out first that the metadata is unavailable.
const SAYS_WITHIN: Duration = Duration::from_secs(5);

/// How soon it is looked whether the answers are still wanted, and again for one to ask besides.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How often a server was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Asked {
    /// Questions.
    pub questions: u64,
    /// Of these, those that another was asked besides, as the answer was late.
    pub late: u64,
    /// And those that were not answered at all.
    pub unanswered: u64,
}

/// The servers, and their known states. Shared by its clones.
#[derive(Clone)]
pub(crate) struct Asking {
    /// For questions that take a node a while.
    pub(crate) http: HttpClient,
    /// For those that do not.
    pub(crate) quick: HttpClient,
    /// For the connection that stays open.
    pub(crate) lasting: HttpClient,
    shared: Arc<Shared>,
}

struct Shared {
    began: Instant,
    standing: Mutex<ServerStates>,
    asked: Mutex<BTreeMap<String, Asked>>,
}

/// Why a question has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The server that was asked last could not.
    Error(HttpError),
    /// There was no point, after it had not answered the question before.
    NotAsked,
}

/// The result of a question: the last server asked, or the one that answered, and its answer.
pub(crate) type Answer<Q, A> = (String, Arc<Q>, Result<A, Unanswered>);

impl Asking {
    /// Looks which of the servers live, if there are several.
    pub(crate) fn new(servers: &[String], credentials: &Credentials) -> Self {
        let [http, quick, lasting] =
            [ANSWER_WITHIN, SAYS_WITHIN, SAYS_WITHIN].map(|within| HttpClient::with(within, credentials));
        let mut standing = ServerStates::default();
        let (_, silent) = living_first(servers, credentials);
        silent.iter().for_each(|server| standing.fell_silent(server));
        let shared =
            Shared { began: Instant::now(), standing: Mutex::new(standing), asked: Mutex::default() };
        Self { http, quick, lasting, shared: Arc::new(shared) }
    }

    /// These servers in the order in which to ask them. Looks in the background whether silent ones are back.
    pub(crate) fn in_order(&self, servers: Vec<String>) -> Vec<String> {
        let at = self.at();
        let due = self.standing().due_for_a_look(at);
        for server in due {
            let (quick, shared) = (self.quick.clone(), Arc::clone(&self.shared));
            let look = move || {
                if quick.get(&format!("{server}/v1/health")).is_ok() {
                    shared.standing().lives(&server);
                }
            };
            // Without a thread to spare it is looked again later.
            let _ = std::thread::Builder::new().name("shardd-look".to_owned()).spawn(look);
        }
        self.standing().in_order(servers, at)
    }

    /// The first of [`in_order`](Self::in_order), and nothing more.
    pub(crate) fn first<'s>(&self, servers: impl Iterator<Item = &'s String>) -> Option<&'s String> {
        self.standing().first(servers, self.at())
    }

    pub(crate) fn is_avoided(&self, server: &str) -> bool {
        self.standing().is_avoided(server, self.at())
    }

    /// It is not expected to answer any more.
    pub(crate) fn fell_silent(&self, server: &str) {
        self.standing().fell_silent(server);
    }

    /// Notes what came of asking a server something small.
    pub(crate) fn said<A>(&self, server: &str, said: &Result<A, HttpError>) {
        match said {
            Ok(_) => self.standing().lives(server),
            Err(error) => self.shared.note_error(server, error),
        }
    }

    /// How often each server was asked.
    pub(crate) fn asked(&self) -> BTreeMap<String, Asked> {
        self.shared.asked().clone()
    }

    /// Asks each question of its server, one after the other of each. One that is late is asked no more; the
    /// unanswered questions go to another one, which `instead` names. `None` once `is_over` says that no
    /// caller wants the answers.
    pub(crate) fn ask_all<Q: Send + Sync + 'static, A: Send + 'static>(
        &self,
        questions: Vec<(String, Q)>,
        ask: impl Fn(&str, &Q) -> Result<A, HttpError> + Send + Sync + 'static,
        mut instead: impl FnMut(&str, &Q) -> Option<(String, Q)>,
        is_over: impl Fn() -> bool,
    ) -> Option<Vec<Answer<Q, A>>> {
        let (tell, told) = sync_channel(questions.len().max(1));
        let mut round = Round {
            shared: Arc::clone(&self.shared),
            ask: Arc::new(ask),
            tell,
            answers: questions.iter().map(|_| None).collect(),
            asked_of: vec![0; questions.len()],
            askers: Vec::new(),
        };
        let mut by_server: BTreeMap<String, Vec<(usize, Arc<Q>)>> = BTreeMap::new();
        for (number, (server, question)) in questions.into_iter().enumerate() {
            by_server.entry(server).or_default().push((number, Arc::new(question)));
            self.standing().asks();
        }
        for (server, questions) in by_server {
            round.begin(server, questions);
        }
        while round.answers.iter().any(Option::is_none) {
            if is_over() {
                return None;
            }
            match told.recv_timeout(LOOK_EVERY) {
                Ok(answer) => round.take(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this end can tell, too"),
            }
            round.ask_besides(&mut instead);
        }
        Some(round.answers.into_iter().map(|answer| answer.expect("all are there")).collect())
    }

    fn standing(&self) -> MutexGuard<'_, ServerStates> {
        self.shared.standing()
    }

    fn at(&self) -> Duration {
        self.shared.began.elapsed()
    }
}

impl Shared {
    fn standing(&self) -> MutexGuard<'_, ServerStates> {
        self.standing.lock().expect("no panic while held")
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<String, Asked>> {
        self.asked.lock().expect("no panic while held")
    }

    fn count(&self, server: &str, count: impl FnOnce(&mut Asked)) {
        count(self.asked().entry(server.to_owned()).or_default());
    }

    fn note_error(&self, server: &str, error: &HttpError) {
        let mut standing = self.standing();
        match error {
            error if error.is_final() => standing.lives(server),
            HttpError::Problem { .. } => standing.was_unable(server, self.began.elapsed()),
            _ => standing.fell_silent(server),
        }
    }
}

/// Questions that are being asked.
struct Round<Q, A, F> {
    shared: Arc<Shared>,
    ask: Arc<F>,
    tell: SyncSender<Answered<A>>,
    /// By question.
    answers: Vec<Option<Answer<Q, A>>>,
    /// How many servers have yet to answer a question, or to be asked it.
    asked_of: Vec<usize>,
    askers: Vec<Asker<Q>>,
}

/// A server that is asked one question after the other.
struct Asker<Q> {
    server: String,
    /// The questions without an answer yet; the first is being asked.
    left: Vec<(usize, Arc<Q>)>,
    /// Since when.
    since: Instant,
    is_late: bool,
    is_given_up: Arc<AtomicBool>,
}

/// An asker's result for its first remaining question.
struct Answered<A> {
    asker: usize,
    answer: Result<A, HttpError>,
}

impl<Q: Send + Sync + 'static, A: Send + 'static, F> Round<Q, A, F>
where
    F: Fn(&str, &Q) -> Result<A, HttpError> + Send + Sync + 'static,
{
    fn begin(&mut self, server: String, questions: Vec<(usize, Arc<Q>)>) {
        let (asker, is_given_up) = (self.askers.len(), Arc::new(AtomicBool::new(false)));
        for (number, _) in &questions {
            self.asked_of[*number] += 1;
        }
        let (ask, tell, shared) = (Arc::clone(&self.ask), self.tell.clone(), Arc::clone(&self.shared));
        let (to, over, mine) = (server.clone(), Arc::clone(&is_given_up), questions.clone());
        let span = Span::current();
        let work = move || {
            let _asking = span.enter();
            for (_, question) in mine {
                let began = Instant::now();
                shared.count(&to, |asked| asked.questions += 1);
                let answer = ask(&to, &question);
                match &answer {
                    Ok(_) => shared.standing().answered(&to, began.elapsed()),
                    Err(error) => shared.note_error(&to, error),
                }
                let is_last = answer.is_err() || over.load(Relaxed);
                // The caller may be gone.
                if tell.send(Answered { asker, answer }).is_err() || is_last {
                    return;
                }
            }
        };
        let since = Instant::now();
        self.askers.push(Asker { server, left: questions, since, is_late: false, is_given_up });
        if let Err(error) = std::thread::Builder::new().name("shardd-ask".to_owned()).spawn(work) {
            debug!(%error, "no thread could be started to ask a node");
            self.give_up(asker, None);
        }
    }

    fn take(&mut self, Answered { asker, answer }: Answered<A>) {
        let it = &mut self.askers[asker];
        if it.left.is_empty() {
            return; // it was given up, and its answer arrived too late
        }
        match answer {
            Ok(answer) => {
                let (number, question) = it.left.remove(0);
                it.since = Instant::now();
                let server = it.server.clone();
                self.asked_of[number] -= 1;
                self.answers[number].get_or_insert((server, question, Ok(answer)));
                if it.is_late {
                    self.give_up(asker, None);
                }
            }
            Err(error) => {
                if !it.is_late {
                    self.shared.count(&it.server.clone(), |asked| asked.unanswered += 1);
                }
                self.give_up(asker, Some(error));
            }
        }
    }

    /// The other questions of an asker are given up, the first for this reason.
    fn give_up(&mut self, asker: usize, error: Option<HttpError>) {
        let it = &mut self.askers[asker];
        it.is_given_up.store(true, Relaxed);
        let mut why = error.map(Unanswered::Error);
        for (number, question) in std::mem::take(&mut it.left) {
            let why = why.take().unwrap_or(Unanswered::NotAsked);
            self.asked_of[number] -= 1;
            if self.asked_of[number] == 0 {
                self.answers[number].get_or_insert((it.server.clone(), question, Err(why)));
            }
        }
    }

    /// Asks others what those have not answered that are late, if there are others and it is not too often.
    fn ask_besides(&mut self, instead: &mut impl FnMut(&str, &Q) -> Option<(String, Q)>) {
        for asker in 0..self.askers.len() {
            let it = &self.askers[asker];
            if it.is_late
                || it.left.is_empty()
                || it.since.elapsed() < self.shared.standing().patience(&it.server)
            {
                continue;
            }
            let (server, left) = (it.server.clone(), it.left.clone());
            let mut others: BTreeMap<String, Vec<(usize, Arc<Q>)>> = BTreeMap::new();
            let open = left.iter().filter(|(number, _)| self.answers[*number].is_none());
            for (number, question) in open {
                if let Some((other, question)) = instead(&server, question) {
                    others.entry(other).or_default().push((*number, Arc::new(question)));
                }
            }
            if others.is_empty() || !self.shared.standing().asks_twice() {
                continue;
            }
            debug!(server, "a node is late; another is asked besides");
            self.shared.standing().fell_silent(&server);
            self.shared.count(&server, |asked| asked.late += 1);
            let it = &mut self.askers[asker];
            it.is_late = true;
            it.is_given_up.store(true, Relaxed);
            // The answer to the present question may still come; the rest is for others alone.
            for (number, _) in it.left.split_off(1) {
                self.asked_of[number] -= 1;
            }
            for (other, questions) in others {
                self.begin(other, questions);
            }
            for (number, question) in left {
                if self.asked_of[number] == 0 {
                    let unanswered = (server.clone(), question, Err(Unanswered::NotAsked));
                    self.answers[number].get_or_insert(unanswered);
                }
            }
        }
    }
}

/// The nodes that a rank reports to: the hosts of its partitions, its own, and every node that it has asked for anything, whether
/// that has answered or was too late. A node that has heard of a rank holds the moved grains until this rank has
/// passed the epoch.
pub(super) fn reported_to(
    own: Option<String>,
    mut hosts: Vec<String>,
    asked: &BTreeMap<String, Asked>,
) -> Vec<String> {
    hosts.extend(own);
    hosts.sort();
    hosts.dedup();
    let others: Vec<String> = asked.keys().filter(|server| !hosts.contains(server)).cloned().collect();
    // The exchange goes by the hosts' clock: they hear first.
    [hosts, others].concat()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::*;

    fn asking() -> Asking {
        Asking::new(&[], &Credentials::default())
    }

    fn unreachable(server: &str) -> HttpError {
        HttpError::Unreachable { url: server.to_owned(), reason: "it is frozen".to_owned() }
    }

    /// Servers of which those called "frozen" answer when they are thawed, with nothing.
    fn ask(thaw: Receiver<()>) -> impl Fn(&str, &u32) -> Result<String, HttpError> + Send + Sync + 'static {
        let thaw = Mutex::new(thaw);
        move |server, question| match server {
            "frozen" => {
                let _ = thaw.lock().expect("one at a time").recv();
                Err(unreachable(server))
            }
            _ => Ok(format!("{server} says {question}")),
        }
    }

    #[test]
    fn what_a_frozen_server_was_asked_another_answers_and_it_is_asked_no_more() {
        let (asking, (thawed, thaw)) = (asking(), sync_channel(1));
        let questions = [("frozen", 1), ("frozen", 2), ("quick", 3), ("frozen", 4)];
        let questions = questions.map(|(server, question)| (server.to_owned(), question)).to_vec();
        let instead =
            |server: &str, question: &u32| (server == "frozen").then(|| ("quick".to_owned(), *question));
        let answers = asking.ask_all(questions, ask(thaw), instead, || false).expect("they are wanted");
        let said: Vec<String> = answers.into_iter().map(|(_, _, answer)| answer.expect("answered")).collect();
        assert_eq!(said, ["quick says 1", "quick says 2", "quick says 3", "quick says 4"]);
        assert!(asking.is_avoided("frozen") && !asking.is_avoided("quick"));
        let asked = asking.asked();
        assert_eq!(asked["frozen"], Asked { questions: 1, late: 1, unanswered: 0 });
        assert_eq!(asked["quick"].questions, 4);
        drop(thawed);
    }

    #[test]
    fn a_server_that_fails_is_not_asked_the_rest_and_nobody_waits_for_what_is_not_wanted() {
        let (asking, (thawed, thaw)) = (asking(), sync_channel(1));
        drop(thawed);
        let questions = vec![("frozen".to_owned(), 1), ("frozen".to_owned(), 2)];
        let answers = asking.ask_all(questions, ask(thaw), |_, _| None, || false).expect("they are wanted");
        let first = &answers[0].2;
        assert!(matches!(first, Err(Unanswered::Error(HttpError::Unreachable { .. }))), "{first:?}");
        assert!(matches!(answers[1].2, Err(Unanswered::NotAsked)));
        assert_eq!(asking.asked()["frozen"], Asked { questions: 1, late: 0, unanswered: 1 });

        let (_never, thaw) = sync_channel(1);
        let questions = vec![("frozen".to_owned(), 1)];
        assert!(asking.ask_all(questions, ask(thaw), |_, _| None, || true).is_none());
    }

    #[test]
    fn a_node_that_was_asked_and_too_late_hears_how_far_the_rank_has_come() {
        let late = Asked { questions: 1, late: 1, unanswered: 0 };
        let asked = BTreeMap::from([("n2".to_owned(), late), ("n1".to_owned(), Asked::default())]);
        let hosts = vec!["n1".to_owned(), "n1".to_owned()];
        assert_eq!(reported_to(None, hosts.clone(), &asked), ["n1", "n2"]);
        assert_eq!(
            reported_to(Some("n0".to_owned()), hosts, &asked),
            ["n0", "n1", "n2"],
            "its own hosts nothing"
        );
    }
}
