//! `shardctl top`: a screen that follows a cluster. It shows whether data holds training up, and all faults.
//!
//! One thread asks the cluster. The loop here takes keys and answers, and draws; `keys` and `view` decide.

mod keys;
mod screen;
mod source;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::env;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{self, Event};
use ratatui::layout::Rect;
use shardd_api::duration;
use shardd_api::hot::HotOrder;
use shardd_api::overview::rows::RowOrder;
use shardd_store::connect::Connect;

use self::keys::{Act, press};
use self::screen::Screen;
use self::source::{News, NoAnswer, Question, Source};
use self::state::{Pane, State, Trouble, Window};
use crate::failure::Failure;
use crate::human::parse_duration;
use crate::{output, signals};

/// How long the loop waits for a key before it looks for answers and signals.
const GLANCE: Duration = Duration::from_millis(100);
/// Every node is asked for its hot shards: less often, unless they are looked at.
const HOT_EVERY: Duration = Duration::from_secs(10);
/// The rows of a frame for a pipe.
const PLAIN_ROWS: usize = 100;
const PLAIN_SHARDS: usize = 10;
/// The rows of nodes that are asked for before the size of the screen matters.
const FIRST_ROWS: usize = 100;
/// Hot shards that are asked for.
const HOT_ROWS: usize = 100;
/// The narrowest and the usual frame for a pipe.
const PLAIN_WIDTH: (u16, u16) = (60, 120);

/// Watch a cluster: whether data holds training up, faults, runs, nodes and hot shards
///
/// The first line says whether training waits for data: in which stage, on which rank, since when, and when the epoch
/// will be done. Findings follow with their cause; the selected one shows its remedy. Keys are those of htop: F1 shows
/// them, q quits.
#[derive(Args)]
pub(crate) struct Top {
    /// How often to ask the cluster, such as 2s
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    interval: Duration,

    /// Print one frame as text and end: the default where there is no terminal. With --json it is the view as JSON
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        if self.interval.is_zero() {
            return Err(Failure::usage("--interval: at least 1s"));
        }
        let mut source = Source::new(&connect.servers()?);
        if json {
            output::json(&source.json()?);
            return Ok(());
        }
        let is_dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_plain = self.once || is_dumb || !std::io::stdout().is_terminal();
        let limit = if is_plain { PLAIN_ROWS } else { FIRST_ROWS };
        let question = Question {
            has_view: true,
            window: Window { order: RowOrder::State, search: String::new(), offset: 0, limit },
            hot: Some((HotOrder::Reads, if is_plain { PLAIN_SHARDS } else { HOT_ROWS })),
        };
        let news = source.ask(&question).map_err(|no_answer| no_answer.failure)?;
        let seen = news.after(None).expect("the view was asked for");
        let mut state = State::new(seen, self.interval);
        if is_plain {
            state.is_plain = true;
            output::print(&view::text(&state, plain_width()));
            return Ok(());
        }
        state.has_colour = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        watch(state, source)
    }
}

/// The width of a frame for a pipe: COLUMNS, else that of the terminal, else the usual one.
fn plain_width() -> u16 {
    let columns = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || crossterm::terminal::size().ok().filter(|_| std::io::stdout().is_terminal());
    let width = columns.or_else(|| terminal().map(|(width, _)| width)).unwrap_or(PLAIN_WIDTH.1);
    width.clamp(PLAIN_WIDTH.0, 500)
}

/// The thread that asks, and the questions that it has not answered: at most one.
struct Asker {
    questions: SyncSender<Question>,
    answers: Receiver<Result<News, Box<NoAnswer>>>,
    /// Since when an answer is awaited.
    waits_since: Option<Instant>,
    asked: Instant,
    /// When the view was asked for, and when the hot shards were.
    viewed: Instant,
    hot_asked: Instant,
}

/// Follows the cluster until a key, a signal or the end of the terminal.
fn watch(state: State, mut source: Source) -> Result<(), Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    signals::at_first(move || stop.store(true, Ordering::Relaxed))?;
    signals::end_with_terminal()?;
    let http = source.http();
    let (questions, asked) = sync_channel::<Question>(1);
    let (answer, answers) = sync_channel(1);
    let thread = std::thread::Builder::new().name("asker".to_owned()).spawn(move || {
        for question in asked {
            if answer.send(source.ask(&question)).is_err() {
                return;
            }
        }
    })?;
    let now = Instant::now();
    let asker = Asker { questions, answers, waits_since: None, asked: now, viewed: now, hot_asked: now };
    let ended = follow(state, asker, &stopped);
    // A question under way is not waited for.
    http.shut_down();
    let has_panicked = thread.join().is_err();
    match ended {
        Ok(()) if has_panicked => {
            Err(Failure::failed("asking the cluster failed; the message above says where"))
        }
        ended => ended,
    }
}

