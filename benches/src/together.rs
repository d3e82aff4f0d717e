//! Ranks as threads that take a step together, whenever the thread that measures asks for one.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// One way to take a step, on one rank.
pub type Way = Box<dyn FnMut()>;

/// Ranks of one world, each on a thread with a pool of one thread for its computations.
#[derive(Debug)]
pub struct Together {
    ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Rank {
    ask: Option<SyncSender<usize>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Together {
    /// Starts them. Each makes its ways on its own thread.
    ///
    /// # Panics
    /// When there can be no more threads.
    pub fn start<M: FnOnce() -> Vec<Way> + Send + 'static>(ranks: impl IntoIterator<Item = M>) -> Together {
        let start = |ways: M| {
            let (ask, asked) = sync_channel::<usize>(1);
            let (tell, done) = sync_channel(1);
            let thread = thread::spawn(move || {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
                pool.install(|| {
                    let mut ways = ways();
                    for way in asked {
                        ways[way]();
                        // The answer is not wanted once the world is dropped.
                        let _ = tell.send(());
                    }
                });
            });
            Rank { ask: Some(ask), done, thread: Some(thread) }
        };
        Together { ranks: ranks.into_iter().map(start).collect() }
    }

    /// Takes a step in the way of this index on every rank, and returns when all are done.
    ///
    /// # Panics
    /// When a rank panicked.
    pub fn step(&self, way: usize) {
        for rank in &self.ranks {
            rank.ask.as_ref().expect("open until dropped").send(way).expect("a rank panicked");
        }
        for rank in &self.ranks {
            rank.done.recv().expect("a rank panicked");
        }
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            rank.ask.take();
        }
        for rank in &mut self.ranks {
            // A panic of a rank has been reported by the step that met it.
            let _ = rank.thread.take().map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn all_ranks_take_the_same_way_at_once() {
        // A step ends only if both are in it.
        let met = Arc::new(Barrier::new(2));
        let rank = |met: Arc<Barrier>| {
            move || -> Vec<Way> { vec![Box::new(|| {}), Box::new(move || _ = met.wait())] }
        };
        let together = Together::start([rank(Arc::clone(&met)), rank(met)]);
        together.step(1);
        together.step(0);
        together.step(1);
    }
}
