//! Threads that gather steps, each as soon as its rows lie ready, and hand them out in order.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::clocks::{Clocks, On};
use super::prefetch::{Prefetch, Task};
use super::{LoadError, Next, Step, spawn};

/// The result of a step, and its time.
type Built = (Result<Step, LoadError>, Instant);

/// Steps on their way, in order. Dropping it ends the threads, which are waited for.
pub(crate) struct Ahead {
    /// Taken when it is dropped: this ends the threads when no reader takes steps any more.
    steps: Option<Receiver<Receiver<Built>>>,
    /// The first of them, once it is taken.
    next: Option<Receiver<Built>>,
    threads: Vec<JoinHandle<()>>,
    /// When the last step was taken.
    taken: Instant,
    /// How long steps lay finished before they were asked for, counted once however many of them.
    kept: Duration,
    /// Pending steps are not wanted any more.
    stop: CancellationToken,
}

impl Ahead {
    /// Begins to read `depth` steps ahead, which `threads` threads gather.
    /// When no reader takes them any more, `stop` ends the source of their rows.
    pub(crate) fn start(
        prefetch: Prefetch,
        depth: usize,
        threads: usize,
        clocks: Arc<Clocks>,
        stop: CancellationToken,
    ) -> Result<Self, LoadError> {
        let (give_step, steps) = sync_channel::<Receiver<Built>>(depth);
        let (give_task, tasks) = sync_channel::<(Task, SyncSender<Built>)>(depth);
        let tasks = Arc::new(Mutex::new(tasks));
        let mut ahead = Self {
            steps: Some(steps),
            next: None,
            threads: Vec::with_capacity(threads + 1),
            taken: Instant::now(),
            kept: Duration::ZERO,
            stop,
        };
        for _ in 0..threads {
            let (tasks, clocks, stop) = (Arc::clone(&tasks), Arc::clone(&clocks), ahead.stop.clone());
            ahead.threads.push(spawn("shardd-gather", move || gather(&tasks, &clocks, &stop))?);
        }
        ahead.threads.push(spawn("shardd-read", move || {
            prefetch.run(|task| {
                let (done, built) = sync_channel(1);
                match task {
                    Ok(task) => give_step.send(built).is_ok() && give_task.send((task, done)).is_ok(),
                    Err(error) => {
                        done.send((Err(error), Instant::now())).is_ok() && give_step.send(built).is_ok()
                    }
                }
            });
        })?);
        Ok(ahead)
    }

    /// The next step, if it is gathered within `wait`.
    pub(crate) fn next(&mut self, wait: Duration) -> Result<Next, LoadError> {
        let asked = Instant::now();
        let until = asked + wait;
        let next = match &self.next {
            Some(next) => next,
            None => {
                let Some(steps) = &self.steps else { return Ok(Next::End) };
                match steps.recv_timeout(wait) {
                    Ok(next) => self.next.insert(next),
                    Err(RecvTimeoutError::Timeout) => return Ok(Next::NotYet),
                    Err(RecvTimeoutError::Disconnected) if self.end() => return Ok(Next::End),
                    Err(RecvTimeoutError::Disconnected) => return Err(LoadError::Stopped),
                }
            }
        };
        let built = next.recv_timeout(until.saturating_duration_since(Instant::now()));
        if matches!(built, Err(RecvTimeoutError::Timeout)) {
            return Ok(Next::NotYet);
        }
        self.next = None;
        match built {
            Ok((Ok(step), finished)) => {
                // It could not be taken before the one before it was.
                self.kept += asked.saturating_duration_since(finished.max(self.taken));
                self.taken = Instant::now();
                Ok(Next::Step(Box::new(step)))
            }
            Ok((Err(error), _)) => {
                self.end();
                Err(error)
            }
            // A thread that panicked leaves a step that never comes.
            Err(_) => {
                self.end();
                Err(LoadError::Stopped)
            }
        }
    }

    /// How long steps lay finished before they were asked for.
    pub(crate) fn kept(&self) -> Duration {
        self.kept
    }

    /// Ends the threads; whether none of them panicked.
    fn end(&mut self) -> bool {
        self.stop.cancel();
        self.steps = None;
        let ends: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        ends.iter().all(Result::is_ok)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.end();
    }
}

fn gather(tasks: &Mutex<Receiver<(Task, SyncSender<Built>)>>, clocks: &Clocks, stop: &CancellationToken) {
    loop {
        let next = tasks.lock().expect("no panic while held").recv();
        let Ok((task, done)) = next else { return };
        if stop.is_cancelled() {
            return;
        }
        let built = clocks.time(On::Gathering, || task.build(clocks));
        // The reader may be gone.
        let _ = done.send((built, Instant::now()));
    }
}
