//! Whom to ask first, and when to ask another besides. Pure: moments are handed in, as times since some beginning.
//!
//! A server that has not answered in time, cannot be reached, or is no member any more, is *silent* from then
//! on: whatever else can be asked is asked before it, until it has answered something. A late server, by the
//! times of its earlier answers, is hedged: another server gets the same request, within a limit on repeated
//! requests.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How many answers of a server are remembered, and how many there must be before they show the usual time.
const REMEMBERED: usize = 64;
const AT_LEAST: usize = 16;

/// How long a server of which little is known may take before another is asked besides.
pub(crate) const UNKNOWN: Duration = Duration::from_secs(2);

/// How long at least and at most, whatever is usual.
const LEAST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(10);

/// One question in this number may be asked twice, besides a few at any time.
const ONE_IN: f64 = 20.0;
const BESIDES: f64 = 4.0;

/// How long a server that answered that it cannot is not asked first.
const UNABLE_FOR: Duration = Duration::from_secs(3);

/// How long to wait before it is looked again whether a silent server is back.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The known state of the asked servers.
#[derive(Debug, Default)]
pub(crate) struct ServerStates {
    servers: BTreeMap<String, Server>,
    /// How many questions may be asked twice now, less [`BESIDES`].
    earned: f64,
}

#[derive(Debug, Default)]
struct Server {
    took: VecDeque<Duration>,
    is_silent: bool,
    unable_until: Option<Duration>,
    looked_at: Option<Duration>,
}

impl ServerStates {
    /// It has answered, after this time.
    pub(crate) fn answered(&mut self, server: &str, took: Duration) {
        let known = self.server(server);
        known.is_silent = false;
        known.unable_until = None;
        if known.took.len() == REMEMBERED {
            known.took.pop_front();
        }
        known.took.push_back(took);
    }

    /// It lives, but answers to nothing that it was asked.
    pub(crate) fn lives(&mut self, server: &str) {
        self.server(server).is_silent = false;
    }

    /// It has answered that it cannot.
    pub(crate) fn was_unable(&mut self, server: &str, at: Duration) {
        let known = self.server(server);
        known.is_silent = false;
        known.unable_until = Some(at + UNABLE_FOR);
    }

    /// It does not answer, or is not expected to.
    pub(crate) fn fell_silent(&mut self, server: &str) {
        self.server(server).is_silent = true;
    }

    /// Whether there is better to ask, if there is any other.
    pub(crate) fn is_avoided(&self, server: &str, at: Duration) -> bool {
        let Some(known) = self.servers.get(server) else { return false };
        known.is_silent || known.unable_until.is_some_and(|until| at < until)
    }

    /// These servers in the order in which to ask them: as they are given, those that are avoided last, and of these the silent ones.
    pub(crate) fn in_order(&self, mut servers: Vec<String>, at: Duration) -> Vec<String> {
        servers.sort_by_key(|server| self.lateness(server, at));
        servers
    }