/// The loop: draw, then keys, then answers, then questions.
fn follow(mut state: State, mut asker: Asker, stopped: &AtomicBool) -> Result<(), Failure> {
    let mut screen = Screen::open()?;
    let mut drawn: Option<(State, Rect)> = None;
    while !stopped.load(Ordering::Relaxed) {
        let area = screen.area()?;
        state.tick(duration::now());
        view::scroll(&mut state, area);
        if drawn.as_ref().is_none_or(|(before, size)| *before != state || *size != area) {
            screen.draw(|frame| view::draw(&state, frame))?;
            drawn = Some((state.clone(), area));
        }
        let mut must_ask = false;
        if event::poll(GLANCE)?
            && let Event::Key(key) = event::read()?
        {
            let page = view::page(&view::layout(&state, area), state.pane);
            match press(&mut state, key, page) {
                Act::Nothing => {}
                Act::Quit => break,
                Act::Suspend => {
                    screen.suspend()?;
                    drawn = None;
                }
                Act::Refresh => must_ask = true,
                Act::Redraw => {
                    screen.clear()?;
                    drawn = None;
                }
            }
        }
        match asker.answers.try_recv() {
            Ok(answer) => {
                asker.waits_since = None;
                take(&mut state, answer);
            }
            Err(TryRecvError::Empty) => asker.note_silence(&mut state),
            Err(TryRecvError::Disconnected) => break,
        }
        view::scroll(&mut state, area);
        asker.ask_if_due(&state, area, must_ask);
    }
    Ok(())
}

/// Shows an answer, or why there is none: then the last one stays.
fn take(state: &mut State, answer: Result<News, Box<NoAnswer>>) {
    match answer {
        Ok(news) => {
            if let Some(seen) = news.after(Some(&state.seen)) {
                if seen.server != state.seen.server {
                    state.remark(format!("asking {} from now on", seen.server));
                }
                state.take(seen);
            }
        }
        Err(no_answer) => state.trouble = Some(no_answer.trouble),
    }
}

impl Asker {
    /// Asks when it is time, or when rows are missing, unless an answer is awaited.
    fn ask_if_due(&mut self, state: &State, area: Rect, must_ask: bool) {
        if self.waits_since.is_some() {
            return;
        }
        let layout = view::layout(state, area);
        let is_due = must_ask || (!state.is_paused && self.viewed.elapsed() >= state.interval);
        // A cluster that does not answer is asked no faster than one that does.
        let may_ask = state.trouble.is_none() || self.asked.elapsed() >= state.interval;
        let lacks_rows = may_ask && !view::has_rows(state, &layout);
        let lacks_shards = may_ask && state.seen.hot_order != state.hot_order;
        if !is_due && !lacks_rows && !lacks_shards {
            return;
        }
        let hot_every = if state.pane == Pane::Hot { state.interval } else { HOT_EVERY.max(state.interval) };
        let has_hot = lacks_shards || must_ask || (is_due && self.hot_asked.elapsed() >= hot_every);
        let question = Question {
            has_view: is_due,
            window: view::window(state, &layout),
            hot: has_hot.then_some((state.hot_order, HOT_ROWS)),
        };
        if self.questions.try_send(question).is_ok() {
            let now = Instant::now();
            (self.waits_since, self.asked) = (Some(now), now);
            self.viewed = if is_due { now } else { self.viewed };
            self.hot_asked = if has_hot { now } else { self.hot_asked };
        }
    }

    /// A node that hangs is shown as one that does not answer, before the time for its answer is over.
    fn note_silence(&self, state: &mut State) {
        const SILENCE: Duration = Duration::from_secs(3);
        let is_silent = self.waits_since.is_some_and(|since| since.elapsed() > SILENCE);
        if is_silent && state.trouble.is_none() {
            let server = state.seen.server.clone();
            state.trouble = Some(Trouble { server, why: "no answer yet".to_owned() });
        }
    }
}