    /// The first of them in this order.
    pub(crate) fn first<'s>(
        &self,
        servers: impl Iterator<Item = &'s String>,
        at: Duration,
    ) -> Option<&'s String> {
        servers.min_by_key(|server| self.lateness(server, at))
    }

    /// Smaller for one that is asked earlier.
    fn lateness(&self, server: &str, at: Duration) -> (bool, bool) {
        let is_silent = self.servers.get(server).is_some_and(|known| known.is_silent);
        (self.is_avoided(server, at), is_silent)
    }

    /// The silent servers to probe now, to see whether they are back. The caller probes.
    pub(crate) fn due_for_a_look(&mut self, at: Duration) -> Vec<String> {
        let is_due = |known: &Server| {
            known.is_silent && known.looked_at.is_none_or(|before| at >= before + LOOK_AGAIN)
        };
        let due = self.servers.iter_mut().filter(|(_, known)| is_due(known));
        due.map(|(server, known)| {
            known.looked_at = Some(at);
            server.clone()
        })
        .collect()
    }

    /// For how long only this server is waited for: the time that 19 of 20 of its answers took, twice.
    pub(crate) fn patience(&self, server: &str) -> Duration {
        let took = self.servers.get(server).map(|known| &known.took).filter(|took| took.len() >= AT_LEAST);
        let Some(took) = took else { return UNKNOWN };
        let mut took: Vec<Duration> = took.iter().copied().collect();
        took.sort_unstable();
        (took[took.len() * 19 / 20] * 2).clamp(LEAST, MOST)
    }

    /// A question is asked for the first time.
    pub(crate) fn asks(&mut self) {
        self.earned = (self.earned + 1.0 / ONE_IN).min(0.0);
    }

    /// Whether a question may be asked another server besides; that is counted.
    pub(crate) fn asks_twice(&mut self) -> bool {
        let may = self.earned >= 1.0 - BESIDES;
        if may {
            self.earned -= 1.0;
        }
        may
    }

    fn server(&mut self, server: &str) -> &mut Server {
        self.servers.entry(server.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An event at a server.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Answered(u64),
        Unable,
        Silent,
    }

    fn events() -> impl Strategy<Value = Vec<(usize, Event)>> {
        let event =
            prop_oneof![(0u64..20_000).prop_map(Event::Answered), Just(Event::Unable), Just(Event::Silent),];
        prop::collection::vec((0usize..5, event), 0..120)
    }

    fn name(server: usize) -> String {
        format!("http://n{server}")
    }

    proptest! {
        #[test]
        fn a_silent_server_is_asked_last_until_it_answers_however_long_that_is(
            events in events(), later in 0u64..1_000_000,
        ) {
            let mut standing = ServerStates::default();
            let mut silent = [false; 5];
            for (server, event) in events {
                match event {
                    Event::Answered(took) => standing.answered(&name(server), Duration::from_millis(took)),
                    Event::Unable => standing.was_unable(&name(server), Duration::ZERO),
                    Event::Silent => standing.fell_silent(&name(server)),
                }
                silent[server] = matches!(event, Event::Silent);
            }
            let at = UNABLE_FOR + Duration::from_secs(later);
            let ordered = standing.in_order((0..5).map(name).collect(), at);
            let (talking, hushed): (Vec<usize>, Vec<usize>) = (0..5).partition(|server| !silent[*server]);
            let expected: Vec<String> = talking.into_iter().chain(hushed).map(name).collect();
            prop_assert_eq!(ordered, expected, "those that talk first, otherwise as they were given");
        }

        #[test]
        fn few_questions_are_asked_twice_whatever_happens(wants in prop::collection::vec(any::<bool>(), 0..2_000)) {
            let mut standing = ServerStates::default();
            let (mut asked, mut twice) = (0u32, 0u32);
            for wants in wants {
                standing.asks();
                asked += 1;
                twice += u32::from(wants && standing.asks_twice());
            }
            prop_assert!(f64::from(twice) <= BESIDES + f64::from(asked) / ONE_IN, "{twice} of {asked}");
        }

        #[test]
        fn a_server_is_given_twice_what_most_of_its_answers_took_within_bounds(
            took in prop::collection::vec(0u64..30_000, 0..200),
        ) {
            let mut standing = ServerStates::default();
            took.iter().for_each(|took| standing.answered("s", Duration::from_millis(*took)));
            let patience = standing.patience("s");
            prop_assert!((LEAST..=MOST).contains(&patience));
            let last = &took[took.len().saturating_sub(REMEMBERED)..];
            if last.len() < AT_LEAST {
                prop_assert_eq!(patience, UNKNOWN);
            } else if patience < MOST {
                let longer = last.iter().filter(|took| Duration::from_millis(**took) * 2 > patience).count();
                prop_assert!(longer * 20 <= last.len(), "{longer} of {} took longer", last.len());
            }
        }
    }

    #[test]
    fn it_is_looked_at_silent_servers_now_and_then() {
        let (mut standing, second) = (ServerStates::default(), Duration::from_secs(1));
        standing.fell_silent("a");
        standing.answered("b", second);
        assert_eq!(standing.due_for_a_look(second), ["a"]);
        assert_eq!(standing.due_for_a_look(second * 3 / 2), [""; 0], "a probe is under way");
        assert_eq!(standing.due_for_a_look(second * 2), ["a"]);
        standing.lives("a");
        assert_eq!(standing.due_for_a_look(second * 9), [""; 0]);
        assert!(!standing.is_avoided("a", second * 9));
    }

    #[test]
    fn one_that_cannot_is_asked_again_soon_and_before_one_that_is_silent() {
        let mut standing = ServerStates::default();
        standing.was_unable("a", Duration::ZERO);
        standing.fell_silent("b");
        let order = |at| standing.in_order(["b", "a", "c"].map(str::to_owned).to_vec(), at);
        assert_eq!(order(Duration::ZERO), ["c", "a", "b"]);
        assert_eq!(order(UNABLE_FOR), ["a", "c", "b"]);
    }
}
